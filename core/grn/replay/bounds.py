"""What no scheduler can beat on a trace.

The pool: all devices as one, of which a job needs its share of compute times its run time, shared out
by the shortest remaining time first, which is the best there is for the mean. No job is faster than its
own length. (Several jobs at once on one device do not make more than all of it.)
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.replay.job import Job

__all__ = ["Bounds", "bounds_of"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of the mean completion time and the makespan, and how loaded the machine is."""

    jct_mean_s: float
    makespan_h: float
    load_whole: float
    """Device time wanted as a share of all between the first and the last arrival."""
    load_shares: float
    """The same, of each device only the share that was asked for."""


def bounds_of(jobs: Sequence[Job], devices: int) -> Bounds:
    """Reckon the bounds of a trace, whose jobs are in order of arrival."""
    works = [job.duration_s * job.gpus * job.compute / devices for job in jobs]
    took, ended_s = _pooled(jobs, works)
    first, last = jobs[0].arrival_s, jobs[-1].arrival_s
    longest = max(job.arrival_s + job.duration_s for job in jobs)
    span = max(1e-9, last - first)
    return Bounds(
        jct_mean_s=max(took, sum(job.duration_s for job in jobs)) / len(jobs),
        makespan_h=(max(ended_s, longest) - first) / 3600,
        load_whole=sum(job.duration_s * job.gpus for job in jobs) / devices / span,
        load_shares=sum(works) / span,
    )


def _pooled(jobs: Sequence[Job], works: Sequence[float]) -> tuple[float, float]:
    """Return the sum of completion times on the pool, and when it is done."""
    heap: list[tuple[float, int]] = []
    now, took, following = 0.0, 0.0, 0
    while heap or following < len(jobs):
        if not heap:
            now = max(now, jobs[following].arrival_s)
        while following < len(jobs) and jobs[following].arrival_s <= now:
            heappush(heap, (works[following], following))
            following += 1
        left_s, number = heappop(heap)
        arrives = jobs[following].arrival_s if following < len(jobs) else float("inf")
        if now + left_s <= arrives:
            now += left_s
            took += now - jobs[number].arrival_s
        else:
            heappush(heap, (left_s - (arrives - now), number))
            now = arrives
    return took, now
