"""What people do without GRN, to compare with: written here, in the plainest form.

- `Fifo`: a whole device for each, strictly in order.
- `Fifo` with patience: the same, but a smaller job may overtake a larger one that has not yet waited
  for two hours. (That is how the others below overtake, too.)
- `BestFit`: what was declared is booked; the fitting device with least room is taken.
- `Fgd`: declared, on the device whose free memory becomes the least less useful to the trace's own mix
  of jobs (fragmentation gradient descent, after Weng et al., 2023).
- `Grn0`: the original gpu-resource-negotiator 0.2.4, policy "spread", as it was read and observed, with
  two kindnesses: a job that died of memory is tried again, and its device is not locked for ever.

Must not: use any rule of ours.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.replay.figures import Mix
    from grn.replay.job import Job
    from grn.replay.world import Start, WorldOptions

__all__ = ["PATIENCE_S", "Baseline", "BestFit", "Fgd", "Fifo", "Grn0"]

PATIENCE_S = 7200.0


class Baseline:
    """Jobs wait in order of arrival; the first that can be placed starts.

    Args:
        world: the machine.
        patience_s: who has waited longer than that is not overtaken any more.
    """

    looks_s = 0.0
    probe_s = 0.0

    def __init__(self, world: WorldOptions, patience_s: float = PATIENCE_S) -> None:
        self.world = world
        self.free_mib = [world.device_mib] * world.devices
        self.jobs_on = [0] * world.devices
        self.wakes: list[tuple[float, Job]] = []
        self._patience_s = patience_s
        self._queues: defaultdict[tuple[int, int], deque[Job]] = defaultdict(deque)
        self._changed = False

    def need_mib(self, job: Job) -> int:
        """Return what is booked for a job on each of its devices."""
        return job.declared_mib

    def choose(self, job: Job, need_mib: int) -> tuple[int, ...] | None:
        """Return where a job goes, if it can go anywhere."""
        raise NotImplementedError

    # -- what happens ---------------------------------------------------------------------------

    def arrived(self, job: Job, now: float) -> None:
        """Queue a job; one that comes again has kept its place."""
        del now
        queue = self._queues[job.gpus, self.need_mib(job)]
        place = len(queue)
        while place and queue[place - 1].number > job.number:
            place -= 1
        queue.insert(place, job)
        self._changed = True

    def grown(self, job: Job, now: float) -> bool:
        """Nobody looks."""
        del job, now
        return False

    def looked(self, job: Job, now: float) -> None:
        """Nobody asked for it."""

    def ended(self, job: Job, now: float) -> None:
        """Free its devices."""
        del now
        self._give_back(job)

    def died(self, job: Job, now: float, left_mib: int) -> bool:
        """Free its devices, and try it again."""
        del now, left_mib
        self._give_back(job)
        return True

    def _give_back(self, job: Job) -> None:
        for device in job.at:
            self.free_mib[device] += job.booked_mib
            self.jobs_on[device] -= 1
        self._changed = True

    def woken(self, job: Job, now: float) -> None:
        """Nobody asked for it."""

    # -- decisions ------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Start]:
        """Start what can be started."""
        if not self._changed:
            return []
        self._changed = False
        starts: list[Start] = []
        for job, queue in self._in_order(now):
            need = self.need_mib(job)
            where = self.choose(job, need)
            if where is None:
                continue
            queue.popleft()
            starts.append((job, where, need))
            for device in where:
                self.free_mib[device] -= need
                self.jobs_on[device] += 1
        return starts

    def _in_order(self, now: float) -> Iterator[tuple[Job, deque[Job]]]:
        """Yield the first of each size, in order of arrival; sizes that found no room are left."""
        queues = [queue for queue in self._queues.values() if queue]
        while queues:
            queue = min(queues, key=_first)
            job = queue[0]
            yield job, queue
            if queue and queue[0] is job:  # it was not placed
                if now - job.arrival_s >= self._patience_s:
                    return
                queues.remove(queue)
            elif not queue:
                queues.remove(queue)


def _first(queue: deque[Job]) -> int:
    return queue[0].number


class Fifo(Baseline):
    """Whole devices. With no patience at all it is strictly first come, first served."""

    def need_mib(self, job: Job) -> int:
        """Book all of a device."""
        del job
        return self.world.device_mib

    def choose(self, job: Job, need_mib: int) -> tuple[int, ...] | None:
        """Take the first that are empty."""
        del need_mib
        return _empty(self.jobs_on, job.gpus)


class BestFit(Baseline):
    """Declared needs, on the device with least room; jobs of several devices take whole ones."""

    def choose(self, job: Job, need_mib: int) -> tuple[int, ...] | None:
        """Take the tightest fit."""
        if job.gpus > 1:
            return _empty(self.jobs_on, job.gpus)
        fits = [(free, n) for n, free in enumerate(self.free_mib) if free >= need_mib]
        return (min(fits)[1],) if fits else None


class Fgd(Baseline):
    """Declared needs, where least of what is free becomes useless."""

    def __init__(self, world: WorldOptions, mix: Mix) -> None:
        super().__init__(world)
        self._mix = mix

    def choose(self, job: Job, need_mib: int) -> tuple[int, ...] | None:
        """Go down the gradient of fragmentation; of equal ones, take the tightest."""
        if job.gpus > 1:
            return _empty(self.jobs_on, job.gpus)
        unusable = self._mix.unusable_mib
        fits = [
            (unusable(free - need_mib) - unusable(free), free, n)
            for n, free in enumerate(self.free_mib)
            if free >= need_mib
        ]
        return (min(fits)[2],) if fits else None


class Grn0(Baseline):
    """The original: measured memory only, a booking that lasts 0.1 s, waiters that poll.

    An unknown type gets the emptiest device that is not locked, whatever is free there, and locks it
    until it has ended; others of the type wait. A known one gets the emptiest unlocked device, if it
    has room; no other device is tried. Nothing orders those that wait. It knows no jobs of several devices.
    """

    _BOOKED_S = 0.1
    _FIRST_S, _LONGEST_S = 0.1, 5.0

    def __init__(self, world: WorldOptions) -> None:
        super().__init__(world)
        self._known: dict[str, int] = {}
        self._locked: dict[int, Job] = {}
        self._measured: dict[str, int] = {}
        self._used = [0] * world.devices
        self._recent: deque[tuple[float, int, int]] = deque()
        self._pause: dict[int, float] = {}
        self._ask: list[Job] = []

    def arrived(self, job: Job, now: float) -> None:
        """Ask at once, and again after a pause that doubles."""
        del now
        self._pause[job.number] = self._FIRST_S
        self._ask.append(job)

    def woken(self, job: Job, now: float) -> None:
        """Ask again."""
        del now
        self._ask.append(job)

    def grown(self, job: Job, now: float) -> bool:
        """The driver shows it from now on."""
        del now
        for device in job.at:
            self._used[device] += job.peak_mib
        return False

    def ended(self, job: Job, now: float) -> None:
        """The first that ended well is the profile for good."""
        del now
        self._known.setdefault(job.type, job.peak_mib)
        for device in job.at:
            self._used[device] -= job.peak_mib
        self._unlock(job)

    def died(self, job: Job, now: float, left_mib: int) -> bool:
        """Nothing is learnt; its type may be tried again."""
        del now, left_mib
        self._unlock(job)
        return True

    def _unlock(self, job: Job) -> None:
        for device in job.at:
            if self._locked.get(device) is job:
                del self._locked[device]
                del self._measured[job.type]

    def decide(self, now: float) -> list[Start]:
        """Answer those that ask."""
        starts: list[Start] = []
        for job in self._ask:
            where = self._answer(job, now)
            if where is None:
                pause = self._pause[job.number]
                self._pause[job.number] = min(self._LONGEST_S, pause * 2)
                self.wakes.append((now + pause, job))
            else:
                starts.append((job, (where,), 0))
        self._ask.clear()
        return starts

    def _answer(self, job: Job, now: float) -> int | None:
        while self._recent and self._recent[0][0] <= now - self._BOOKED_S:
            self._recent.popleft()
        unlocked = [n for n in range(self.world.devices) if n not in self._locked]
        if not unlocked:
            return None
        used = list(self._used)
        for _, device, mib in self._recent:
            used[device] += mib
        best = min(unlocked, key=lambda n: (used[n], -n))
        known = self._known.get(job.type)
        if known is None:
            if job.type in self._measured:
                return None
            self._measured[job.type] = job.number
            self._locked[best] = job
            return best
        if self.world.device_mib - used[best] < known:
            return None
        self._recent.append((now, best, known))
        return best


def _empty(jobs_on: list[int], count: int) -> tuple[int, ...] | None:
    empty = [n for n, jobs in enumerate(jobs_on) if not jobs][:count]
    return tuple(empty) if len(empty) == count else None
