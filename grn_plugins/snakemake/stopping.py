"""The jobs of one run that wait for a lease or have one, and how they are ended.

Promises: who only waits is woken at once, and holds nothing afterwards; who runs is asked first and
killed after a grace, with all that it has started; a signal's handler takes no lock.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from typing import TYPE_CHECKING, Protocol

from grn import procs
from grn.errors import Cancelled
from grn.supervise.tree import send
from grn_plugins.snakemake.warden import Warden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["NotStartedError", "Running", "Stoppable", "end_marked", "when_terminated"]

GRACE_S = 5.0
_TICK_S = 0.05
_GIVE_UP_S = 5.0


class NotStartedError(Exception):
    """A job that was waiting when the run came to its end: nothing of it has run."""


class Withdrawable(Protocol):
    """A request that waits."""

    def withdraw(self, why: str = ...) -> None:
        """Wake it up: it is not wanted any more."""
        ...


class Stoppable(Protocol):
    """A job that runs."""

    def stop(self) -> None:
        """Ask it to end, and see to it."""
        ...

    def hurry(self) -> None:
        """Kill it."""
        ...


class Running:
    """What waits and what runs. All methods may be called by any thread."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.warden = Warden(grace_s)
        self._lock = threading.Lock()
        self._turns: set[Withdrawable] = set()
        self._jobs: set[Stoppable] = set()
        self._closed = ""
        self._stopped = False
        self._on_waiting: Callable[[], None] = lambda: None

    def on_waiting(self, then: Callable[[], None]) -> None:
        """Have `then` called whenever somebody begins to wait for a lease."""
        self._on_waiting = then

    @property
    def closed(self) -> str:
        """Why nothing is started any more, "" if it is."""
        return self._closed

    @contextlib.contextmanager
    def waiting(self, turn: Withdrawable) -> Iterator[None]:
        """Let a request be withdrawn while it waits.

        Raises:
            NotStartedError: if it was, or nothing is started any more.
        """
        with self._lock:
            self._refuse_late()
            self._turns.add(turn)
        try:
            self._on_waiting()
            yield
        except Cancelled:
            raise NotStartedError(self._closed or "it was withdrawn") from None
        finally:
            with self._lock:
                self._turns.discard(turn)

    def refuse_late(self) -> None:
        """Start nothing any more once the run is coming to its end.

        Raises:
            NotStartedError: if it is.
        """
        with self._lock:
            self._refuse_late()

    def _refuse_late(self) -> None:
        if self._closed:
            raise NotStartedError(self._closed)

    @contextlib.contextmanager
    def running(self, job: Stoppable) -> Iterator[None]:
        """Let a job be stopped while it runs."""
        with self._lock:
            self._jobs.add(job)
            stopped = self._stopped
        if stopped:
            job.stop()
        try:
            yield
        finally:
            with self._lock:
                self._jobs.discard(job)

    def waits(self) -> bool:
        """Whether somebody waits for a lease."""
        return bool(self._turns)

    def close(self, why: str) -> None:
        """Start nothing any more: withdraw all that waits, and let run what runs."""
        with self._lock:
            self._closed = self._closed or why
            turns = list(self._turns)
        for turn in turns:
            turn.withdraw(why)

    def stop(self, why: str) -> None:
        """Withdraw all that waits, and stop all that runs."""
        self.close(why)
        for job in self._all(stopped=True):
            job.stop()

    def hurry(self) -> None:
        """Kill what runs still."""
        for job in self._all(stopped=True):
            job.hurry()

    def _all(self, *, stopped: bool = False) -> list[Stoppable]:
        with self._lock:
            self._stopped = self._stopped or stopped
            return list(self._jobs)


# -- SIGTERM --------------------------------------------------------------------------------------


def when_terminated(then: Callable[[], None]) -> None:
    """Have `then` called, by a thread of its own, when SIGTERM has arrived; after who handles it now.

    Nothing where this is not the main thread: Snakemake handles no signal there either.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)
    told: queue.SimpleQueue[None] = queue.SimpleQueue()  # the one queue that a handler may use

    def handle(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        told.put(None)

    def attend() -> None:
        told.get()
        then()

    signal.signal(signal.SIGTERM, handle)
    threading.Thread(target=attend, name="grn-sigterm", daemon=True).start()


# -- what a failed job leaves behind --------------------------------------------------------------


def end_marked(lease: str, grace_s: float) -> None:
    """End the processes that carry the mark of a lease: the rest of a job that has failed."""
    deadline = time.monotonic() + grace_s
    asked: dict[int, int] = {}
    while found := _marked(lease):
        now = time.monotonic()
        if now > deadline + _GIVE_UP_S:
            return
        fresh = {pid: start for pid, start in found.items() if asked.get(pid) != start}
        if now > deadline:
            _signal(found, signal.SIGKILL)
        elif fresh:
            _signal(fresh, signal.SIGTERM)
            _signal(fresh, signal.SIGCONT)
            asked |= fresh
        time.sleep(_TICK_S)


def _marked(lease: str) -> dict[int, int]:
    found = {}
    for pid in procs.with_marker().get(lease, ()):
        start = procs.start_time(pid)
        if start is not None and not procs.is_broker(pid):
            found[pid] = start
    return found


def _signal(processes: dict[int, int], number: int) -> None:
    for pid, start in processes.items():
        with contextlib.suppress(PermissionError):  # it runs as another user now
            send(pid, start, number)
