"""The queue's states and their order: what may follow what, and how an end is called.

    held <--> queued --> starting --> waiting --> running --> ok | failed | oom | timeout | cancelled | lost
       ^         ^                       |
       +---------+--- called back, or its runner is gone before the job has started

Promises: a job that is over stays as it is (a retry is a new job); nothing that runs is ever queued
again, so nothing runs twice.
"""

from __future__ import annotations

from grn.rules.outcome import CANCELLED as OUTCOME_CANCELLED
from grn.rules.outcome import OK as OUTCOME_OK
from grn.rules.outcome import OOM as OUTCOME_OOM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ACTIVE",
    "CANCELLED",
    "FAILED",
    "HELD",
    "LOST",
    "OK",
    "OOM",
    "OVER",
    "QUEUED",
    "RUNNING",
    "STARTING",
    "STATES",
    "TIMEOUT",
    "WAITING",
    "between",
    "end_state",
]

HELD, QUEUED, STARTING = "held", "queued", "starting"
WAITING, RUNNING = "waiting", "running"
OK, FAILED, OOM, TIMEOUT = "ok", "failed", "oom", "timeout"
CANCELLED, LOST = "cancelled", "lost"

ACTIVE = frozenset({STARTING, WAITING, RUNNING})
"""Somebody sees to the job now."""
OVER = frozenset({OK, FAILED, OOM, TIMEOUT, CANCELLED, LOST})
STATES = (HELD, QUEUED, STARTING, WAITING, RUNNING, OK, FAILED, OOM, TIMEOUT, CANCELLED, LOST)

_LEAST_GAP = 1e-6


def end_state(outcome: str, *, timed_out: bool) -> str:
    """Return the state of a job that ended, from how its supervisor describes the end."""
    if timed_out:
        return TIMEOUT
    return {OUTCOME_OK: OK, OUTCOME_OOM: OOM, OUTCOME_CANCELLED: CANCELLED}.get(outcome, FAILED)


def between(before: float | None, after: float | None, count: int) -> Sequence[float] | None:
    """Return places for `count` jobs between two that stay; `None` if there is no room left.

    `None` for a neighbour means that there is none on that side.
    """
    if before is None and after is None:
        return [float(n) for n in range(count)]
    if before is None:
        assert after is not None  # noqa: S101 - the other case was first
        return [after - count + n for n in range(count)]
    if after is None:
        return [before + 1 + n for n in range(count)]
    gap = (after - before) / (count + 1)
    if gap < _LEAST_GAP:
        return None
    return [before + gap * (n + 1) for n in range(count)]
