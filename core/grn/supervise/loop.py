"""One thread, one `epoll`: file descriptors and timers call back.

Promises: a callback runs only while it is registered; timers run in the order of their times; time
is monotonic, so a suspended machine or a changed clock ends nothing early. Callbacks must take a
needless call: an event that was fetched with others may be out of date when its turn comes.
Must not know anything of jobs.
"""

from __future__ import annotations

import heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["READABLE", "WRITABLE", "Loop", "Timer"]

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT


class Timer:
    """A call that is due at `when`; `cancel()` makes it not happen."""

    __slots__ = ("_order", "callback", "when")

    def __init__(self, when: float, order: int, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback
        self._order = order

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self._order) < (other.when, other._order)

    def cancel(self) -> None:
        """Drop the call; harmless when it has happened already."""
        self.callback = None


class Loop:
    """Runs callbacks until it is told that all is done."""

    def __init__(self) -> None:
        self.now = time.monotonic
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[Timer] = []
        self._count = 0

    def watch(self, fd: int, events: int, callback: Callable[[], None]) -> None:
        """Call back whenever `fd` is ready, has failed, or was closed at its other end.

        Raises:
            PermissionError: `fd` is a regular file, which is always ready.
        """
        self._epoll.register(fd, events)
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop watching; call this before closing the descriptor."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back once, `delay_s` from now."""
        self._count += 1
        timer = Timer(self.now() + delay_s, self._count, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def run(self, done: Callable[[], bool]) -> None:
        """Serve events until `done()`."""
        while not done():
            for fd, _ in self._epoll.poll(self._patience_s()):
                callback = self._watched.get(fd)
                if callback is not None:
                    callback()
            self._run_due_timers()

    def _patience_s(self) -> float | None:
        timers = self._timers
        while timers and timers[0].callback is None:
            heapq.heappop(timers)
        return max(0.0, timers[0].when - self.now()) if timers else None

    def _run_due_timers(self) -> None:
        now = self.now()
        while self._timers and self._timers[0].when <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()
