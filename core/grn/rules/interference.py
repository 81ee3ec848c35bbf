"""How busy a type keeps a device: learnt, and taken as a hint where there is a choice, never as a booking.

Two jobs that each keep a device busy 90 % of the time run on one at half their speed. Memory decides
whether they may share it; where several devices have room, those are preferred on which the learnt
shares of all that run there, and the newcomer's, add up to no more than one device can do. Utilisation
is a share of time in which a kernel ran: the shares of several jobs add up to at most their sum. Where a
driver tells it by process it is learnt from any run, else from one that was alone on its devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grn.rules.ledger import Book, Ledger
    from grn.rules.model import Lease, Request
    from grn.rules.profiles import ProfileBook

__all__ = ["learnt_busy", "noted", "undisturbed"]

_FULL = 100
_ENOUGH_LOOKS = 3
_A_DISPLAY_MIB = 1024
"""More than this held by others is work, whose use of the device cannot be told from the lease's."""

_T = TypeVar("_T", bound="Book")


def noted(lease: Lease, ledger: Ledger) -> None:
    """Take in how busy the lease keeps its devices, as was just told of one of them.

    Where the driver tells it by process, that is the lease's own; else it is, while the lease is alone.
    """
    told = 0
    for uuid in lease.uuids:
        book = ledger.by_uuid.get(uuid)
        share = None if book is None else _share(book, lease.id)
        if share is None:
            return
        told += share
    lease.busy_looks += 1
    lease.busy_percent += told // len(lease.uuids)


def _share(book: Book, lease_id: str) -> int | None:
    booking = book.bookings[lease_id]
    if not booking.measured_mib:
        return None  # it has not begun to use the device
    if booking.utilisation is not None:
        return booking.utilisation
    alone = len(book.bookings) == 1 and book.foreign_mib <= _A_DISPLAY_MIB
    return book.utilisation if alone else None


def learnt_busy(lease: Lease) -> int | None:
    """Return how busy a lease that has ended kept its devices, percent; `None` if that is not known."""
    if lease.busy_looks < _ENOUGH_LOOKS:
        return None
    return round(lease.busy_percent / lease.busy_looks)


def undisturbed(
    fitting: list[_T], request: Request, profiles: ProfileBook, leases: Mapping[str, Lease]
) -> list[_T]:
    """Leave out devices that are too busy for the newcomer, as long as enough others are left."""
    own = profiles.busy_percent(request.type)
    if not own:
        return fitting
    quiet = [book for book in fitting if own + _busy(book, profiles, leases) <= _FULL]
    return quiet if len(quiet) >= (request.gpus or 0) else fitting


def _busy(book: Book, profiles: ProfileBook, leases: Mapping[str, Lease]) -> int:
    types = (leases[name].type for name in book.bookings if name in leases)
    return sum(profiles.busy_percent(job_type) or 0 for job_type in types)
