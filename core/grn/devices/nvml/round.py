"""One look at all cards: asked together, answered together, by a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.devices.nvml import link as links

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from grn.devices.nvml.link import Link

__all__ = ["Round"]


class Round:
    """Waits for the links that can be waited for, then calls `done` once, from the loop."""

    def __init__(self, done: Callable[[], None], *, health: bool) -> None:
        self.health = health
        self._done = done
        self._missing: set[Link] = set()
        self._end: asyncio.TimerHandle | asyncio.Handle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, asked: Iterable[Link]) -> None:
        """Ask them all."""
        self._missing = {link for link in asked if link.ask(self)}
        if self._missing:
            self._end = loop.call_later(links.DEADLINE_S, self._expire)
        else:
            self._end = loop.call_soon(self._finish)

    def answered(self, link: Link) -> None:
        """A link has answered, or never will."""
        if link in self._missing:
            self._missing.discard(link)
            if not self._missing:
                self.cancel()
                self._finish()

    def _expire(self) -> None:
        for link in self._missing:
            link.missed(self)
        self._missing.clear()
        self._finish()

    def _finish(self) -> None:
        self._end = None
        self._done()

    def cancel(self) -> None:
        """Take the deadline back."""
        if self._end is not None:
            self._end.cancel()
