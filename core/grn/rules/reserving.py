"""Which devices are best kept for the head of the queue, and when it can have them.

Pure functions over one device each, for `Placer.reserve`: a `Choice` is a device, what the head takes
there, and whether it would be alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.backfill import likely_end, room_at
from grn.rules.ledger import WHOLE_COMPUTE
from grn.rules.model import DeviceState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grn.rules.ledger import Book
    from grn.rules.model import Lease
    from grn.rules.placing import Need
    from grn.rules.profiles import ProfileBook

    Choice = tuple[Book, Need, bool]

__all__ = ["LEAST_ROOM_FOR_ALONE", "can_hold", "likely_start", "taken_mib", "when"]

LEAST_ROOM_FOR_ALONE = 2
"""A probe or whole-device lease wants a device of which others hold at most one half."""


def can_hold(choice: Choice) -> bool:
    """Whether the device will do once its leases end, others' memory staying as it is."""
    book, need, alone = choice
    if book.state is not DeviceState.OK:
        return False
    room_mib, mib = book.room_mib, need.mib or 0
    if alone:
        capacity_mib = book.device.capacity_mib
        enough = min(mib, capacity_mib) <= room_mib
        return enough and room_mib * LEAST_ROOM_FOR_ALONE >= capacity_mib
    return mib <= room_mib


def taken_mib(choices: list[Choice]) -> dict[str, int]:
    """Return by device how much is kept there."""
    return {
        book.device.uuid: book.device.capacity_mib if alone else need.mib or 0
        for book, need, alone in choices
    }


def when(choice: Choice) -> tuple[int, int, int]:
    """Order devices by how little must end before the head fits: leases, then MiB."""
    book, need, alone = choice
    if alone:
        return (len(book.bookings), book.committed_mib, book.position)
    bookings = book.bookings.values()
    of_memory = _ends((need.mib or 0) - book.free_mib, [b.counts_mib for b in bookings])
    lacks = need.compute - (WHOLE_COMPUTE - book.compute_booked) if need.compute else 0
    ends = max(of_memory, _ends(lacks, [b.compute for b in bookings]))
    return (ends, book.committed_mib, book.position)


def _ends(missing: int, counts: list[int]) -> int:
    """Count how many leases must end, the largest first, until nothing is missing."""
    ends = 0
    for count in sorted(counts, reverse=True):
        if missing <= 0:
            break
        missing -= count
        ends += 1
    return ends


def likely_start(
    choice: Choice, leases: Mapping[str, Lease], profiles: ProfileBook, now: float
) -> float:
    """Return when the device is likely to have room for the head."""
    book, need, alone = choice
    missing = 0 if alone else (need.mib or 0) - book.free_mib
    if not alone and missing <= 0 and not need.compute:
        return now
    model = book.device.model
    ends = [
        (likely_end(leases[lease], model, profiles, now), booking)
        for lease, booking in book.bookings.items()
        if lease in leases
    ]
    if alone:
        return max([end for end, _ in ends], default=now)
    of_memory = [(end, booking.counts_mib) for end, booking in ends]
    of_compute = [(end, booking.compute) for end, booking in ends]
    lacks = need.compute - (WHOLE_COMPUTE - book.compute_booked) if need.compute else 0
    return max(room_at(missing, of_memory, now), room_at(lacks, of_compute, now))
