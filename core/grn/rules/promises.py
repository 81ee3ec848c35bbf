"""The promises that hold after every step, checked in all tests and in debug mode.

Separate from what they check: written against the state alone, so that a mistake in a decision
cannot hide in the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.ledger import InvariantError
from grn.rules.model import LeaseState

if TYPE_CHECKING:
    from grn.rules.ledger import Book
    from grn.rules.machine import Machine
    from grn.rules.model import Lease

__all__ = ["check_machine"]


def check_machine(machine: Machine) -> None:
    """Raise `InvariantError` unless books, leases and waiters agree."""
    machine.ledger.check_invariants()
    drain = {x.id for x in machine.leases.values() if x.state is LeaseState.DRAINING}
    if machine.draining != drain:
        raise InvariantError(f"{machine.draining} are said to drain, {drain} do")
    for lease in machine.leases.values():
        _check_lease(machine, lease)
    for book in machine.ledger.books:
        for lease_id in book.bookings:
            if lease_id not in machine.leases:
                raise InvariantError(f"{book.device.uuid} is booked for nobody: {lease_id}")
    for request in machine.groups.everybody():
        if not machine.reason(request.ticket):
            raise InvariantError(f"request {request.ticket} waits without a reason")


def _check_lease(machine: Machine, lease: Lease) -> None:
    if len(set(lease.uuids)) != len(lease.uuids):
        raise InvariantError(f"lease {lease.id}: a device twice")
    if lease.request.owner.pid <= 0:
        raise InvariantError(f"lease {lease.id} has no owner")
    books = [b for uuid in lease.uuids if (b := machine.ledger.by_uuid.get(uuid)) is not None]
    for book in books:
        if lease.id not in book.bookings:
            raise InvariantError(f"lease {lease.id} has no booking on {book.device.uuid}")
    if lease.state is LeaseState.PROBE and not all(_alone(book, lease) for book in books):
        raise InvariantError(f"probe {lease.id} shares a device")


def _alone(book: Book, lease: Lease) -> bool:
    return list(book.bookings) == [lease.id]
