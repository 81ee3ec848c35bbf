"""A timer for groups that wait for the rest of their members: there is nothing else to wake us."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from grn.broker.core import BrokerCore

__all__ = ["GroupWait"]


class GroupWait:
    """Lets the rules look again when the next incomplete group has waited for too long."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._timer: asyncio.TimerHandle | None = None
        self._due_s: float | None = None

    @property
    def armed(self) -> bool:
        """Whether a timer runs."""
        return self._timer is not None

    def mind(self) -> None:
        """Set the timer for the group that is due first; call it after each decision."""
        due = self._core.machine.groups.due_s
        if due == self._due_s:
            return
        self.close()
        self._due_s = due
        if due is not None:
            in_s = max(0.0, due - self._core.now())
            self._timer = self._core.loop.call_later(in_s, self._look)

    def _look(self) -> None:
        self._timer = self._due_s = None
        self._core.machine.dirty = True
        self._core.settle()

    def close(self) -> None:
        """Set no timer any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due_s = None
