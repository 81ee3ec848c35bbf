"""Who may use what is kept for the head of the queue until the head can start: learnt run times.

The head's devices drain, and room on them stays empty meanwhile. A request whose type has always been
over sooner than the head could start may have that room. Both are taken at their worst: a running
job may end as early as the shortest run of its type that was seen, at any moment if nothing is known of
it; the newcomer is expected to run as long as the longest one. So the head is delayed only by a job
that runs longer than its type ever did, or by one that breaks off sooner than any that ended well.
(EASY backfill, after Lifka: "The ANL/IBM SP Scheduling System", 1995; its estimates are the users' own.)

Pure: the time is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.model import LeaseState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.rules.model import Lease
    from grn.rules.profiles import ProfileBook

__all__ = ["ENOUGH_RUNS", "earliest_end", "longest_s", "room_at"]

ENOUGH_RUNS = 3
"""So many runs of a type must have ended well before its run times count."""


def earliest_end(lease: Lease, models: Iterable[str], profiles: ProfileBook, now: float) -> float:
    """Return when a lease may end at the earliest: `now` if that is not known, or over already."""
    if lease.state is LeaseState.DRAINING:
        return now
    known = [ran for model in models if (ran := _durations(profiles, lease.type, model))]
    if not known:
        return now
    began = lease.granted_s if lease.started_s is None else lease.started_s
    return max(now, began + min(map(min, known)))


def longest_s(profiles: ProfileBook, job_type: str, model: str) -> float | None:
    """Return how long jobs of this type run at most by all experience, if there is any."""
    ran = _durations(profiles, job_type, model)
    return max(ran) if ran else None


def room_at(missing: int, ends: Iterable[tuple[float, int]], now: float) -> float:
    """Return when `missing` units are there at the earliest.

    Args:
        missing: how much more is wanted than is free now.
        ends: of each lease, when it may end and how much it gives back.
        now: the time; the answer if nothing is missing.
    """
    for end, units in sorted(ends):
        if missing <= 0:
            break
        missing -= units
        now = max(now, end)
    return now


def _durations(profiles: ProfileBook, job_type: str, model: str) -> list[float]:
    profile = profiles.find(job_type, model)
    ran = profile.durations_s if profile is not None else []
    return ran if len(ran) >= ENOUGH_RUNS else []
