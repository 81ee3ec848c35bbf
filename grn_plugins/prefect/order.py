"""Requests in the order of their submits.

Design note. Each submitted task has a thread, and threads start in any order; so the last task could be
the first to ask, and get the only device. Telling the broker at the submit would not do: inputs may
still be waited for, or fail, and a cached result needs no device. So each task that could ask at once
takes a number when it is submitted, and asks when those before it have asked, or are over, or do not
come: one that waits for something else (a slot of a concurrency limit) holds up others for a moment only.

Must not: know Prefect or the broker.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

__all__ = ["Line"]

_LATE_S = 2.0


class Line:
    """Who may ask next. All methods may be called by any thread."""

    def __init__(self, late_s: float = _LATE_S) -> None:
        self._late_s = late_s
        self._lock = threading.Lock()
        self._last = 0
        self._coming: OrderedDict[int, threading.Event | None] = OrderedDict()
        """By number: who has not asked yet, and what wakes it if it is here already."""

    def join(self) -> int:
        """Take a number, at the submit."""
        with self._lock:
            self._last += 1
            self._coming[self._last] = None
            return self._last

    def leave(self, number: int) -> None:
        """Have asked, or never ask. Any number of times."""
        with self._lock:
            if number in self._coming:
                del self._coming[number]
                self._wake_first()

    def wait(self, number: int) -> None:
        """Wait until all with a lower number have asked, or are late."""
        here = threading.Event()
        with self._lock:
            if number not in self._coming:
                return
            self._coming[number] = here
            self._wake_first()
        while not here.wait(self._late_s):
            with self._lock:
                for late in [n for n, came in self._coming.items() if came is None and n < number]:
                    del self._coming[late]
                self._wake_first()

    def _wake_first(self) -> None:
        first = next(iter(self._coming.values()), None)
        if first is not None:
            first.set()
