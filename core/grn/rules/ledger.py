"""The books: what is set aside on each device, and for CPUs and RAM.

Design note. For each device, in MiB::

    free = total - reserve - headroom - foreign - sum over leases of max(booked, measured)

A booking is made in the same step as the decision and stays until the lease ends. Measurement can
raise what a lease counts for, never lower it below its booking: a job that was admitted and has
not allocated yet keeps its room. `committed_mib` caches the sum, so that a grant costs the same
with one lease or with fifty; `check_invariants` recomputes it from nothing.

Rejected: writing driver readings over the books (a job that still imports its libraries would be
forgotten), and fractions instead of MiB (three jobs of 0.33 hide a rounding error on each device).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from grn.rules.model import Device, DeviceState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["WHOLE_COMPUTE", "Book", "Booking", "InvariantError", "Ledger", "Pool"]

WHOLE_COMPUTE = 100
"""Percent of a device's multiprocessors, of which leases may book parts."""


class InvariantError(AssertionError):
    """The books contradict themselves: a defect of GRN, never of its user."""


@dataclass(slots=True)
class Pool:
    """CPUs, or MiB of RAM. `total=None`: unknown, hence unaccounted, and never a reason to wait."""

    name: str
    total: int | None
    booked: int = 0

    def fits(self, wish: int | None) -> bool:
        """Whether the wish can be met now."""
        return not wish or self.total is None or self.booked + wish <= self.total

    def possible(self, wish: int | None) -> bool:
        """Whether the wish could be met on an idle machine."""
        return not wish or self.total is None or wish <= self.total


@dataclass(slots=True)
class Booking:
    """One lease on one device: what is set aside, and what its processes were last seen to hold."""

    booked_mib: int
    compute: int
    """Percent of the device's multiprocessors; 0 for a lease that takes what is left."""
    measured_mib: int = 0
    restored: bool = False
    """Made by a former broker, perhaps under other devices or settings."""
    unseen: bool = False
    """Nobody can say what the lease's processes hold here, and nothing stands in."""
    by_delta: bool = False
    """What they hold is taken from the rise of the device's total."""
    left_mib: int | None = None
    """What others left of the device, as it was last looked at while the lease used it."""
    had_company: bool = False
    """It was not alone while nobody could say: the rise of the total is not only its own."""
    utilisation: int | None = None
    """Percent of the time in which its processes computed here, as the driver last said."""
    most_mib: int = 0
    """What its job held beyond its booking at some time, and may want again while it runs."""
    ended: bool = False
    """Its job is over: what its processes give back now will not be wanted again."""

    @property
    def counts_mib(self) -> int:
        """What the lease counts for: its booking, or more if its job has held more."""
        return max(self.booked_mib, self.measured_mib, self.most_mib)


@dataclass(slots=True)
class Book:
    """The page of one device."""

    device: Device
    position: int
    state: DeviceState = DeviceState.OK
    reason: str = ""
    foreign_mib: int = 0
    baseline_mib: int = 0
    """What was foreign when that was last known: a lease that is alone holds what is above it."""
    strangers: tuple[int, ...] = ()
    """Processes that the driver names here and that do not exist in the broker's world."""
    hides_processes: bool = False
    """The driver lists nobody, though memory is held."""
    usage_known: bool = True
    used_mib: int | None = None
    """What all processes held here when the device was last read well, if it said so."""
    committed_mib: int = 0
    bookings: dict[str, Booking] = field(default_factory=dict)
    utilisation: int | None = None
    """Percent of the time in which it computed, as the driver last said."""
    alone: str | None = None
    """The lease that must not share this device: a probe or a whole-device lease."""
    ram: Pool | None = None
    """The host's RAM, if the device's memory is part of it."""

    @property
    def room_mib(self) -> int:
        """MiB that leases may take in all: the capacity less what others hold."""
        return max(0, self.device.capacity_mib - self.foreign_mib)

    @property
    def free_mib(self) -> int:
        """MiB that can be granted now; never negative, also when jobs outgrew their bookings."""
        free = self.device.capacity_mib - self.foreign_mib - self.committed_mib
        if self.ram is not None and self.ram.total is not None:
            free = min(free, self.ram.total - self.ram.booked)
        return free if free > 0 else 0  # noqa: FURB136 - asked for most of all: a call costs more

    @property
    def measured_mib(self) -> int:
        """MiB that the processes of all leases were last seen to hold."""
        return sum(booking.measured_mib for booking in self.bookings.values())

    @property
    def booked_mib(self) -> int:
        """MiB set aside for leases."""
        return sum(booking.booked_mib for booking in self.bookings.values())

    @property
    def compute_booked(self) -> int:
        """Percent of the multiprocessors set aside for leases."""
        return sum(booking.compute for booking in self.bookings.values())


@dataclass(slots=True)
class _Pooled:
    """What one lease takes of the machine. `on_devices_mib` is device memory that is host RAM."""

    cpus: int
    ram_mib: int
    on_devices_mib: int
    restored: bool = False


class Ledger:
    """All books of one machine, in the order of the broker's mask."""

    def __init__(self, devices: Iterable[Device], *, cpus: int, ram_mib: int | None) -> None:
        self.books: list[Book] = []
        self.by_uuid: dict[str, Book] = {}
        self.cpus = Pool("CPUs", cpus)
        self.ram = Pool("MiB of RAM", ram_mib)
        listed = tuple(devices)
        self.add(listed)
        if len(self.by_uuid) != len(listed):
            raise InvariantError("a device is listed twice")
        self._pooled: dict[str, _Pooled] = {}

    def add(self, devices: Iterable[Device]) -> None:
        """Open a book for each device that has none; those that are kept stay as they are."""
        for device in devices:
            if device.uuid not in self.by_uuid:
                book = Book(device, len(self.books))
                book.ram = self.ram if device.shares_ram else None
                self.books.append(book)
                self.by_uuid[device.uuid] = book

    def copied(self) -> Ledger:
        """Return books in which leases may be placed and removed, while these stay as they are."""
        twin = Ledger((), cpus=self.cpus.total or 0, ram_mib=self.ram.total)
        twin.cpus = replace(self.cpus)
        twin.ram = replace(self.ram)
        for book in self.books:
            ram = None if book.ram is None else twin.ram
            page = replace(book, bookings=dict(book.bookings), ram=ram)
            twin.books.append(page)
            twin.by_uuid[page.device.uuid] = page
        twin._pooled = dict(self._pooled)
        return twin

    @property
    def lost(self) -> bool:
        """Whether a device is gone: the others may be numbered anew by whoever counts them."""
        return any(book.state is DeviceState.LOST for book in self.books)

    def place(
        self,
        lease: str,
        uuids: tuple[str, ...],
        mib: int,
        *,
        alone: bool = False,
        cpus: int | None = None,
        ram_mib: int | None = None,
        compute: int | None = None,
    ) -> None:
        """Set `mib` aside on each device, and CPUs and RAM, in one step.

        Raises:
            InvariantError: if that would break a promise of the books.
        """
        by_uuid = self.by_uuid
        if (len(uuids) > 1 and len(set(uuids)) != len(uuids)) or mib < 0:
            raise InvariantError(f"lease {lease}: devices {uuids}, {mib} MiB")
        on_ram = 0
        for uuid in uuids:
            book = by_uuid[uuid]
            if lease in book.bookings or book.alone or (alone and book.bookings):
                raise InvariantError(f"lease {lease} may not share {book.device.uuid}")
            if mib > book.free_mib:
                raise InvariantError(f"lease {lease}: {mib} MiB of {book.free_mib} free")
            if compute and compute + book.compute_booked > WHOLE_COMPUTE:
                raise InvariantError(f"lease {lease}: {compute} % beside {book.compute_booked} %")
            on_ram += book.ram is not None
        for uuid in uuids:
            book = by_uuid[uuid]
            book.bookings[lease] = Booking(mib, compute or 0)
            book.committed_mib += mib
            book.alone = lease if alone else None
        self._pool(lease, cpus or 0, ram_mib or 0, mib * on_ram)

    def _pool(self, lease: str, cpus: int, ram_mib: int, on_devices_mib: int) -> None:
        self._pooled[lease] = _Pooled(cpus, ram_mib, on_devices_mib)
        self.cpus.booked += cpus
        self.ram.booked += ram_mib + on_devices_mib

    def restore(
        self,
        lease: str,
        uuids: tuple[str, ...],
        mib: int,
        *,
        alone: bool,
        cpus: int,
        ram_mib: int,
        compute: int,
    ) -> None:
        """Put back a booking that a former broker made; it holds even if it no longer fits."""
        for uuid in uuids:
            book = self.by_uuid.get(uuid)
            if book is None:
                continue
            # Where a record is missing, others may be beside one that was alone.
            book.alone = lease if alone and not book.bookings else None
            book.bookings[lease] = Booking(mib, compute=compute, restored=True)
            book.committed_mib += mib
        books = [self.by_uuid[uuid] for uuid in uuids if uuid in self.by_uuid]
        self._pool(lease, cpus, ram_mib, mib * sum(book.ram is not None for book in books))
        self._pooled[lease].restored = True

    def remove(self, lease: str, uuids: tuple[str, ...]) -> None:
        """Take a lease that has ended out of all books."""
        for uuid in uuids:
            book = self.by_uuid.get(uuid)
            if book is None:
                continue
            booking = book.bookings.pop(lease)
            book.committed_mib -= booking.counts_mib
            if book.alone == lease:
                book.alone = None
        pooled = self._pooled.pop(lease)
        self.cpus.booked -= pooled.cpus
        self.ram.booked -= pooled.ram_mib + pooled.on_devices_mib

    def end(self, lease: str, uuids: tuple[str, ...]) -> None:
        """Take out a lease that has ended.

        Where nobody says who holds what, its processes may hold on: what is held beyond the other
        bookings is foreign until the device is read again.
        """
        vague = [
            book
            for uuid in uuids
            if (book := self.by_uuid.get(uuid)) is not None
            and (book.bookings[lease].unseen or book.bookings[lease].by_delta)
        ]
        self.remove(lease, uuids)
        for book in vague:
            if book.used_mib is not None:
                book.foreign_mib = max(book.foreign_mib, book.used_mib - book.committed_mib)
                book.baseline_mib = max(book.baseline_mib, book.foreign_mib)

    @contextmanager
    def without(self, leases: Iterable[str]) -> Iterator[None]:
        """Look at the devices as they would be without these leases."""
        taken = [
            (book, lease, book.bookings.pop(lease), book.alone)
            for book in self.books
            for lease in leases
            if lease in book.bookings
        ]
        for book, lease, booking, _ in taken:
            book.committed_mib -= booking.counts_mib
            book.alone = None if book.alone == lease else book.alone
        try:
            yield
        finally:
            for book, lease, booking, alone in taken:
                book.bookings[lease] = booking
                book.committed_mib += booking.counts_mib
                book.alone = alone if alone == lease else book.alone

    def rebook(self, lease: str, uuids: tuple[str, ...], mib: int) -> None:
        """Shrink the booking of a probe to what was learnt, and let others beside it."""
        for uuid in uuids:
            book = self.by_uuid.get(uuid)
            if book is None:
                continue
            booking = book.bookings[lease]
            book.committed_mib -= booking.counts_mib
            before, booking.booked_mib = booking.booked_mib, min(booking.booked_mib, mib)
            book.committed_mib += booking.counts_mib
            if book.ram is not None:
                self._pooled[lease].on_devices_mib -= before - booking.booked_mib
                self.ram.booked -= before - booking.booked_mib
            if book.alone == lease:
                book.alone = None

    def measure(self, lease: str, uuid: str, mib: int) -> None:
        """Note what a lease's processes hold on a device now."""
        book = self.by_uuid[uuid]
        booking = book.bookings[lease]
        booked, before = booking.booked_mib, booking.measured_mib
        if mib <= booked and before <= booked:
            booking.measured_mib = mib
            return
        counted = booking.counts_mib
        booking.measured_mib = mib
        # The rise of a total may be a guest's who passes by.
        if booked < mib > booking.most_mib and not booking.ended and not booking.by_delta:
            booking.most_mib = mib
        book.committed_mib += booking.counts_mib - counted

    def told(self, lease: str, uuids: tuple[str, ...], mib: int) -> None:
        """Note that a lease's job says to have held so much, on one of its devices."""
        for uuid in uuids:
            book = self.by_uuid.get(uuid)
            if book is not None and mib > book.bookings[lease].counts_mib:
                book.committed_mib += mib - book.bookings[lease].counts_mib
                book.bookings[lease].most_mib = mib

    def drain(self, lease: str, uuids: tuple[str, ...], *, runs_on: bool) -> None:
        """Give back what a lease that drains does not keep: CPUs and RAM.

        Unless its job runs on, it counts from now on for what it holds, no more for what it held.
        """
        for uuid in () if runs_on else uuids:
            book = self.by_uuid.get(uuid)
            if book is not None:
                booking = book.bookings[lease]
                book.committed_mib -= booking.counts_mib
                booking.most_mib, booking.ended = 0, True
                book.committed_mib += booking.counts_mib
        pooled = self._pooled[lease]
        self.cpus.booked -= pooled.cpus
        self.ram.booked -= pooled.ram_mib
        pooled.cpus = pooled.ram_mib = 0

    def check_invariants(self) -> None:
        """Raise `InvariantError` unless every promise of the books holds.

        The sum of bookings may exceed today's room (others may have come since the grant), but
        never the capacity that no driver reading can change.
        """
        for book in self.books:
            _check_book(book)
        if self.cpus.booked != sum(pooled.cpus for pooled in self._pooled.values()):
            raise InvariantError("the CPU sum is wrong")
        if self.ram.booked != sum(p.ram_mib + p.on_devices_mib for p in self._pooled.values()):
            raise InvariantError("the RAM sum is wrong")
        ours = [pooled for pooled in self._pooled.values() if not pooled.restored]
        _check_pool(self.cpus, sum(p.cpus for p in ours))
        _check_pool(self.ram, sum(p.ram_mib + p.on_devices_mib for p in ours))


def _check_pool(pool: Pool, ours: int) -> None:
    if pool.booked < 0 or (pool.total is not None and ours > pool.total):
        raise InvariantError(f"{pool.booked} of {pool.total} {pool.name} booked")


def _check_book(book: Book) -> None:
    where = book.device.uuid
    if any(b.booked_mib < 0 or b.measured_mib < 0 for b in book.bookings.values()):
        raise InvariantError(f"{where}: a negative booking")
    if book.committed_mib != sum(b.counts_mib for b in book.bookings.values()):
        raise InvariantError(f"{where}: the cached sum is wrong")
    ours = sum(b.booked_mib for b in book.bookings.values() if not b.restored)
    if ours > book.device.capacity_mib:
        raise InvariantError(f"{where}: {book.booked_mib} MiB booked of {book.device.capacity_mib}")
    if sum(b.compute for b in book.bookings.values() if not b.restored) > WHOLE_COMPUTE:
        raise InvariantError(f"{where}: {book.compute_booked} % of its multiprocessors booked")
    if book.alone and list(book.bookings) != [book.alone]:
        raise InvariantError(f"{where}: lease {book.alone} is not alone")
    if book.free_mib < 0 or book.foreign_mib < 0:
        raise InvariantError(f"{where}: negative room")
