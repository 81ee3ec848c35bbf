"""Device memory that nobody can use while somebody waits: how much, and why.

Three causes. `probe`: a type is being measured, so its device is its own, beyond what it uses. `head`:
kept for the first request in the queue, which must not be delayed. `fragmentation`: free in pieces,
each too small for every request that waits. Memory that a waiting request would find large enough
(it waits for something else: a limit, CPUs, a second device) is not lost.

Each is MiB over all devices at one moment. While nobody waits for a device, nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.model import DeviceState, LeaseState

if TYPE_CHECKING:
    from grn.rules.ledger import Book
    from grn.rules.machine import Machine
    from grn.rules.model import Request

__all__ = ["CAUSES", "lost_now"]

CAUSES = ("probe", "fragmentation", "head")

_MOST_SHAPES = 64
"""Kinds of requests that are looked at: a long queue is mostly of a few."""


def lost_now(machine: Machine) -> dict[str, int]:
    """Return MiB by cause; `{}` while nobody waits for a device."""
    waiting = _shapes(machine)
    if not waiting:
        return {}
    lost: dict[str, int] = dict.fromkeys(CAUSES, 0)
    head = machine.reservation
    for book in machine.ledger.books:
        if book.state is not DeviceState.OK:
            continue
        if book.alone is not None:
            lost["probe"] += _unused_by_probe(machine, book)
            continue
        free = book.free_mib
        if head is not None and book.device.uuid in head.needs_mib:
            kept = min(free, head.needs_mib[book.device.uuid])
            lost["head"] += kept
            free -= kept
        if free and not any(_fits(machine, book, free, request) for request in waiting):
            lost["fragmentation"] += free
    return lost


def _shapes(machine: Machine) -> list[Request]:
    """List one request of each kind that waits for a device, in the order of the queue."""
    found: dict[tuple[object, ...], Request] = {}
    for request in machine.line:
        if request.gpus:
            found.setdefault(request.shape, request)
            if len(found) == _MOST_SHAPES:
                break
    return list(found.values())


def _unused_by_probe(machine: Machine, book: Book) -> int:
    """Return what the probe on this device does not use of it; 0 for a lease that asked for all."""
    lease = machine.leases.get(book.alone or "")
    if lease is None or lease.state is not LeaseState.PROBE:
        return 0
    return max(0, book.room_mib - book.measured_mib)


def _fits(machine: Machine, book: Book, free_mib: int, request: Request) -> bool:
    """Whether so much would do for the request, if nothing else stood in its way."""
    device = book.device
    if request.allowed is not None and device.uuid not in request.allowed:
        return False
    need = machine.placer.need(request, device.model)
    if need.alone or need.mib is None:
        return not book.bookings and free_mib == book.room_mib
    return need.mib <= free_mib
