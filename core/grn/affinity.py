"""Cores of one's own: what a request for them says, and how a process is bound to what it was given.

Variables tell a program how many threads to start; only binding keeps it from running everywhere,
and libraries that no variable reaches (TBB, a pool sized by `os.sched_getaffinity`) follow it.

Bind before the program counts its cores: a process that runs already has sized its pools.
"""

from __future__ import annotations

import os
from _thread import get_native_id  # `threading`, which wraps it, is too heavy for `grn run`

from grn.saying import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from grn.grants import Grant

__all__ = ["Binding", "bind", "bind_here", "cores_of", "request_fields"]


def request_fields() -> dict[str, Any]:
    """Return what an `acquire` says to get cores: out of those that this process may use itself."""
    return {"affinity": True, "core_ids": sorted(os.sched_getaffinity(0))}


def bind(cores: Iterable[int], pid: int = 0) -> str:
    """Bind a process, by default this one, to the cores of its grant; return why not, "" if it is."""
    wanted = list(cores)
    if not wanted:
        return "the broker gave it no cores"
    try:
        os.sched_setaffinity(pid, wanted)
    except OSError as error:
        return f"cores {', '.join(map(str, wanted))}: {error.strerror}"
    return ""


def cores_of(grant: Grant, name: str) -> list[int]:
    """Return the cores of a grant; warn if some were asked for and it has none."""
    if grant.affinity and not grant.cores:
        warn(f"{name} is not bound to cores: the broker gave it none")
    return grant.cores


def bind_here(grant: Grant, name: str) -> Binding | None:
    """Bind this thread to the cores of a grant, if it has some; warn where that does not succeed."""
    cores = cores_of(grant, name)
    if not cores:
        return None
    binding = Binding(cores)
    if binding.problem:
        warn(f"{name} is not bound to cores: {binding.problem}")
    return binding


class Binding:
    """This thread and those that it starts from now on, bound to cores until that is taken back.

    Other threads of the process are left alone: they may be another job's.
    """

    __slots__ = ("_before", "_cores", "_pid", "_thread", "problem")

    def __init__(self, cores: Iterable[int]) -> None:
        self._cores = frozenset(cores)
        self._before = os.sched_getaffinity(0)
        self._pid, self._thread = os.getpid(), get_native_id()
        self.problem = bind(self._cores)
        """Why it is not bound, "" if it is."""
        if not self.problem:
            _in_force.append(self)

    def take_back(self) -> None:
        """Let the thread run where it ran before, and what it started in between that still lives.

        A forked child stays bound: it is the job's to its end.
        """
        if self not in _in_force:
            return
        _in_force.remove(self)
        if self._pid != os.getpid():
            return
        if any(other._cores == self._cores for other in _in_force):  # noqa: SLF001 - its own class
            bind(self._before, self._thread)  # who is whose cannot be told
            return
        for thread in _threads():
            if thread == self._thread or _bound_to(thread) == self._cores:
                bind(self._before, thread)


_in_force: list[Binding] = []


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _bound_to(thread: int) -> set[int]:
    try:
        return os.sched_getaffinity(thread)
    except OSError:  # it has ended since
        return set()
