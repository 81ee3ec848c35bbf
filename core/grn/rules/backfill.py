"""Who may use what is kept for the head of the queue until the head can start: learnt run times.

The head's devices drain, and room on them stays empty meanwhile. A request that is likely over before
the head is likely to start may have that room. A running job is likely to end when the middle one of
those runs of its type did that lasted longer than it has lasted so far; one that outlasted them all,
after as much more as it is late; one of which nothing is known, at any moment. A newcomer is likely over when three
quarters of the runs of its type were. So the head is delayed only by jobs that break with what their
type does, and not for ever: what is kept for it is kept for it alone once it has waited twice as long
as was likely when it became the head.
(EASY backfill, after Lifka: "The ANL/IBM SP Scheduling System", 1995, whose estimates are the users'
own; that estimates from history do better if they are likely rather than safe: Tsafrir, Etsion,
Feitelson, "Backfilling using system-generated predictions", 2007.)

Pure: the time is an argument.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from grn.rules.model import LeaseState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.rules.model import Lease
    from grn.rules.profiles import ProfileBook

__all__ = ["ENOUGH_RUNS", "likely_end", "likely_over_s", "room_at"]

ENOUGH_RUNS = 3
"""So many runs of a type must have ended well before its run times count."""
_MOST = 0.75


def likely_end(lease: Lease, model: str, profiles: ProfileBook, now: float) -> float:
    """Return when a lease is likely to end: `now` if nothing is known, or it is over already."""
    if lease.state is LeaseState.DRAINING:
        return now
    ran = profiles.run_times_s(lease.type, model)
    runs = len(ran)
    if runs < ENOUGH_RUNS:
        return now
    began = lease.granted_s if lease.started_s is None else lease.started_s
    lasted = now - began
    shorter = bisect_left(ran, lasted)
    if shorter == runs:
        return now + lasted - ran[-1]
    return began + ran[shorter + (runs - shorter) // 2]


def likely_over_s(profiles: ProfileBook, job_type: str, model: str) -> float | None:
    """Return after how long a job of this type is likely over, if enough is known of it."""
    ran = profiles.run_times_s(job_type, model)
    return ran[int(len(ran) * _MOST)] if len(ran) >= ENOUGH_RUNS else None


def room_at(missing: int, ends: Iterable[tuple[float, int]], now: float) -> float:
    """Return when `missing` units are there.

    Args:
        missing: how much more is wanted than is free now.
        ends: of each lease, when it ends and how much it gives back.
        now: the time; the answer if nothing is missing.
    """
    for end, units in sorted(ends):
        if missing <= 0:
            break
        missing -= units
        now = max(now, end)
    return now
