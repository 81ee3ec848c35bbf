r"""Stop jobs: ask, terminate, kill, until no process of theirs is left.

    ASKED --(a while)--> TERMINATED --(grace)--> KILLED --> gone
                                                    \----> given up

ASKED: an interrupt is on its way to the job; it may end by itself. TERMINATED: every process had
SIGTERM (and SIGCONT, or a stopped one would never see it), new ones get it as they appear. KILLED:
every process gets SIGKILL, again and again. Processes that survive that (another user's, or stuck
in a driver) are named and given up after a while: waiting for them could last for ever, and the
broker keeps their share booked as long as they hold device memory.

Promises: that no descriptors are left, or no memory, puts a step off and ends nothing.
Must not decide *whether* a job is to be stopped.
"""

from __future__ import annotations

import signal

from grn.supervise.spare import Spare
from grn.supervise.tree import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.supervise.loop import Loop, Timer
    from grn.supervise.tree import Census, Owner

__all__ = ["Stopper"]

ASKED, TERMINATED, KILLED = "asked", "terminated", "killed"

_TICK_S = 0.05
_SCAN_ALL_EVERY = 10  # ticks: the scan of every process on the machine is the dear part
_GIVE_UP_S = 10.0


class _Stop:
    """One job on its way out."""

    __slots__ = ("deadline", "grace_s", "on_gone", "owner", "phase", "reconsider", "terminated")

    def __init__(
        self,
        owner: Owner,
        grace_s: float,
        on_gone: Callable[[list[int]], None],
        reconsider: Callable[[], bool],
    ) -> None:
        self.owner = owner
        self.grace_s = grace_s
        self.on_gone = on_gone
        self.reconsider = reconsider
        self.phase = ASKED
        self.deadline = 0.0
        self.terminated: set[tuple[int, int]] = set()


class Stopper:
    """Carries out all stops of this process with one walk of the tree per tick.

    `sweep`: every job that runs is being stopped, so what is nobody's below us goes with them.
    """

    def __init__(self, loop: Loop, census: Census, prepare: Callable[[], None]) -> None:
        self.sweep = False
        self._loop = loop
        self._census = census
        self._prepare = prepare
        self._stops: dict[Owner, _Stop] = {}
        self._timer: Timer | None = None
        self._ticks = 0
        self._spare = Spare()

    def begin(
        self,
        owner: Owner,
        *,
        ask_s: float,
        grace_s: float,
        on_gone: Callable[[list[int]], None],
        reconsider: Callable[[], bool],
    ) -> None:
        """Stop a job; `on_gone(survivors)` is called when that is over.

        `ask_s` is how long the job may end by itself first. When that time is up, `reconsider()`
        may call the stop off by returning True; `on_gone` is not called then.
        """
        if owner in self._stops:
            return
        stop = _Stop(owner, grace_s, on_gone, reconsider)
        stop.deadline = self._loop.now() + ask_s
        self._stops[owner] = stop
        self.wake()

    def is_stopping(self, owner: Owner) -> bool:
        """Tell whether a stop of this job is under way."""
        return owner in self._stops

    def hurry(self) -> None:
        """Kill at once what is being stopped."""
        for stop in self._stops.values():
            stop.grace_s = 0.0
            if stop.phase != KILLED:
                self._enter(stop, KILLED)
        self.wake()

    def press(self) -> None:
        """Let nothing end by itself any more: terminate what was only asked so far."""
        for stop in self._stops.values():
            if stop.phase == ASKED:
                self._enter(stop, TERMINATED)
        self.wake()

    def wake(self) -> None:
        """Look again at the next turn of the loop: something has changed."""
        if self._stops:
            self._schedule(0.0)

    def _schedule(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        gone: list[tuple[_Stop, list[int]]] = []
        with self._spare:
            for stop, processes in self._look_around().items():
                if self._is_over(stop, processes):
                    gone.append((stop, sorted(processes)))
        for stop, survivors in gone:
            stop.on_gone(survivors)
        if self._stops and self._timer is None:
            self._schedule(_TICK_S)

    def _look_around(self) -> dict[_Stop, dict[int, int]]:
        """Find the processes of all stops; nothing at all if nobody can look now."""
        everywhere = self._ticks % _SCAN_ALL_EVERY == 0
        owners = list(self._stops)
        heir = owners[0] if self.sweep and owners else None
        try:
            self._prepare()
            found = self._census.take(owners, heir=heir, everywhere=everywhere)
            if not everywhere and not all(found.values()):
                found = self._census.take(owners, heir=heir, everywhere=True)
        except OSError:  # out of descriptors or memory: what is to be done is done later
            return {}
        self._ticks += 1
        return {stop: found[owner] for owner, stop in self._stops.items()}

    def _is_over(self, stop: _Stop, processes: dict[int, int]) -> bool:
        """Take a stop one step on; tell whether it is over and its end is to be told."""
        over = self._loop.now() >= stop.deadline
        if not processes or (over and stop.phase == KILLED):
            del self._stops[stop.owner]
            return True
        if over and stop.phase == ASKED and stop.reconsider():
            del self._stops[stop.owner]
            return False
        if over:
            self._enter(stop, TERMINATED if stop.phase == ASKED else KILLED)
        if stop.phase == TERMINATED:
            self._terminate(stop, processes)
        elif stop.phase == KILLED:
            _signal_all(processes, signal.SIGKILL)
        return False

    def _enter(self, stop: _Stop, phase: str) -> None:
        stop.phase = phase
        patience_s = stop.grace_s if phase == TERMINATED else _GIVE_UP_S
        stop.deadline = self._loop.now() + patience_s

    @staticmethod
    def _terminate(stop: _Stop, processes: dict[int, int]) -> None:
        # Parents come first: a shell whose command dies before its own TERM would run the next one.
        fresh = {
            pid: start for pid, start in processes.items() if (pid, start) not in stop.terminated
        }
        reached = _signal_all(fresh, signal.SIGTERM)
        stop.terminated |= reached.items()
        _signal_all(reached, signal.SIGCONT)


def _signal_all(processes: dict[int, int], number: int) -> dict[int, int]:
    """Signal all that can be; return those that need not be tried again."""
    done: dict[int, int] = {}
    for pid, start in processes.items():
        try:
            send(pid, start, number)
        except PermissionError:
            # It runs as another user now (sudo). It is named when the stop is given up.
            pass
        except OSError:  # out of descriptors or memory, for now
            continue
        done[pid] = start
    return done
