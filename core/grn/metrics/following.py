"""A collector that follows a broker: one look, or for as long as it is let.

The broker pushes what happens and its state; between two texts nothing is asked. A broker that leaves is
looked for again; meanwhile the figures say that none answers, and counters stay as they are.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from grn.errors import BrokerGone, BrokerUnavailable
from grn.metrics.collector import Collector
from grn.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Follower", "once"]

_STATUS_WITHIN_S = 30.0
_STATUS_EVERY_S = 15.0
"""However seldom a text is wanted: the last one comes unexpectedly."""


def once(socket: str | None) -> Collector:
    """Return a collector of what there is now.

    What is counted are the broker's events since its start. When some of them are not known any more,
    nothing is counted: counters that fall are worse than none.

    Raises:
        BrokerUnavailable: no broker runs.
    """
    collector = Collector()
    with Watch(socket, status_every_s=1.0, since=0) as watch:
        collector.began(watch.broker["since"])
        collector.count = watch.missed == 0
        deadline = time.monotonic() + _STATUS_WITHIN_S
        while (told := watch.next(max(0.0, deadline - time.monotonic()))) is not None:
            kind, what = told
            if kind == "status":
                collector.status(what)
                return collector
            collector.event(what)
    raise BrokerUnavailable(
        f"the broker (pid {watch.broker['pid']}) told no state within {_STATUS_WITHIN_S:g} s"
    )


class Follower:
    """Follows brokers at one socket, whichever runs there.

    Args:
        socket: the broker's; `None`: as the settings say.
        every_s: how often a text is wanted.
        wake: a descriptor that becomes readable when it is time to end.
    """

    def __init__(self, socket: str | None, *, every_s: float, wake: int) -> None:
        self.collector = Collector()
        self._socket = socket
        self._every_s = every_s
        self._wake = wake
        self._watch: Watch | None = None

    def run(self, told: Callable[[bytes], None]) -> None:
        """Call `told` with the text at once, then as often as it is wanted, and when it ends."""
        due = time.monotonic()
        while not self._wait_until(due):
            self._connect()
            self._take_in()
            told(self.collector.text())
            due = max(due + self._every_s, time.monotonic())
        self._take_in()
        told(self.collector.text())
        self._disconnect()

    def _connect(self) -> None:
        if self._watch is not None:
            return
        try:
            watch = self._watch = Watch(
                self._socket, status_every_s=min(self._every_s, _STATUS_EVERY_S)
            )
            self.collector.began(watch.broker["since"])
            # The first state comes at once: without it the first text would lack all gauges.
            first = watch.next(_STATUS_WITHIN_S)
            if first is not None:
                self._one(*first)
        except BrokerUnavailable:
            self._disconnect()

    def _disconnect(self) -> None:
        watch, self._watch = self._watch, None
        self.collector.gone()
        if watch is not None:
            watch.close()

    def _wait_until(self, due: float) -> bool:
        """Take in what is told until then; return whether it is time to end."""
        while True:
            left = max(0.0, due - time.monotonic())
            files = [self._wake] if self._watch is None else [self._wake, self._watch.fileno()]
            ready, _, _ = select.select(files, [], [], left)
            if self._wake in ready:
                return True
            if not ready:
                return False
            self._take_in()

    def _take_in(self) -> None:
        """Take in all that was told so far."""
        try:
            while self._watch is not None and (told := self._watch.next(0)) is not None:
                self._one(*told)
        except BrokerGone:
            self._disconnect()

    def _one(self, kind: str, what: dict[str, object]) -> None:
        if kind == "status":
            self.collector.status(what)
        else:
            self.collector.event(what)
