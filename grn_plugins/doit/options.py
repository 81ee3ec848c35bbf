"""What an action is wrapped with: the wishes of its lease, and how it is treated.

Promises: plain data that can be pickled; an option that does not exist or makes no sense is doit's own
`InvalidTask`, in one line that says where, before anything runs.

Must not: ask the broker.
"""

from __future__ import annotations

import difflib
import inspect
import os
import subprocess
from typing import TYPE_CHECKING, Any

from doit.action import CmdAction
from doit.exceptions import InvalidTask

from grn.errors import GrnError, UsageError
from grn.rules.units import parse_duration_s
from grn.wishes import NORMAL, ONE, Wish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal, TypedDict

    class Keywords(TypedDict, total=False):
        """The options of `grn` and `grn_task`."""

        gpus: int | None
        memory: str | int | None
        policy: str | None
        cpus: int | None
        ram: str | int | None
        flavor: str | None
        compute: int | None
        processes: int | None
        affinity: bool | None
        priority: int
        label: str
        env: Mapping[str, str] | None
        job: str | None
        wait: float | str | None
        if_unavailable: Literal["fail", "run"]
        leftovers: Literal["kill", "wait", "keep"]
        isolate: bool | Literal["fork"]
        retries_on_oom: int
        grace: float | str
        cancel_waiting_on_failure: bool


__all__ = ["Options", "command_keywords"]

_WISHES: dict[str, Any] = {
    "gpus": ONE,
    "memory": None,
    "policy": None,
    "cpus": None,
    "ram": None,
    "flavor": None,
    "compute": None,
    "processes": None,
    "affinity": None,
    "priority": NORMAL,
    "label": "",
    "env": None,
    "wait": None,
    "if_unavailable": "fail",
}
_OWN: dict[str, Any] = {
    "job": None,
    "leftovers": "kill",
    "isolate": True,
    "retries_on_oom": 0,
    "grace": 5.0,
    "cancel_waiting_on_failure": False,
}
_MOST_S = 1e9
_LEFTOVERS = ("kill", "wait", "keep")
_OTHER_NAMES = {
    "gpu": "gpus",
    "mem": "memory",
    "type": "job",
    "jobstr": "job",
    "resource_policy": "policy",
    "timeout": "wait",
    "wait_timeout": "wait",
    "retries": "retries_on_oom",
}
"""What people write who know GRN, or its predecessor, from elsewhere."""


class Options:
    """Options of one `grn` or `grn_task`, checked."""

    __slots__ = (
        "cancel_waiting_on_failure",
        "given",
        "grace_s",
        "isolate",
        "job",
        "leftovers",
        "retries_on_oom",
        "wish",
    )

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Take options in.

        Raises:
            UsageError: if one does not exist or makes no sense; it is named, with what would do.
        """
        self.given = dict(given)
        """As they were written, for people."""
        for name in given:
            if name not in _WISHES and name not in _OWN:
                raise UsageError(_unknown(name))
        wishes = {name: given.get(name, usual) for name, usual in _WISHES.items()}
        own = {name: given.get(name, usual) for name, usual in _OWN.items()}
        wishes["label"], wishes["env"] = _text("label", wishes["label"]), _env(wishes["env"])
        self.job: str | None = None if own["job"] is None else _text("job", own["job"])
        self.wish = _wish(wishes, self.job)
        self.leftovers = _one_of("leftovers", own["leftovers"], _LEFTOVERS)
        self.isolate: bool | Literal["fork"] = _isolate(own["isolate"])
        self.retries_on_oom = _retries(own["retries_on_oom"])
        self.grace_s = _seconds("grace", own["grace"])
        self.cancel_waiting_on_failure = _switch(
            "cancel_waiting_on_failure", own["cancel_waiting_on_failure"]
        )

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], *, where: str) -> Options:
        """Check options as somebody wrote them; `where` begins the message.

        Raises:
            InvalidTask: if one does not exist or makes no sense.
        """
        try:
            return cls(keywords)
        except GrnError as error:
            raise InvalidTask(f"{where}: {error}") from None


def command_keywords() -> frozenset[str]:
    """Return what `CmdAction` takes beside the command: its own, and those of `subprocess.Popen`."""
    names = {
        *inspect.signature(CmdAction).parameters,
        *inspect.signature(subprocess.Popen).parameters,
    }
    return frozenset(names - {"action", "task", "args", "pkwargs", "stdout", "stderr", "env"})


def _unknown(name: str) -> str:
    known = [*_WISHES, *_OWN]
    meant = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
    if meant is not None:
        return f"there is no option {name!r}; did you mean {meant!r}?"
    return f"there is no option {name!r}; there are {', '.join(known)}"


def _wish(wishes: dict[str, Any], job: str | None) -> Wish:
    try:
        wish = Wish(**wishes, type=None)
    except (TypeError, AttributeError) as error:  # such as memory=[8]
        raise UsageError(f"an option has a value of the wrong kind: {error}") from error
    if job is not None and not job.strip():
        raise UsageError("job='' names nothing: leave it out, or give the job type a name")
    if wish.flavor is not None:
        from grn.config.tables import load  # noqa: PLC0415 - only who names one

        load(None, os.environ).flavor(_text("flavor", wish.flavor))
    return wish


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is no text")
    return value


def _env(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"env={value!r} is no dict of texts")
    for name, each in value.items():
        if not isinstance(name, str) or not isinstance(each, str):
            raise UsageError(f"env={{{name!r}: {each!r}}}: names and values are texts")
    return value


def _one_of(name: str, value: object, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise UsageError(f"{name}={value!r} is not one of: {', '.join(known)}")
    return value


def _isolate(value: object) -> Any:
    if value is True or value is False or value == "fork":
        return value
    raise UsageError(f"isolate={value!r} is not one of: True, False, 'fork'")


def _retries(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"retries_on_oom={value!r} is not a whole number of 0 or more")
    return value


def _seconds(name: str, value: object) -> float:
    if isinstance(value, str):
        return parse_duration_s(value, what=name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_S:
        raise UsageError(f"{name}={value!r}: give seconds, or a text such as '10s'")
    return float(value)


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is neither True nor False")
    return value
