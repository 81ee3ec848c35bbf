"""`gpu_mem(default=8000)`: a resource that says what a rule's jobs were seen to need.

    resources: gpu=1, gpu_mem_mb=gpu_mem(default=8000)

For executors that must be told a size beforehand, and for limits such as `--resources gpu_mem_mb=…`; with
`--executor grn`, a rule that says nothing at all is booked at what was learnt anyway.

Promises: it asks a broker that runs, else the file that the last one left, and starts none: to count the
jobs of a workflow (`-n`) must leave no process behind. Whatever goes wrong, the answer is the default. What
was found is kept for some seconds, since Snakemake asks for each job.
Must not: book anything.
"""

from __future__ import annotations

import sys
import threading
import time
from math import ceil
from typing import TYPE_CHECKING, Any

from grn.errors import GrnError, UsageError
from grn.rules.units import parse_size_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Profiles = Sequence[Mapping[str, Any]]

__all__ = ["gpu_mem"]

_KEPT_FOR_S = 5.0
_GROWTH = 1.5


def gpu_mem(
    default: int | str = 8000,
    *,
    cap: int | str | None = None,
    gpus: int = 1,
    growth: float = _GROWTH,
    type: str | None = None,  # noqa: A002 - the name of `grn_type`, which it has to agree with
) -> Callable[..., int]:
    """Return a function for `gpu_mem_mb` that tells what was learnt of its rule, in MiB for the job.

    Args:
        default: MiB on each device as long as nothing is known; a text such as "8GiB" will do.
        cap: never more than this on each device, in later attempts either. Where a broker runs, the
            largest of its devices is a cap as well.
        gpus: the rule's number of devices: what was learnt is of one.
        growth: how much more each further attempt gets: attempt n gets `growth ** (n - 1)` times.
        type: the job type, where the rule has a `grn_type`.

    Raises:
        UsageError: if one of them makes no sense.
    """
    default_mib, cap_mib = _size("default", default), None if cap is None else _size("cap", cap)
    if not isinstance(gpus, int) or gpus < 1:
        raise UsageError(f"gpu_mem: gpus={gpus!r} is not a number of devices of 1 or more")
    if not isinstance(growth, int | float) or growth < 1:
        raise UsageError(f"gpu_mem: growth={growth!r} is not 1 or more: attempts never get less")
    workflow = sys._getframe(1).f_globals.get("workflow")  # noqa: SLF001 - a Snakefile's own

    def learnt(wildcards: Any, attempt: int, rulename: str) -> int:
        del wildcards
        known = _look()
        mib = known.estimate_mib(type, _snakefile(workflow, rulename), rulename) or default_mib
        caps = [each for each in (cap_mib, known.largest_mib) if each]
        return gpus * min([ceil(mib * growth ** (attempt - 1)), *caps])

    return learnt


def _size(name: str, value: int | str) -> int:
    if isinstance(value, str):
        return parse_size_mib(value, what=f"gpu_mem: {name}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"gpu_mem: {name}={value!r} is no size: give MiB as a whole number or '8GiB', as in"
            " gpu_mem_mb=gpu_mem(default=8000)"
        )
    return value


def _snakefile(workflow: Any, rulename: str) -> str | None:
    """Return the file that defines a rule: the types of its jobs begin with it."""
    if workflow is None:
        return None
    return str(workflow.get_rule(rulename).snakefile)


class _Known:
    """What was learnt, as of a moment."""

    def __init__(self, profiles: Profiles = (), largest_mib: int | None = None) -> None:
        self.largest_mib = largest_mib
        self.at_s = time.monotonic()
        self._profiles = profiles

    def estimate_mib(self, job_type: str | None, snakefile: str | None, rule: str) -> int | None:
        """Return the most that any kind of the rule's jobs would be booked at."""
        found = [
            profile["estimate_mib"]
            for profile in self._profiles
            if profile["estimate_mib"]
            and (
                profile["type"] == job_type
                if job_type is not None
                else _is_of(profile["type"], snakefile, rule)
            )
        ]
        return max(found, default=None)


def _is_of(job_type: str, snakefile: str | None, rule: str) -> bool:
    """Whether a type is `FILE::RULE`, or that with numbers of its params."""
    file, _, rest = job_type.rpartition("::")
    return (snakefile is None or file == snakefile) and f"{rest} ".startswith(f"{rule} ")


_lock = threading.Lock()
_last: list[_Known] = []


def _look() -> _Known:
    with _lock:
        if not _last or time.monotonic() > _last[0].at_s + _KEPT_FOR_S:
            _last[:] = [_found()]
        return _last[0]


def _found() -> _Known:
    """Ask who knows. A broker that hangs is passed over after some seconds."""
    from grn.client import Client  # noqa: PLC0415 - a workflow's rules may be looked at without it
    from grn.errors import BrokerSilent, BrokerUnavailable  # noqa: PLC0415
    from grn.settings import load  # noqa: PLC0415

    try:
        settings = load()
        try:
            with Client(settings) as client:
                status = client.status()
                return _Known(client.profiles("list"), _largest(status["devices"]))
        except BrokerSilent:
            return _Known()
        except BrokerUnavailable:
            from grn.cli.stored import StoredProfiles  # noqa: PLC0415 - SQLite

            with StoredProfiles(settings) as stored:
                return _Known(stored.profiles("list"))
    except (GrnError, OSError):
        return _Known()


def _largest(devices: Iterable[Mapping[str, Any]]) -> int | None:
    return max((device["capacity_mib"] for device in devices), default=None)
