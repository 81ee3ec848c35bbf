"""Cores of one's own: what a request for them says, and how a process is bound to what it was given.

Variables tell a program how many threads to start; only binding keeps it from running everywhere,
and libraries that no variable reaches (TBB, a pool sized by `os.sched_getaffinity`) follow it.

Bind before the program counts its cores: a process that runs already has sized its pools.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["bind", "request_fields"]


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
