"""Carries what the broker tells to all pages that are open, each message written once.

Design note. A page is a browser behind a socket that may stall. Each has a short queue; who does not
empty it is cut off, and connects again by itself (that is how server-sent events work), to be told all
anew. So nobody's slowness costs more than that queue, and no page misses anything without knowing.
While no page is open, the broker builds nothing for us.

Must not: wait for a page, or tell one anything that `grn status` would not tell.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from grn.report.page import as_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.broker.observers import Observers

__all__ = ["MOST_PAGES", "Feed", "FullError", "message"]

MOST_PAGES = 32
_EVERY_S = 1.0
_QUEUED = 32
_SHOWN = frozenset({"granted", "ended", "freed", "learnt"})
"""The events that a page draws; all else it sees in the state of the books."""


# What the page draws of each; the rest of a status is half of its length.
_PARTS = {
    "devices": (
        "index", "uuid", "name", "state", "reason", "total_mib", "capacity_mib", "free_mib",
        "booked_mib", "measured_mib", "foreign_mib",
    ),
    "leases": (
        "id", "type", "label", "uid", "engine", "devices", "booked_mib", "measured_mib", "peak_mib",
        "peak_source", "state", "since_s",
    ),
    "waiters": ("type", "label", "gpus", "memory_mib", "since_s", "expected_s", "reason"),
    "recent": (
        "lease", "at", "type", "label", "uid", "engine", "devices", "outcome", "exit_code", "signal",
        "peak_mib", "source", "booked_mib", "waited_s", "ran_s", "cpu_s", "rss_mib", "draining",
    ),
}  # fmt: skip


class FullError(Exception):
    """As many pages are open as can be."""


def message(name: str, data: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()


def _shown(status: dict[str, Any], at: float) -> dict[str, Any]:
    """Return what the page draws of a state of the books, which is of the moment `at`."""
    parts = {
        name: [{key: entry.get(key) for key in keys} for entry in status.get(name, ())]
        for name, keys in _PARTS.items()
    }
    whole = {"warnings": status.get("warnings", []), "lost": status.get("lost", {})}
    return {"at": round(at, 3), **whole, **parts}


class Feed:
    """The pages that are open. Looks on at the broker while there are any."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._status: bytes | None = None
        self._closed = False

    def join(self) -> asyncio.Queue[bytes | None]:
        """Return a queue of what happens from now on; None in it means the end.

        Raises:
            Full: too many pages are open, or the broker is leaving.
        """
        if self._closed or len(self._pages) >= MOST_PAGES:
            raise FullError
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUED)
        self._pages.add(queue)
        if len(self._pages) == 1:
            self._observers.listen(self, _EVERY_S)
        elif self._status is not None:
            queue.put_nowait(self._status)
        return queue

    def leave(self, queue: asyncio.Queue[bytes | None]) -> None:
        """Forget a page."""
        self._pages.discard(queue)
        if not self._pages:
            self._observers.gone(self)
            self._status = None

    def happened(self, events: Sequence[dict[str, Any]]) -> None:
        """Take events of the broker."""
        shown = [event for event in events if event["event"] in _SHOWN]
        if shown:
            self._send(message("happened", {"events": shown}))

    def changed(self, status: dict[str, Any]) -> None:
        """Take a new state of the books."""
        self._status = message("status", _shown(status, time.time()))
        self._send(self._status)

    def _send(self, body: bytes) -> None:
        for queue in list(self._pages):
            try:
                queue.put_nowait(body)
            except asyncio.QueueFull:
                self._cut(queue)

    def _cut(self, queue: asyncio.Queue[bytes | None]) -> None:
        self.leave(queue)
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)

    def close(self) -> None:
        """End all pages' connections; they say so, and look for the next broker."""
        self._closed = True
        for queue in list(self._pages):
            self._cut(queue)
