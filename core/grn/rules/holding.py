"""One device as a request meets it: does it fit, by how much not, what holds it, and until when.

Whether it fits is the placer's own word; the words around it are here. Pure, for `explaining`.

Must not: change anything, or decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.rules.expected import expected_end
from grn.rules.ledger import WHOLE_COMPUTE
from grn.rules.model import DeviceState, LeaseState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.rules.ledger import Book
    from grn.rules.machine import Machine
    from grn.rules.model import Request
    from grn.rules.placing import Need
    from grn.rules.waiting import Reservation

__all__ = ["Opening", "device_view", "openings"]

_MOST_HOLDERS = 20
_NAMED = 3
_LONGEST_NAME = 120
"""An answer has to fit a frame."""


@dataclass(slots=True)
class Opening:
    """A device, and how a request could get onto it."""

    book: Book
    need: Need | None
    """What the request takes there; `None`: it can never go there."""
    fits: bool
    kept: bool
    """It would fit, were it not kept for the head of the queue."""
    possible: bool
    """It would fit if all leases there ended."""
    why: str
    lacks_mib: int | None
    """How much too little is free; `None` where that is not what is wrong."""
    after: tuple[str, ...] = ()
    """Leases that must end first: those that are expected to end first, as many as it takes."""
    opens_s: float | None = None
    """When they are expected to have ended, from now; `None`: nobody knows."""
    jobs: dict[str, str] = field(default_factory=dict)
    """What runs in those of them that are of the same user."""

    def order(self) -> tuple[float, int, int]:
        """Order by when it is expected to be free, then by how little must end."""
        when = float("inf") if self.opens_s is None else self.opens_s
        return when, len(self.after), self.book.position

    def in_words(self) -> str:
        """Say what must end there, and when it is expected to have."""
        index = self.book.device.index
        if not self.after:
            return f"on device {index}: {self.why}"
        names = [
            f"{lease} ({_shortened(self.jobs[lease])})" if lease in self.jobs else lease
            for lease in self.after
        ]
        more = len(names) - _NAMED
        shown = ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        what = f"lease{'s' if len(names) > 1 else ''} {shown} must end"
        return f"on device {index}: {what}, {_when(self.opens_s)}"


def _when(opens_s: float | None) -> str:
    if opens_s is None:
        return "nobody knows when"
    return "at any moment, by what is known" if opens_s < 1 else f"in about {opens_s:.0f} s"


def openings(machine: Machine, request: Request, now: float) -> list[Opening]:
    """Look at each device with the eyes of a request, in the order of the mask."""
    count = request.gpus or 0
    if not count:
        return []
    pairs = {book.device.uuid: need for book, need in machine.placer.candidates(request, count)}
    head = machine.reservation
    head = None if head is None or head.ticket == request.ticket else head
    return [
        _opening(machine, book, pairs[book.device.uuid], request, head, now)
        if book.device.uuid in pairs
        else _excluded(machine, book, request)
        for book in machine.ledger.books
    ]


def _excluded(machine: Machine, book: Book, request: Request) -> Opening:
    """Say why a device is none for the request, whatever ends."""
    count = request.gpus or 0
    mib = machine.placer.need(request, book.device.model).mib
    if request.allowed is not None and book.device.uuid not in request.allowed:
        why = "not among the devices that its CUDA_VISIBLE_DEVICES shows"
    elif count > 1 and book.device.parent is not None:
        why = "a slice of a card, which cannot be one of several devices"
    elif request.largest:
        why = "smaller than the largest, one of which it wants"
    else:
        why = f"too small: {mib} MiB wanted, it has {book.device.capacity_mib} MiB in all"
    return Opening(book, None, fits=False, kept=False, possible=False, why=why, lacks_mib=None)


def _opening(
    machine: Machine,
    book: Book,
    need: Need,
    request: Request,
    head: Reservation | None,
    now: float,
) -> Opening:
    placer = machine.placer
    beside_ram = book.ram is None or placer.ram_suffices(book, need, request)
    alone_fits = placer.fits(book, need, None, request.type) and beside_ram
    fits = alone_fits and placer.fits(book, need, head, request.type)
    alone = placer.is_alone(need, book)
    opening = Opening(
        book,
        need,
        fits=fits,
        kept=alone_fits and not fits,
        possible=placer.able(book, need),
        why="",
        lacks_mib=None if alone else max(0, (need.mib or 0) - book.free_mib),
    )
    if not alone_fits:
        _find_after(machine, opening, now, request.owner.uid, alone=alone)
    opening.why = _why(machine, opening, head, alone=alone)
    return opening


def _find_after(machine: Machine, opening: Opening, now: float, uid: int, *, alone: bool) -> None:
    """Find which leases must end: those that are expected to end first, until enough is free."""
    book, need = opening.book, opening.need
    if not opening.possible or need is None:
        return
    ends = sorted(_ends(machine, book, now))
    missing = (need.mib or 0) - book.free_mib
    lacks = need.compute - (WHOLE_COMPUTE - book.compute_booked) if need.compute else 0
    after: list[str] = []
    last: float | None = 0.0
    for known, _, lease in ends:
        if not alone and book.alone is None and missing <= 0 and lacks <= 0:
            break
        booking = book.bookings[lease]
        missing -= booking.counts_mib
        lacks -= booking.compute
        after.append(lease)
        last = None if known == float("inf") else max(0.0, known - now)
    opening.after, opening.opens_s = tuple(after), last if after else None
    requests = {x: machine.leases[x].request for x in after if x in machine.leases}
    opening.jobs = {x: y.label or y.type for x, y in requests.items() if y.owner.uid == uid}


def _ends(machine: Machine, book: Book, now: float) -> list[tuple[float, int, str]]:
    """List the leases on a device with their expected ends, those of equal ends the largest first."""
    found = []
    for lease_id, booking in book.bookings.items():
        lease = machine.leases[lease_id]
        end = expected_end(lease, machine.ledger, machine.profiles, now)
        found.append((float("inf") if end is None else end, -booking.counts_mib, lease_id))
    return found


def _why(machine: Machine, opening: Opening, head: Reservation | None, *, alone: bool) -> str:
    book, need = opening.book, opening.need
    if book.state is not DeviceState.OK:
        return f"{book.state}" + (f" ({book.reason})" if book.reason else "")
    if book.alone is not None:
        lease = machine.leases.get(book.alone)
        probe = lease is not None and lease.state is LeaseState.PROBE
        return f"{'measured alone' if probe else 'leased whole'} by lease {book.alone}"
    if opening.kept and head is not None:
        return f"would fit, and is kept for request {head.ticket}, the head of the queue"
    if alone:
        return _why_alone(opening)
    wanted = need.mib if need is not None and need.mib is not None else 0
    free = f"{wanted} MiB wanted, {book.free_mib} free of {book.device.capacity_mib}"
    if opening.fits:
        return f"fits: {free}"
    if opening.lacks_mib:
        others = f", others hold {book.foreign_mib}" if book.foreign_mib else ""
        return f"{opening.lacks_mib} MiB too little: {free}{others}"
    compute = need.compute if need is not None else 0
    if compute + book.compute_booked > WHOLE_COMPUTE:
        return (
            f"{compute} % of its multiprocessors wanted,"
            f" {WHOLE_COMPUTE - book.compute_booked} % free"
        )
    return f"host RAM, of which its memory is a part, is too little for both: {free}"


def _why_alone(opening: Opening) -> str:
    """Say it of a request that would have the device to itself."""
    book, need = opening.book, opening.need
    if opening.fits:
        return f"fits: nobody is on it, and all of its {book.free_mib} MiB would be the job's own"
    if book.bookings:
        held = len(book.bookings)
        return f"wanted alone, and {held} lease{'s are' if held > 1 else ' is'} on it"
    if not opening.possible:
        return (
            f"wanted alone, and others hold {book.foreign_mib} of {book.device.capacity_mib} MiB,"
            " more than one half"
        )
    wanted = need.mib if need is not None and need.mib is not None else 0
    return f"wanted alone: {wanted} MiB wanted, {book.free_mib} free of {book.device.capacity_mib}"


# -- as plain values ------------------------------------------------------------------------------


def device_view(
    machine: Machine, book: Book, now: float, opening: Opening | None = None
) -> dict[str, Any]:
    """Describe a device, what holds it, and, with an opening, how a request could get onto it."""
    view: dict[str, Any] = {
        "index": book.device.index,
        "uuid": book.device.uuid,
        "name": book.device.model,
        "state": str(book.state),
        "capacity_mib": book.device.capacity_mib,
        "free_mib": book.free_mib if book.state is DeviceState.OK else 0,
        "foreign_mib": book.foreign_mib,
        "held_by": _holders(machine, book, now),
        "holders": len(book.bookings),
    }
    if opening is None:
        return view
    need = opening.need
    return view | {
        "fits": opening.fits,
        "kept": opening.kept,
        "why": opening.why,
        "wants_mib": need.mib if need is not None else None,
        "alone": machine.placer.is_alone(need, book) if need is not None else None,
        "lacks_mib": opening.lacks_mib,
        "after": list(opening.after[:_MOST_HOLDERS]),
        "opens_s": None if opening.opens_s is None else round(opening.opens_s, 3),
    }


def _holders(machine: Machine, book: Book, now: float) -> list[dict[str, Any]]:
    """List the largest leases on a device, the largest first."""
    ordered: Sequence[str] = sorted(book.bookings, key=lambda x: -book.bookings[x].counts_mib)
    return [_holder(machine, book, lease, now) for lease in ordered[:_MOST_HOLDERS]]


def _holder(machine: Machine, book: Book, lease_id: str, now: float) -> dict[str, Any]:
    lease, booking = machine.leases[lease_id], book.bookings[lease_id]
    end = expected_end(lease, machine.ledger, machine.profiles, now)
    return {
        "lease": lease_id,
        "type": _shortened(lease.type),
        "label": _shortened(lease.request.label),
        "uid": lease.request.owner.uid,
        "state": str(lease.state),
        "booked_mib": booking.booked_mib,
        "measured_mib": booking.measured_mib,
        "counts_mib": booking.counts_mib,
        "ends_s": None if end is None else round(end - now, 3),
    }


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
