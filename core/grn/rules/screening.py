"""Which kinds of waiting requests certainly find no room now, told by a few numbers of each device.

Under load hundreds wait and one or two can start. A `Screen` is made once for a round of decisions: for
each device, the most that a newcomer may take there, and the most that one may take that is over
before the head of the queue can start. A kind that needs more than any of them is passed over.

Promise: it only ever says "no" where `Placer.place` would, too; what it lets through is decided there.
So it is a shortcut, and all its numbers are bounds: the least need, the shortest time.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from grn.rules.model import DeviceState
from grn.rules.waiting import largest_sum_within

if TYPE_CHECKING:
    from grn.rules.ledger import Book, Ledger
    from grn.rules.placing import Placer
    from grn.rules.waiting import Key, Kind, Reservation

__all__ = ["UNTOLD", "Screen", "look_up"]

UNTOLD = -1
"""In place of the least need of a kind: it wants no device, or all that is known is not enough."""
ALONE = -2
"""In place of it: it wants devices of its own."""


def look_up(kind: Kind, placer: Placer) -> None:
    """Write down of a kind what screening needs; it holds until its profile changes."""
    request = kind.request
    kind.fresh = False
    kind.least_mib, kind.over_s = UNTOLD, None
    if not request.gpus:
        return
    needs = [placer.need(request, model) for model in placer.models]
    if not needs:
        return
    if all(need.alone for need in needs):
        kind.least_mib = ALONE
    elif not any(need.alone for need in needs):
        least = min([need.mib or 0 for need in needs])
        if least <= placer.smallest_mib:
            kind.least_mib = least
        elif placer.plain:
            kind.least_mib = ALONE  # what is larger than any device gets all of one
    known = [ran for model in placer.models if (ran := placer.over_s(request.type, model))]
    kind.over_s = min(known, default=None)


class Screen:
    """What a newcomer can find at most, now and beside what is kept for the head."""

    def __init__(self, ledger: Ledger, head: Reservation | None, now: float) -> None:
        self._books = ledger.books
        self._head = head
        self._spare_s = head.starts_s - now if head is not None else 0.0
        self._briefly = [_free(book) for book in self._books]
        """By device: the most that one may take that is over before the head starts; `UNTOLD`
        where nobody may take anything."""
        self._freely = [
            self._beside_head(book, free)
            for book, free in zip(self._books, self._briefly, strict=True)
        ]
        """The same for anybody."""
        self._sum_up()

    def let_through(self, heads: list[tuple[Key, Kind]]) -> list[tuple[Key, Kind]]:
        """Return those of the kinds of which `rejects` does not say that there is no room."""
        rejects, spare_s = self.rejects, self._spare_s
        least = ALONE if self._empty else UNTOLD
        most = self._most[0] if self._most else UNTOLD
        return [
            head
            for head in heads
            # Most want more than is left on any device: so much is told at a glance.
            if (least <= head[1].least_mib <= most or (head[1].over_s or inf) <= spare_s)
            and not rejects(head[1])
        ]

    def took(self, uuids: tuple[str, ...]) -> None:
        """Take note that these devices have less room than before."""
        for book in self._books:
            if book.device.uuid in uuids:
                free = _free(book)
                self._briefly[book.position] = free
                self._freely[book.position] = self._beside_head(book, free)
        self._sum_up()

    def rejects(self, kind: Kind) -> bool:
        """Whether no request of this kind can be placed."""
        least = kind.least_mib
        if least == UNTOLD:
            return False
        count = kind.request.gpus or 1
        brief = kind.over_s is not None and kind.over_s <= self._spare_s
        if least == ALONE:
            return (self._empty_briefly if brief else self._empty) < count
        most = self._most_briefly if brief else self._most
        return count > len(most) or most[count - 1] < least

    def _sum_up(self) -> None:
        self._most = sorted(self._freely, reverse=True)
        self._most_briefly = sorted(self._briefly, reverse=True)
        self._empty = self._empty_briefly = 0
        kept = self._head.needs_mib if self._head is not None else {}
        for book, free in zip(self._books, self._briefly, strict=True):
            if free > 0 and not book.bookings:
                self._empty_briefly += 1
                self._empty += book.device.uuid not in kept

    def _beside_head(self, book: Book, free: int) -> int:
        head = self._head
        if head is None or free < 0:
            return free
        needs_mib = head.needs_mib.get(book.device.uuid)
        if needs_mib is None:
            return free
        if head.alone:
            return UNTOLD
        slack = book.room_mib - needs_mib
        if slack < 0:
            return UNTOLD
        held = [booking.counts_mib for booking in book.bookings.values()]
        return min(free, slack - largest_sum_within(held, slack))


def _free(book: Book) -> int:
    return UNTOLD if book.state is not DeviceState.OK or book.alone else book.free_mib
