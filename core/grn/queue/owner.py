"""The one process that works a queue off: it starts the next job whenever one may start.

Everything that happens is one of four: the list has changed, a runner has ended, a runner has asked
the broker (so the next one may ask after it), a signal. After each of them the owner looks at the list.

Promises: one owner for a queue, by a lock that dies with it; jobs are asked for in the order of the
list; a few wait at the broker at a time, so that small ones may pass where that delays nobody; runners
of an owner that was killed are watched again, or their jobs marked lost if they are gone.
Must not: keep the list open across a fork, or be needed by a job that runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from grn.errors import JournalError
from grn.queue.changes import Changes, touch
from grn.queue.lock import take
from grn.queue.runner import become, identity
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.supervise.loop import READABLE, Loop
from grn.supervise.signals import Signals

if TYPE_CHECKING:
    from grn.queue.entry import Entry
    from grn.queue.places import Places

__all__ = ["DRAIN", "IDLE", "STOP", "STOP_NOW", "Owner", "say", "tell_runner"]

IDLE, DRAIN = "idle", "drain"
STOP, STOP_NOW = "stop", "now"
_MOST_ASKING = 4
_TRY_AGAIN_S = 1.0


def tell_runner(entry: Entry, number: int) -> bool:
    """Signal the runner of a job, if it still is the process that it was."""
    if entry.runner is None:
        return False
    pid, _ = entry.runner
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if (
            identity(pid) != entry.runner
        ):  # checked through the descriptor's life: no other takes the number
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


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
        self._called_back: set[tuple[int, int]] = set()
        self._adopt()

    # -- taking over ----------------------------------------------------------------------------

    def _adopt(self) -> None:
        """See to the jobs that a former owner had started."""
        with Store(self._places) as store:
            store.set_control(stop="")
            for entry in store.entries(q.ACTIVE):
                if entry.state == q.STARTING:
                    store.requeue_unclaimed(entry.id, entry.attempt)
                elif not self._watch(entry):
                    store.lost(entry.id, entry.attempt, _gone("while no owner watched"))

    def _watch(self, entry: Entry) -> bool:
        """Watch a runner that is not our child; `False` if it is gone."""
        if entry.runner is None:
            return False
        pid, _ = entry.runner
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        if identity(pid) != entry.runner:
            os.close(pidfd)
            return False
        self._adopted[pidfd] = (pid, entry.id, entry.attempt)
        self._loop.watch(pidfd, READABLE, lambda: self._adopted_ended(pidfd))
        say(f"job {entry.id} of a former owner goes on (runner {pid})")
        return True

    def _adopted_ended(self, pidfd: int) -> None:
        _, job, attempt = self._adopted.pop(pidfd)
        self._loop.unwatch(pidfd)
        os.close(pidfd)
        self._ended(job, attempt, _gone("without a word of how"))

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Work."""
        self._loop.watch(self._signals.fd, READABLE, self._on_signals)
        self._loop.watch(self._changes.fileno(), READABLE, self._on_changes)
        self._look()
        self._loop.run(lambda: self._done)
        say("the owner of the queue ends")
        os.close(self._lock)
        touch(self._places.changes)

    def _on_changes(self) -> None:
        self._changes.drain()
        self._look()

    def _on_signals(self) -> None:
        for arrival in self._signals.read():
            if arrival.number == signal.SIGCHLD:
                self._reap()
            elif arrival.number != signal.SIGHUP:  # the terminal may close
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
                number = os.waitstatus_to_exitcode(status)
                how = f"by signal {-number}" if number < 0 else f"with {number}"
                self._ended(job, attempt, _gone(how))

    def _ended(self, job: int, attempt: int, why: str) -> None:
        """A runner has ended: normally it has said how its job did."""
        try:
            with Store(self._places) as store:
                if store.requeue_unclaimed(job, attempt):
                    say(f"job {job}: its runner ended before it began; it is queued again")
                    self._later()
                elif store.lost(job, attempt, why):
                    say(f"job {job} is lost: {why}")
        except JournalError as error:
            self._tell(error.message)
            self._loop.later(_TRY_AGAIN_S, lambda: self._ended(job, attempt, why))

    def _later(self) -> None:
        """Look again in a while: what just failed may fail at once again."""
        self._pause = True
        self._loop.later(_TRY_AGAIN_S, self._resume)

    def _resume(self) -> None:
        self._pause = False
        self._look()

    # -- looking at the list --------------------------------------------------------------------

    def _look(self) -> None:
        try:
            while not self._done and self._start_next():
                pass
            self._problem = ""
        except (JournalError, OSError) as error:
            self._tell(error.message if isinstance(error, JournalError) else str(error))
            self._later()

    def _start_next(self) -> bool:
        """Start one job if one may start; say whether another look is worth it."""
        with Store(self._places) as store:
            asked_to_stop = store.control("stop")
            if asked_to_stop and asked_to_stop != self._stopping:
                self._stop(asked_to_stop)
            asking = store.entries((q.STARTING, q.WAITING))
            self._recall(asking, everybody=bool(self._stopping) or store.control("paused") == "1")
            if self._stopping or store.control("paused") == "1":
                self._done = bool(self._stopping) and not asking
                return False
            if self._turn is not None or self._pause or len(asking) >= _MOST_ASKING:
                return False
            if any(entry.recalled for entry in asking):
                return False  # until all are back, the order is not that of the list
            limit = int(store.control("limit") or 0)
            if limit and len(asking) + store.counts().get(q.RUNNING, 0) >= limit:
                return False
            entry = store.take_next()
            if entry is None:
                mode = store.control("mode") or self._mode
                self._done = mode == DRAIN and self._is_drained(store)
                return False
        self._start(entry)
        return True

    @staticmethod
    def _is_drained(store: Store) -> bool:
        counts = store.counts()
        return not any(counts.get(state) for state in (q.QUEUED, *q.ACTIVE))

    def _start(self, entry: Entry) -> None:
        told, tell = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()  # we have no thread, and the list is not open
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

    def _recall(self, asking: list[Entry], *, everybody: bool) -> None:
        """Call back those that wait at the broker, if others were put before them."""
        for entry in asking:
            told = (entry.id, entry.attempt)
            if entry.state != q.WAITING or not (entry.recalled or everybody):
                continue
            if told in self._called_back:
                continue
            self._called_back.add(told)
            if everybody and not entry.recalled:
                with Store(self._places) as store:
                    store.recall(entry.id)
            tell_runner(entry, signal.SIGTERM)

    def _stop(self, how: str) -> None:
        self._stopping = how
        say("takes no more jobs; those that run go on" if how == STOP else "ends all jobs")
        if how != STOP_NOW:
            return
        with Store(self._places) as store:
            for entry in store.entries((q.RUNNING,)):
                store.cancel(entry.id, "the queue was stopped")
                tell_runner(entry, signal.SIGTERM)

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            say(problem)


def _gone(how: str) -> str:
    return f"its runner ended {how}, so nobody knows how the job ended"


def say(text: str) -> None:
    """Write a line with the time to standard error, which is the owner's log."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stderr.write(f"{stamp} {text}\n")
    sys.stderr.flush()
