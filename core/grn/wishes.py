"""What a Python program wishes for, as people write it, made ready for the wire.

One place for the keyword arguments that `grn.job`, `grn.lease` and the adapters share. Promises: a
wish that makes no sense is a `UsageError` where it is written, not where it would be granted; what
the caller gave wins over the flavor that it names, and that over what is usual.
"""

from __future__ import annotations

import os

from grn.client import shares, togetherness
from grn.connection import own_cores
from grn.errors import UsageError
from grn.nesting import within
from grn.policies import checked
from grn.rules.units import parse_duration_s, parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    IfUnavailable = Literal["fail", "run"]
    Policy = Literal["spread", "pack", "high-performance", "cost-saving"]

__all__ = ["NORMAL", "ONE", "Wish"]

_IF_UNAVAILABLE = ("fail", "run")
_MOST = 1 << 40
_ALL_COMPUTE = 100
_WHOLE = "whole"
_USUAL = {
    "gpus": 1,
    "memory_mib": None,
    "policy": None,
    "cpus": None,
    "ram_mib": None,
    "priority": 0,
}
"""What every request says, and what it says where nobody has given it."""


class _Usual(int):
    """A number that nobody gave: a flavor may replace it."""

    __slots__ = ()


ONE = _Usual(1)
"""One device, unless a flavor says otherwise."""
NORMAL = _Usual(0)
"""The usual priority, unless a flavor says otherwise."""


class Wish:
    """The wishes of one decorator or lease. Not of one request: `request` makes that."""

    __slots__ = (
        "affinity",
        "compute",
        "cpus",
        "env",
        "flavor",
        "gpus",
        "group",
        "label",
        "memory",
        "policy",
        "priority",
        "processes",
        "ram_mib",
        "run_without",
        "type",
        "wait_s",
    )

    def __init__(
        self,
        *,
        gpus: int | None,
        memory: str | int | None,
        policy: str | None,
        cpus: int | None,
        ram: str | int | None,
        flavor: str | None,
        priority: int,
        wait: float | str | None,
        label: str,
        env: Mapping[str, str] | None,
        if_unavailable: str,
        type: str | None,  # noqa: A002 - the public name
        compute: int | None = None,
        processes: int | None = None,
        affinity: bool | None = None,
        group: str = "",
        group_size: int | None = None,
    ) -> None:
        """Take wishes in.

        Raises:
            UsageError: if one makes no sense; it is named, with what would do.
        """
        self.gpus = _count("gpus", gpus)
        self.memory = _memory(memory)
        self.policy = None if policy is None else checked(policy, what="policy=")
        self.cpus = _count("cpus", cpus)
        self.ram_mib = None if ram is None else _size("ram", ram)
        self.compute = _of_least_one("compute", compute, _ALL_COMPUTE)
        self.processes = _of_least_one("processes", processes, _MOST)
        self.affinity = _yes_or_no("affinity", affinity)
        self.group = togetherness(group, group_size)
        self._refuse_parts_of_no_device()
        self.flavor = flavor
        self.priority = priority
        if not _is_number(priority):
            raise UsageError(f"priority={priority!r} is not a whole number; higher goes first")
        if abs(priority) > _MOST:
            raise UsageError(f"priority={priority} is too large: {-_MOST} to {_MOST}")
        self.wait_s = _wait_s(wait)
        self.label = _text("label", label)
        self.env = _variables(env)
        if_unavailable = _one_of("if_unavailable", if_unavailable, _IF_UNAVAILABLE)
        self.run_without = if_unavailable == "run"
        if type is not None and not _text("type", type).strip():
            raise UsageError("type='' names nothing: leave it out, or give the job type a name")
        self.type = type

    def request(
        self, job_type: str, *, in_process: bool, mask: str | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Put the wish into the words of the wire, with its flavor as it is now.

        Args:
            job_type: under which its need is learnt, unless the wish names one.
            in_process: this process uses the devices itself, or through children without a name.
            mask: what narrows the devices, instead of CUDA_VISIBLE_DEVICES as it is set here.

        Returns:
            The message, and the variables that the request sets for its job.

        Raises:
            UsageError: if the flavor is not known, or asks for no device and the wish is of one.
        """
        values = self._values()
        message = {
            "op": "acquire",
            "type": self.type or job_type,
            "label": self.label,
            "engine": "python",
            **{key: values.get(key, usual) for key, usual in _USUAL.items()},
            **shares(
                values.get("compute"), values.get("processes"), affinity=values.get("affinity")
            ),
            **self.group,
            "mask": os.environ.get("CUDA_VISIBLE_DEVICES") if mask is None else mask,
            "outer": os.environ.get("GRN_LEASE"),
            "within": within(),
            "cores": own_cores(),
            "in_process": in_process,
        }
        return message, dict(values["env"])

    def _values(self) -> Mapping[str, Any]:
        """Return what was given here, over what the flavor gives."""
        own = self._own()
        if self.flavor is None:
            return own
        from grn.config.tables import load  # noqa: PLC0415 - only who names one
        from grn.rules.flavors import merged  # noqa: PLC0415

        flavor = load(None, os.environ).flavor(self.flavor)
        return merged([("the request", own), (flavor.where, flavor.values)])

    def _own(self) -> dict[str, Any]:
        """Return what the caller gave, in the words of a request."""
        given = {
            "memory_mib": self.memory,
            "policy": self.policy,
            "cpus": self.cpus,
            "ram_mib": self.ram_mib,
            "compute": self.compute,
            "processes": self.processes,
            "affinity": self.affinity,
        }
        own: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if not isinstance(self.gpus, _Usual):
            own["gpus"] = self.gpus
        if not isinstance(self.priority, _Usual):
            own["priority"] = self.priority
        own["env"] = self.env
        return own

    def _refuse_parts_of_no_device(self) -> None:
        """See that no part is wanted of a device where none is.

        Raises:
            UsageError: if one is.
        """
        if self.gpus:
            return
        for name, value in (("memory", self.memory), ("compute", self.compute)):
            if value is not None:
                raise UsageError(
                    f"{name}={value!r} is of a device, and gpus={self.gpus} asks for none"
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # nobody means True devices


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if not _is_number(value) or not 0 <= value <= _MOST:
        raise UsageError(f"{name}={value!r} is not a whole number of 0 or more, or None")
    return value


def _of_least_one(name: str, value: int | None, most: int) -> int | None:
    if value is None:
        return None
    if not _is_number(value) or not 1 <= value <= most:
        upto = f" to {most}" if most < _MOST else " or more"
        raise UsageError(f"{name}={value!r} is not a whole number of 1{upto}, or None")
    return value


def _yes_or_no(name: str, value: bool | None) -> bool | None:  # noqa: FBT001 - named by its caller
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is neither True nor False, nor None")
    return value


def _text(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is not a text")
    return value


def _variables(env: Mapping[str, str] | None) -> dict[str, str]:
    try:
        return dict(env or {})
    except (TypeError, ValueError):
        raise UsageError(f"env={env!r}: give a mapping such as {{'NAME': 'value'}}") from None


def _size(name: str, value: str | int) -> int:
    if isinstance(value, str):
        return parse_size_mib(value, what=name)
    if not _is_number(value) or not 0 < value <= _MOST:
        raise UsageError(f"{name}={value!r}: give MiB as a whole number, or a text such as '8GiB'")
    return value


def _memory(value: str | int | None) -> str | int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip().lower() == _WHOLE:
        return _WHOLE
    return _size("memory", value)


def _wait_s(value: float | str | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_duration_s(value, what="wait")
    if isinstance(value, bool) or not 0 <= value < _MOST:
        raise UsageError(f"wait={value!r}: give seconds, or a text such as '10m'")
    return float(value)


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"{name}={value!r} is not one of: {', '.join(known)}")
    return value
