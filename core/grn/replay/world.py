"""The simulated machine: jobs that hold memory and share compute, under a scheduler.

Model. A job's memory appears `ramp_s` after its start (half its run time, if that is shorter). If a
device then holds more than it has, the job that is growing dies of it; it is tried again a few times,
and its run so far is lost. Compute is shared: where the jobs on a device want more than all of it, each
runs at its share. A job on several devices is as slow as the slowest of them.

Promises: time never goes back; what a scheduler is told is what a broker could see; every job ends
once, by itself or given up. Must not: know any rule of a scheduler.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from grn.replay.figures import Gauges
    from grn.replay.job import Job

__all__ = ["Scheduler", "Start", "World", "WorldOptions"]

END, GROWN, LOOK, WAKE = range(4)

Start = tuple["Job", tuple[int, ...], int]
"""A job, the positions of its devices, and MiB set aside on each."""


class Scheduler(Protocol):
    """Who decides. It is told what happens and asked afterwards who starts."""

    looks_s: float
    """How long after its memory appeared a job is looked at again, where that is wanted."""
    probe_s: float
    """Device time for which others were kept away to measure, so far."""
    wakes: list[tuple[float, Job]]
    """When to wake it, since it was last asked; the world empties the list."""

    def arrived(self, job: Job, now: float) -> None:
        """Take note that a job came, or comes again after it died of memory."""

    def grown(self, job: Job, now: float) -> bool:
        """Take note that a job's memory has appeared; tell whether to look at it again."""
        ...

    def looked(self, job: Job, now: float) -> None:
        """Take note that a job's memory has not changed for `looks_s`."""

    def ended(self, job: Job, now: float) -> None:
        """Take note that a job has ended well; it still has its devices."""

    def died(self, job: Job, now: float, left_mib: int) -> bool:
        """Take note that it died of memory, `left_mib` being what others left; tell if it retries."""
        ...

    def woken(self, job: Job, now: float) -> None:
        """Go on at a time that the scheduler asked for."""

    def decide(self, now: float) -> Iterable[Start]:
        """Return who starts now."""
        ...


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What holds for all schedulers alike."""

    devices: int = 8
    device_mib: int = 32768
    ramp_s: float = 8.0
    tries: int = 4


class World:
    """Plays jobs in order of their arrival."""

    def __init__(
        self,
        jobs: Sequence[Job],
        scheduler: Scheduler,
        options: WorldOptions,
        gauges: Gauges,
        check: Callable[[World], None] | None = None,
    ) -> None:
        self.jobs = jobs
        self.options = options
        self.now = 0.0
        self.on: list[dict[int, Job]] = [{} for _ in range(options.devices)]
        self.used_mib = [0] * options.devices
        self._scheduler = scheduler
        self._gauges = gauges
        self._check = check
        self._events: list[tuple[float, int, int, Job, int]] = []
        self._number = 0
        self._wanted = [0.0] * options.devices
        self._speed = [1.0] * options.devices

    def run(self) -> None:
        """Play all to the end."""
        collects = gc.isenabled()
        gc.disable()  # nothing here refers to itself, and a look at all costs as much as the jobs
        try:
            self._run()
        finally:
            if collects:
                gc.enable()

    def _run(self) -> None:
        jobs, events, gauges = self.jobs, self._events, self._gauges
        following, count = 0, len(jobs)
        never = float("inf")
        arrives = jobs[0].arrival_s if jobs else never
        gauges.begin(arrives)
        while events or following < count:
            if events and events[0][0] < arrives:
                at = self._next_events()
            else:
                self.now = at = arrives
                gauges.until(at)
                while arrives == at:
                    gauges.waiting += 1
                    self._scheduler.arrived(jobs[following], at)
                    following += 1
                    arrives = jobs[following].arrival_s if following < count else never
            self._decide(at)

    def _next_events(self) -> float:
        """Let happen what comes next, with all that comes at the same moment."""
        events = self._events
        at = self.now = events[0][0]
        self._gauges.until(at)
        while events and events[0][0] == at:
            _, _, kind, job, version = heappop(events)
            if kind == END:
                if version == job.version:
                    job.ended_s = at
                    self._scheduler.ended(job, at)
                    self._leave(job, at)
            elif version == job.ooms:
                self._happened(kind, job, at)
        return at

    def _decide(self, now: float) -> None:
        scheduler = self._scheduler
        for job, where, mib in scheduler.decide(now):
            self._start(job, where, mib, now)
        if scheduler.wakes:
            for wake_s, job in scheduler.wakes:
                self._push(wake_s, WAKE, job)
            scheduler.wakes.clear()
        if self._check is not None:
            self._check(self)

    def _push(self, at: float, kind: int, job: Job) -> None:
        self._number += 1
        version = job.version if kind == END else job.ooms
        heappush(self._events, (at, self._number, kind, job, version))

    # -- what happens ---------------------------------------------------------------------------

    def _happened(self, kind: int, job: Job, now: float) -> None:
        if kind == GROWN:
            self._grow(job, now)
        elif kind == LOOK and job.at:
            before = job.booked_mib
            self._scheduler.looked(job, now)
            if job.booked_mib != before:
                self._gauges.rebooked(job.at, job.booked_mib - before)
        elif kind == WAKE and not job.at and job.ended_s < 0:
            self._scheduler.woken(job, now)

    def _start(self, job: Job, where: tuple[int, ...], mib: int, now: float) -> None:
        job.at, job.booked_mib, job.holds = where, mib, False
        job.started_s = job.reckoned_s = now
        job.left_s = job.duration_s
        job.version += 1
        job.speed = 1.0
        self._gauges.waiting -= 1
        slower = False
        for device in where:
            self.on[device][job.number] = job
            self._wanted[device] += job.compute
            slower |= self._wanted[device] > 1.0 + 1e-9
            self._gauges.joined(device, mib, self._wanted[device])
        if slower:
            self._pace(where, now)
        events, number, took_s = self._events, self._number, job.duration_s
        if job.speed == 1.0:
            heappush(events, (now + took_s, number, END, job, job.version))
        ramp_s = self.options.ramp_s
        grown_s = now + (min(took_s / 2, ramp_s))
        heappush(events, (grown_s, number + 1, GROWN, job, job.ooms))
        self._number = number + 2

    def _leave(self, job: Job, now: float) -> None:
        where, job.at = job.at, ()
        job.version += 1
        paced = False
        for device in where:
            del self.on[device][job.number]
            paced |= self._speed[device] < 1.0
            wanted = self._wanted[device] - job.compute if self.on[device] else 0.0
            self._wanted[device] = wanted
            if job.holds:
                self.used_mib[device] -= job.peak_mib
            self._gauges.left(device, job.booked_mib, job.peak_mib if job.holds else 0, wanted)
        if paced:
            self._pace(where, now)

    def _pace(self, where: tuple[int, ...], now: float) -> None:
        """Reckon anew how fast these devices are, and when the jobs there end."""
        for device in where:
            wanted = self._wanted[device]
            self._speed[device] = 1.0 if wanted <= 1.0 + 1e-9 else 1.0 / wanted
        speeds = self._speed
        for device in where:
            for job in self.on[device].values():
                speed = min([speeds[each] for each in job.at])
                if speed == job.speed and job.reckoned_s != now:
                    continue
                job.left_s -= (now - job.reckoned_s) * job.speed
                job.reckoned_s, job.speed = now, speed
                self._foretell(job, now)

    def _foretell(self, job: Job, now: float) -> None:
        job.version += 1
        self._push(now + max(0.0, job.left_s) / job.speed, END, job)

    def _grow(self, job: Job, now: float) -> None:
        peak, most = job.peak_mib, self.options.device_mib
        left = most - max([self.used_mib[device] for device in job.at])
        if peak > left:
            self._die(job, now, left)
            return
        job.holds = True
        for device in job.at:
            self.used_mib[device] += peak
            self._gauges.grew(device, peak)
        before = job.booked_mib
        again = self._scheduler.grown(job, now)
        if job.booked_mib != before:
            self._gauges.rebooked(job.at, job.booked_mib - before)
        if again:
            self._push(now + self._scheduler.looks_s, LOOK, job)

    def _die(self, job: Job, now: float, left_mib: int) -> None:
        job.ooms += 1
        job.lost_s += now - job.started_s
        again = self._scheduler.died(job, now, left_mib) and job.ooms < self.options.tries
        self._leave(job, now)
        if again:
            self._gauges.waiting += 1
            self._scheduler.arrived(job, now)
        else:
            job.failed = True
            job.ended_s = now
