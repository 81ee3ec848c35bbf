"""The figures at `/metrics`: counted from the broker's start, its state looked at when somebody asks.

Promises: nothing is counted and nothing is kept without the extra `metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.metrics import CONTENT_TYPE, Collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.broker.core import BrokerCore

__all__ = ["Figures"]


class Figures:
    """Looks on at the broker from its first event to its last."""

    content_type = CONTENT_TYPE

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._collector = Collector()
        core.observers.listen(self, None)

    def happened(self, events: Sequence[dict[str, Any]]) -> None:
        """Count what happened."""
        for event in events:
            self._collector.event(event)

    def changed(self, status: dict[str, Any]) -> None:
        """Take in a state of the books; without having asked for it, none comes."""
        self._collector.status(status)

    def text(self) -> bytes:
        """Return all figures as of now, of type `content_type`."""
        self.changed(self._core.status(closely=False))
        return self._collector.text()
