"""How busy a type keeps a device: learnt, and taken as a hint where there is a choice, never as a booking.

Two jobs that each keep a device busy 90 % of the time run on one at half their speed. Memory decides
whether they may share it; where several devices have room, those are preferred on which the learnt
shares of all that run there, and the newcomer's, add up to no more than one device can do. Utilisation
as a driver tells it is the share of time in which *any* kernel ran, so it is learnt only from a lease
that was alone on its devices, and that of several adds up to at most their sum.
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
    """Take in how busy its devices are while the lease is alone on them and uses them."""
    told = 0
    for uuid in lease.uuids:
        book = ledger.by_uuid.get(uuid)
        if book is None or book.utilisation is None or book.foreign_mib > _A_DISPLAY_MIB:
            return
        if len(book.bookings) > 1 or not book.bookings[lease.id].measured_mib:
            return
        told += book.utilisation
    if lease.uuids:
        lease.busy_looks += 1
        lease.busy_percent += told // len(lease.uuids)


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
