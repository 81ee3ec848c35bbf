"""What is measured of a replay: waits, completion times, failures, and how the devices were used.

A job's wait is from its arrival to the start of the run that ended it, so what died of memory before
counts as wait. A job that was given up is charged: it waits, and is not complete, until the end of the
trace. Fragmentation (after Weng et al., "Beware of Fragmentation", 2023): the share of what is free
that a job drawn from the trace's own mix could not use, on the average of the time while somebody waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from grn.replay.job import Job

__all__ = ["Figures", "Gauges", "Mix", "measure"]


class Mix:
    """What jobs of a trace ask for on a device, and how often."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        counts = Counter(job.declared_mib for job in jobs)
        self._sizes = sorted(counts)
        parts = (counts[size] / len(jobs) for size in self._sizes)
        self._up_to = [0.0, *accumulate(parts)]

    def unusable_mib(self, free_mib: int) -> float:
        """Return how much of so much free memory cannot be used, over all jobs of the mix."""
        if free_mib <= 0:
            return 0.0
        return free_mib * (1.0 - self._up_to[bisect_left(self._sizes, free_mib + 1)])


class Gauges:
    """How the devices are used, summed over time."""

    def __init__(self, jobs: Sequence[Job], devices: int, device_mib: int) -> None:
        self.waiting = 0
        self._mix = Mix(jobs) if jobs else None
        self._mib = device_mib
        self._booked = [0] * devices
        self._used = [0] * devices
        self._wanted = [0.0] * devices
        self._on = [0] * devices
        self._free = [device_mib] * devices
        self._lost = [self._unusable(device_mib)] * devices
        self._stale: set[int] = set()
        self._free_sum, self._lost_sum = sum(self._free), sum(self._lost)
        self._now = 0.0
        self.used_mib_s = self.busy_s = self.compute_s = 0.0
        self.fragments_s = self.waited_s = 0.0
        self._used_sum = self._busy = 0
        self._compute_sum = 0.0

    def _unusable(self, free_mib: int) -> float:
        return self._mix.unusable_mib(free_mib) if self._mix is not None else 0.0

    def begin(self, now: float) -> None:
        """Start the clock."""
        self._now = now

    def until(self, now: float) -> None:
        """Let time pass in the present state."""
        passed = now - self._now
        if passed <= 0.0:
            return
        self._now = now
        self.used_mib_s += passed * self._used_sum
        self.busy_s += passed * self._busy
        self.compute_s += passed * self._compute_sum
        if self.waiting:
            self.waited_s += passed
            if self._stale:
                self._look_up()
            if self._free_sum > 0:
                self.fragments_s += passed * self._lost_sum / self._free_sum

    def joined(self, device: int, mib: int, wanted: float) -> None:
        """A job starts on a device; `wanted` is the compute of all there."""
        self._on[device] += 1
        self._busy += self._on[device] == 1
        self._booked[device] += mib
        self._settle(device, wanted)

    def left(self, device: int, mib: int, used_mib: int, wanted: float) -> None:
        """A job leaves a device."""
        self._on[device] -= 1
        self._busy -= not self._on[device]
        self._booked[device] -= mib
        self._used[device] -= used_mib
        self._used_sum -= used_mib
        self._settle(device, wanted)

    def grew(self, device: int, mib: int) -> None:
        """Memory appears on a device."""
        self._used[device] += mib
        self._used_sum += mib
        self._stale.add(device)

    def rebooked(self, where: Iterable[int], mib: int) -> None:
        """What is set aside for a job changes by so much on each of its devices."""
        for device in where:
            self._booked[device] += mib
            self._stale.add(device)

    def _settle(self, device: int, wanted: float) -> None:
        self._stale.add(device)
        before = self._wanted[device]
        if wanted != before:
            full = 1.0
            self._compute_sum += (min(full, wanted)) - (min(full, before))
            self._wanted[device] = wanted

    def _look_up(self) -> None:
        """Reckon what is free; that is asked for only while somebody waits."""
        for device in self._stale:
            free = max(0, self._mib - max(self._booked[device], self._used[device]))
            if free != self._free[device]:
                self._free[device] = free
                self._lost[device] = self._unusable(free)
        self._stale.clear()
        self._free_sum, self._lost_sum = sum(self._free), sum(self._lost)


@dataclass(frozen=True, slots=True)
class Figures:
    """One row of the table. Times are in seconds, shares are of 1."""

    policy: str
    jobs: int
    makespan_h: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_max_s: float
    jct_mean_s: float
    jct_charged_s: float
    slowdown_p95: float
    ooms: int
    failed: int
    lost_gpu_h: float
    busy: float
    memory_used: float
    compute_used: float
    fragmentation: float
    probes: float
    """Device time of runs that were alone to be measured, as a share of all that was busy."""
    fairness: float | None
    """Jain's index of the users' mean slowdowns; `None` with one user."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row by column."""
        return asdict(self)


def measure(
    policy: str, jobs: Sequence[Job], gauges: Gauges, devices: int, device_mib: int, probe_s: float
) -> Figures:
    """Sum a replay up.

    Args:
        policy: its name.
        jobs: all jobs, each of which has ended.
        gauges: how the devices were used meanwhile.
        devices: how many there are.
        device_mib: the memory of each.
        probe_s: device time for which others were kept away to measure.
    """
    first = min(job.arrival_s for job in jobs)
    last = max(job.ended_s for job in jobs)
    well = [job for job in jobs if not job.failed]
    waits = sorted((last if job.failed else job.started_s) - job.arrival_s for job in jobs)
    took = [(last if job.failed else job.ended_s) - job.arrival_s for job in jobs]
    slowed = [t / job.duration_s for t, job in zip(took, jobs, strict=True)]
    span = max(1e-9, last - first) * devices
    return Figures(
        policy=policy,
        jobs=len(jobs),
        makespan_h=(last - first) / 3600,
        wait_mean_s=sum(waits) / len(waits),
        wait_p50_s=_quantile(waits, 0.5),
        wait_p95_s=_quantile(waits, 0.95),
        wait_max_s=waits[-1],
        jct_mean_s=sum(job.ended_s - job.arrival_s for job in well) / max(1, len(well)),
        jct_charged_s=sum(took) / len(took),
        slowdown_p95=_quantile(sorted(slowed), 0.95),
        ooms=sum(job.ooms for job in jobs),
        failed=len(jobs) - len(well),
        lost_gpu_h=sum(job.lost_s * job.gpus for job in jobs) / 3600,
        busy=gauges.busy_s / span,
        memory_used=gauges.used_mib_s / span / device_mib,
        compute_used=gauges.compute_s / span,
        fragmentation=gauges.fragments_s / gauges.waited_s if gauges.waited_s else 0.0,
        probes=probe_s / gauges.busy_s if gauges.busy_s else 0.0,
        fairness=_jain(jobs, slowed),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _jain(jobs: Sequence[Job], slowed: Sequence[float]) -> float | None:
    by_user: defaultdict[int, list[float]] = defaultdict(list)
    for job, times in zip(jobs, slowed, strict=True):
        by_user[job.user].append(times)
    if len(by_user) < 2:  # noqa: PLR2004 - with one user there is nothing to compare
        return None
    means = [sum(times) / len(times) for times in by_user.values()]
    return sum(means) ** 2 / (len(means) * sum(mean * mean for mean in means))
