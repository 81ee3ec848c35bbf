"""When the broker decides: at once for a client that talks alone, once a turn for a crowd.

A turn of the event loop hands over all connections that were readable together. Deciding once, after
the last of them, costs one look at the devices and one write to the journal, and fair shares count
all requests. It also puts every answer off by a turn, which one client alone would pay for nothing.

Must not: know what is decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Turn"]

_CROWD_S = 0.001
"""Two clients that speak within this time are a crowd."""


class Turn:
    """Calls `settle` after messages were taken in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settle: Callable[[], None]) -> None:
        self._loop = loop
        self._settle = settle
        self._speaker: object = None
        self._heard_s = 0.0
        self._end: asyncio.Handle | None = None

    def heard(self, speaker: object) -> None:
        """See that what this speaker has just said is decided."""
        now = self._loop.time()
        crowd = speaker is not self._speaker and now - self._heard_s < _CROWD_S
        self._speaker, self._heard_s = speaker, now
        if not crowd:
            self._settle()
        elif self._end is None:
            self._end = self._loop.call_soon(self._at_end)

    def _at_end(self) -> None:
        self._end = None
        self._settle()

    def close(self) -> None:
        """Decide what is still open, and nothing after."""
        if self._end is not None:
            self._end.cancel()
            self._at_end()
