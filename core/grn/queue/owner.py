"""The one process that works a queue off: it starts the next job whenever one may start.

Everything that happens is one of four: the list has changed, a runner has ended, a runner has asked
the broker (so the next one may ask after it), a signal. After each of them the owner looks at the list.

Promises: one owner for a queue, by a lock that dies with it; jobs are asked for in the order of the
list; a few wait at the broker at a time, so that small ones may pass where that delays nobody; runners
of an owner that was killed are watched again, or their jobs marked lost if they are gone; a disk that is
full, or a broker that cannot be had, makes it wait, not end.
Must not: keep the list open across a fork, or be needed by a job that runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from grn.errors import GrnError
from grn.queue.changes import Changes, touch
from grn.queue.lock import still_holds, take
from grn.queue.runner import NO_BROKER, become
from grn.queue.running import tell_runner, watched
from grn.queue.worklist import Worklist
from grn.rules import queueing as q
from grn.supervise.loop import READABLE, Loop
from grn.supervise.signals import Signals

if TYPE_CHECKING:
    from grn.queue.entry import Entry
    from grn.queue.places import Places

__all__ = ["DRAIN", "IDLE", "STOP", "STOP_NOW", "Owner", "say"]

IDLE, DRAIN = "idle", "drain"
STOP, STOP_NOW = "stop", "now"
_MOST_ASKING = 4
_TRY_AGAIN_S = 1.0
_LONGEST_PUT_OFF_S = 60.0


class Owner:
    """Works the queue off until it is told to stop, or, to drain it, until nothing is left."""

    def __init__(self, places: Places, *, mode: str) -> None:
        """Take the queue.

        Raises:
            AlreadyOwned: somebody has it.
            JournalError: the list cannot be used.
        """
        self._places = places
        self._mode = mode
        places.prepare()
        self._lock = take(places)
        self._loop = Loop()
        self._signals = Signals()
        self._changes = Changes([places.changes])
        self._changes.add_home(places.folder)
        self._runners: dict[int, tuple[int, int]] = {}
        """Pid -> the job and its attempt, of runners that are ours to wait for."""
        self._adopted: dict[int, tuple[int, int, int]] = {}
        """Pidfd -> pid, job and attempt, of a former owner's runners."""
        self._turn: int | None = None
        """The pipe of the runner that has not asked yet."""
        self._stopping = ""
        self._done = False
        self._problem = ""
        self._pause = False
        """Something has just failed: the list is looked at again in a while."""
        self._put_off: dict[int, float] = {}
        """Jobs whose runners could not even ask, and for how long each is left alone."""
        self._resting: set[int] = set()
        self._called_back: set[tuple[int, int]] = set()
        self._adopt()

    # -- taking over ----------------------------------------------------------------------------

    def _adopt(self) -> None:
        """See to the jobs that a former owner had started."""
        with Worklist(self._places) as store:
            store.set_control(stop="")
            for entry in store.entries(q.ACTIVE):
                if not self._watch(entry):
                    now = store.gone(entry.id, entry.attempt, _gone("while no owner watched"))
                    if now:
                        say(f"job {entry.id} of a former owner is {now}: its runner is gone")

    def _watch(self, entry: Entry) -> bool:
        """Watch a runner that is not our child; `False` if it is gone, or has claimed nothing."""
        if entry.state == q.STARTING:
            return False
        pidfd = watched(entry)
        if pidfd is None:
            return False
        pid = entry.runner[0] if entry.runner is not None else 0
        self._adopted[pidfd] = (pid, entry.id, entry.attempt)
        self._loop.watch(pidfd, READABLE, lambda: self._adopted_ended(pidfd))
        say(f"job {entry.id} of a former owner goes on (runner {pid})")
        return True

    def _adopted_ended(self, pidfd: int) -> None:
        _, job, attempt = self._adopted.pop(pidfd)
        self._loop.unwatch(pidfd)
        os.close(pidfd)
        self._ended(job, attempt, _gone("without a word of how"))
        self._look()

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Work."""
        self._loop.watch(self._signals.fd, READABLE, self._on_signals)
        self._loop.watch(self._changes.fileno(), READABLE, self._on_changes)
        self._look()
        self._loop.run(lambda: self._done)
        say("the owner of the queue ends")
        os.close(self._lock)
        try:
            touch(self._places.changes)
        except OSError as error:
            say(f"{self._places.changes}: {error.strerror}")

    def _on_changes(self) -> None:
        self._changes.drain()
        if not still_holds(self._places, self._lock):
            say(f"{self._places.lock} was removed, so the queue is not ours any more")
            self._done = True
            return
        self._look()

    def _on_signals(self) -> None:
        for arrival in self._signals.read():
            if arrival.number == signal.SIGCHLD:
                self._reap()
            elif arrival.number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
                self._stop(STOP_NOW if self._stopping else STOP)
        self._look()

    def _reap(self) -> None:
        while self._runners:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            job, attempt = self._runners.pop(pid, (0, 0))
            if job:
                code = os.waitstatus_to_exitcode(status)
                how = f"by signal {-code}" if code < 0 else f"with {code}"
                self._ended(job, attempt, _gone(how), asked=code != NO_BROKER)

    def _ended(self, job: int, attempt: int, why: str, *, asked: bool = True) -> None:
        """A runner has ended: normally it has said how its job did."""
        self._called_back.discard((job, attempt))
        try:
            with Worklist(self._places) as store:
                now = store.gone(job, attempt, why, keep_reason=not asked)
        except (GrnError, OSError) as error:
            self._tell(str(error))
            self._loop.later(_TRY_AGAIN_S, lambda: self._ended(job, attempt, why, asked=asked))
            return
        if now:
            say(f"job {job} is {now}: {why if now == q.LOST else 'its runner ended before it ran'}")
        if now == q.QUEUED:
            self._leave_alone(job)
        else:
            self._put_off.pop(job, None)

    def _leave_alone(self, job: int) -> None:
        """Do not start a job for a while whose runner could not even ask; others may."""
        pause_s = min(2 * self._put_off.get(job, _TRY_AGAIN_S / 2), _LONGEST_PUT_OFF_S)
        self._put_off[job] = pause_s
        self._resting.add(job)

        def over() -> None:
            self._resting.discard(job)
            self._look()

        self._loop.later(pause_s, over)

    def _later(self) -> None:
        """Look again in a while: what just failed may fail at once again."""
        if not self._pause:
            self._pause = True
            self._loop.later(_TRY_AGAIN_S, self._resume)

    def _resume(self) -> None:
        self._pause = False
        self._look()

    # -- looking at the list --------------------------------------------------------------------

    def _look(self) -> None:
        if self._pause:
            return
        try:
            while not self._done and self._start_next():
                pass
            self._problem = ""
        except (GrnError, OSError) as error:
            self._tell(str(error))
            self._later()

    def _start_next(self) -> bool:
        """Start one job if one may start; say whether another look is worth it."""
        with Worklist(self._places) as store:
            controls = store.controls()
            self._obey(store, controls.get("stop", ""))
            asking = store.entries((q.STARTING, q.WAITING))
            paused = bool(self._stopping) or controls.get("paused") == "1"
            self._recall(store, asking, everybody=paused)
            if paused:
                self._done = bool(self._stopping) and not asking
                return False
            if self._turn is not None or len(asking) >= _MOST_ASKING:
                return False
            if any(entry.recalled for entry in asking):
                return False  # until all are back, the order is not that of the list
            limit = int(controls.get("limit") or 0)
            if limit and len(asking) + store.counts().get(q.RUNNING, 0) >= limit:
                return False
            entry = store.take_next(sorted(self._resting))
            if entry is None:
                mode = controls.get("mode") or self._mode
                self._done = mode == DRAIN and self._is_drained(store)
                return False
        self._start(entry)
        return True

    @staticmethod
    def _is_drained(store: Worklist) -> bool:
        counts = store.counts()
        return not any(counts.get(state) for state in (q.QUEUED, *q.ACTIVE))

    def _start(self, entry: Entry) -> None:
        told, tell = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()  # we have no thread, and the list is not open
        except OSError:  # too many processes: `_look` says so; the job is not lost
            os.close(told)
            os.close(tell)
            self._ended(entry.id, entry.attempt, "")
            raise
        if pid == 0:
            become(entry, self._places, tell, self._signals.restore_in_child)
        os.close(tell)
        self._runners[pid] = (entry.id, entry.attempt)
        self._turn = told
        self._loop.watch(told, READABLE, self._turn_is_over)

    def _turn_is_over(self) -> None:
        if self._turn is not None:
            self._loop.unwatch(self._turn)
            os.close(self._turn)
            self._turn = None
        self._look()

    def _recall(self, store: Worklist, asking: list[Entry], *, everybody: bool) -> None:
        """Call back those that wait at the broker, if others were put before them.

        A job that is marked as recalled cannot start any more, so its runner can be told to end.
        """
        for entry in asking:
            told = (entry.id, entry.attempt)
            if entry.state != q.WAITING or told in self._called_back:
                continue
            if entry.recalled or (everybody and store.recall(entry.id)):
                self._called_back.add(told)
                tell_runner(entry, signal.SIGTERM)

    def _obey(self, store: Worklist, wish: str) -> None:
        if wish and wish != self._stopping:
            self._stop(wish)
        if self._stopping == STOP_NOW:
            for entry in store.cancel_running():
                tell_runner(entry, signal.SIGTERM)

    def _stop(self, how: str) -> None:
        self._stopping = how
        say("takes no more jobs; those that run go on" if how == STOP else "ends all jobs")

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            say(problem)


def _gone(how: str) -> str:
    return f"its runner ended {how}, so nobody knows how the job ended"


def say(text: str) -> None:
    """Write a line with the time to standard error, which is the owner's log."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        sys.stderr.write(f"{stamp} {text}\n")
        sys.stderr.flush()
    except OSError:  # a full disk, a closed terminal: no reason to leave the jobs alone
        return
