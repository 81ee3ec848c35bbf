"""Where a request goes, why it must wait, and what can never be met.

Pure decisions over the ledger, the profiles and the leases that are held. Nothing here changes
anything but the reservation for the head of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grn.rules.backfill import earliest_end, latest_end, room_at
from grn.rules.estimate import ALONE_AFTER_OOMS, OTHER_MODEL_FACTOR
from grn.rules.ledger import WHOLE_COMPUTE
from grn.rules.model import DeviceState, LeaseState
from grn.rules.policy import choose
from grn.rules.units import format_mib
from grn.rules.waiting import Reservation, would_delay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.ledger import Book, Ledger
    from grn.rules.model import Lease, Request
    from grn.rules.profiles import ProfileBook

__all__ = ["Need", "Placement", "Placer", "Waits"]

_LEAST_ROOM_FOR_ALONE = 2
"""A probe or whole-device lease wants a device of which others hold at most one half."""


_DEVICES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision: these devices, this booking on each."""

    uuids: tuple[str, ...]
    mib: int
    alone: bool
    probe: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a request cannot be placed. `for_room`: it may be the head; others may overtake it."""

    reason: str
    for_room: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """What a request takes on each device. `mib=None`: unknown, so it runs alone."""

    mib: int | None
    alone: bool
    probe: bool
    wait: str = ""
    compute: int = 0
    """Percent of the device's multiprocessors."""


_Pair = tuple["Book", Need]


class Placer:
    """Decides over the present state of the books."""

    def __init__(
        self,
        ledger: Ledger,
        profiles: ProfileBook,
        leases: Mapping[str, Lease],
        *,
        note: str = "",
    ) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._leases = leases
        self.now = 0.0
        """When it is decided, on the clock of the leases: who may end before whom depends on it."""
        self.renew(note)

    def renew(self, note: str) -> None:
        """Take in which devices there are; `note` says why none, or fewer than a mask names."""
        books = self._ledger.books
        self._note = f" ({note})" if note else ""
        self._has_slices = any(book.device.parent is not None for book in books)
        self._shares_ram = any(book.ram is not None for book in books)
        self._smallest_mib = min((book.device.capacity_mib for book in books), default=0)

    # -- what can never be met ------------------------------------------------------------------

    def impossible(self, request: Request) -> str | None:
        """Say why this machine can never meet the request, with numbers; `None` if it can."""
        if not self._ledger.cpus.possible(request.cpus):
            total = self._ledger.cpus.total
            return f"{request.cpus} CPUs asked, this machine offers {total}"
        if not self._ledger.ram.possible(request.ram_mib):
            total = self._ledger.ram.total or 0
            return f"{request.ram_mib} MiB of RAM asked, this machine offers {total} MiB"
        if not request.gpus:
            return None
        return self._impossible_devices(request, request.gpus)

    def _impossible_devices(self, request: Request, count: int) -> str | None:
        books = self._ledger.books
        if not books:
            return f"{_devices(count)} asked, this broker manages none{self._note}"
        wish = request.memory_mib
        if (
            request.allowed is None
            and count <= len(books)
            and (wish or 0) <= self._smallest_mib
            and not self._shares_ram
            and (count == 1 or not self._has_slices)
        ):
            return None  # as nearly always
        allowed = [book for book in books if self._allowed(book, request)]
        return self._too_few(allowed, count) or self._too_small(allowed, count, request)

    def _too_few(self, allowed: list[Book], count: int) -> str | None:
        asked, managed = _devices(count), len(self._ledger.books)
        if len(allowed) < count and len(allowed) < managed:
            return (
                f"{asked} asked, the caller's CUDA_VISIBLE_DEVICES leaves {len(allowed)} of"
                f" {managed} that this broker manages ({_numbers(self._ledger.books)}; one that is"
                f" started by hand keeps to what is visible there){self._note}"
            )
        if len(allowed) < count:
            return f"{asked} asked, this broker manages {managed}{self._note}"
        whole = sum(1 for book in allowed if book.device.parent is None)
        if count > 1 and whole < count:
            return (
                f"{asked} asked: a process sees one MIG slice only, so slices do not add up, and"
                f" beside {len(allowed) - whole} of them there are {whole} whole devices"
            )
        return None

    def _too_small(self, allowed: list[Book], count: int, request: Request) -> str | None:
        wish = request.memory_mib
        if wish is None:
            return None
        if count > 1:
            allowed = [book for book in allowed if book.device.parent is None]
        largest = max(book.device.capacity_mib for book in allowed)
        if wish > largest:
            return (
                f"{wish} MiB ({format_mib(wish)}) per device asked, the largest device offers"
                f" {largest} MiB ({format_mib(largest)})"
            )
        large = sum(1 for book in allowed if book.device.capacity_mib >= wish)
        if large < count:
            return f"{_devices(count)} with {wish} MiB each asked, {large} of that size exist"
        total = self._ledger.ram.total
        both = wish * count + (request.ram_mib or 0)
        if total is not None and both > total and all(book.ram is not None for book in allowed):
            return (
                f"{both} MiB asked of memory that device and host share, this machine offers"
                f" {total} MiB"
            )
        return None

    # -- what it needs --------------------------------------------------------------------------

    def need(self, request: Request, model: str) -> Need:
        """Return what the request takes on a device of this model."""
        need = self._need(request, model)
        return replace(need, compute=request.compute) if request.compute else need

    def _need(self, request: Request, model: str) -> Need:
        if request.whole:
            return Need(None, alone=True, probe=False)
        if request.memory_mib is not None:
            # A declared size below a peak that was seen would take its neighbours' memory.
            seen = self._profiles.peak_mib(request.type, model) or 0
            return Need(max(request.memory_mib, seen), alone=False, probe=False)
        learnt = self._profiles.estimate_mib(request.type, model, factor=OTHER_MODEL_FACTOR)
        if learnt is None:
            return self._unknown(request.type)
        if self._profiles.ooms(request.type, model) >= ALONE_AFTER_OOMS:
            return Need(None, alone=True, probe=False)
        return Need(learnt, alone=False, probe=False)

    def _unknown(self, job_type: str) -> Need:
        if self._profiles.runs_unmeasured(job_type):
            return Need(None, alone=True, probe=True)
        for lease in self._leases.values():
            if lease.state is LeaseState.PROBE and lease.type == job_type:
                text = f"the first run of this type is being measured (lease {lease.id})"
                return Need(None, alone=True, probe=True, wait=text)
        return Need(None, alone=True, probe=True)

    # -- where it goes --------------------------------------------------------------------------

    def place(self, request: Request, head: Reservation | None) -> Placement | Waits:
        """Decide for one request; `head` is the reservation of a request before it, if any."""
        waits = self._pools_wait(request, head)
        if waits:
            return waits
        if not request.gpus:
            return Placement((), 0, alone=False, probe=False)
        pairs = self.candidates(request, request.gpus)
        for _, need in pairs:
            if need.wait:
                return Waits(need.wait, for_room=False)
        fitting = [
            (book.position, book.free_mib)
            for book, need in pairs
            if self.fits(book, need, head, request.type)
            and (book.ram is None or self.ram_suffices(book, need, request))
        ]
        chosen = choose(fitting, request.gpus, request.policy)
        if chosen is None:
            return Waits(self._why(request, pairs, head))
        return self._placement([pair for pair in pairs if pair[0].position in chosen], request)

    def candidates(self, request: Request, count: int) -> list[_Pair]:
        """Pair each device that would do for the request with what the request takes on it."""
        needs: dict[str, Need] = {}
        pairs: list[_Pair] = []
        too_small = False
        for book in self._ledger.books:
            if request.allowed is not None and book.device.uuid not in request.allowed:
                continue
            if count > 1 and book.device.parent is not None:
                continue
            need = needs.get(book.device.model)
            if need is None:
                need = needs[book.device.model] = self.need(request, book.device.model)
            pairs.append((book, need))
            too_small = too_small or (need.mib or 0) > book.device.capacity_mib
        if request.largest:
            pairs = _largest(pairs, count)
        if count > 1:
            return self._alike(pairs, count)
        return _large_enough(pairs, count) if too_small else pairs

    def _alike(self, pairs: list[_Pair], count: int) -> list[_Pair]:
        """Give several devices one need: a lease books the same on each, alone on all or none."""
        mib = max((need.mib for _, need in pairs if need.mib is not None), default=None)
        same = replace(pairs[0][1], mib=mib, alone=any(need.alone for _, need in pairs))
        pairs = _large_enough([(book, same) for book, _ in pairs], count)
        alone = any(self.is_alone(same, book) for book, _ in pairs)
        return [(book, replace(same, alone=alone)) for book, _ in pairs]

    def _placement(self, pairs: list[_Pair], request: Request) -> Placement:
        alone = any(self.is_alone(need, book) for book, need in pairs)
        if alone:
            mib = min(_left(book, request) for book, _ in pairs)
        else:
            mib = max(need.mib or 0 for _, need in pairs)
        probe = any(need.probe for _, need in pairs)
        uuids = tuple(book.device.uuid for book, _ in pairs)
        return Placement(uuids, mib, alone=alone, probe=probe)

    @staticmethod
    def is_alone(need: Need, book: Book) -> bool:
        """Whether it would have the device to itself."""
        device = book.device
        if need.mib is not None and need.mib > device.capacity_mib:
            return True  # learnt elsewhere, larger than this device: all of it is the best there is
        return need.alone or device.one_process or not book.usage_known

    def fits(self, book: Book, need: Need, head: Reservation | None, job_type: str = "") -> bool:
        """Whether it fits there now, and may have what it takes in spite of the head."""
        if book.state is not DeviceState.OK or book.alone:
            return False
        if need.compute and book.compute_booked + need.compute > WHOLE_COMPUTE:
            return False
        if (
            head is not None
            and book.device.uuid in head.needs_mib
            and self._delays(book, need, head)
            and not self._over_before(head, job_type, book)
        ):
            return False
        if self.is_alone(need, book):
            enough = need.mib is None or min(need.mib, book.device.capacity_mib) <= book.free_mib
            half = book.room_mib * _LEAST_ROOM_FOR_ALONE >= book.device.capacity_mib
            return not book.bookings and half and enough and book.free_mib > 0
        return (need.mib or 0) <= book.free_mib

    def ram_suffices(self, book: Book, need: Need, request: Request) -> bool:
        """Whether host RAM, of which the device's memory is a part, has room for both wishes."""
        left = _left(book, request)
        return left > 0 if self.is_alone(need, book) else (need.mib or 0) <= left

    def _over_before(self, head: Reservation, job_type: str, book: Book) -> bool:
        """Whether a job of this type is over before the head can start, by what was learnt."""
        if head.starts_s <= self.now:
            return False
        over_s = latest_end(self._profiles, job_type, book.device.model, self.now)
        return over_s is not None and over_s <= head.starts_s

    def _delays(self, book: Book, need: Need, head: Reservation) -> bool:
        if head.alone or self.is_alone(need, book):
            return True
        bookings = book.bookings.values()
        # Of memory and of compute each by itself: together that is stricter than it needs to be.
        return would_delay(
            room_mib=book.room_mib,
            held=[booking.counts_mib for booking in bookings],
            head_mib=head.needs_mib[book.device.uuid],
            newcomer_mib=need.mib or 0,
        ) or bool(
            head.compute
            and need.compute
            and would_delay(
                room_mib=WHOLE_COMPUTE,
                held=[booking.compute for booking in bookings],
                head_mib=head.compute,
                newcomer_mib=need.compute,
            )
        )

    def _pools_wait(self, request: Request, head: Reservation | None) -> Waits | None:
        if not request.cpus and not request.ram_mib:
            return None
        kept = {"CPUs": head.cpus if head else 0, "MiB of RAM": head.ram_mib if head else 0}
        wishes = ((self._ledger.cpus, request.cpus), (self._ledger.ram, request.ram_mib))
        for pool, wish in wishes:
            if not wish or pool.total is None:
                continue
            free = pool.total - pool.booked
            if wish > free:
                return Waits(f"{wish} {pool.name} asked, {free} of {pool.total} free")
            if wish > free - kept[pool.name]:
                held = kept[pool.name]
                return Waits(f"{wish} {pool.name} asked, {held} of {free} free are kept for the"
                             " request at the head of the queue")  # fmt: skip
        return None

    # -- the head's reservation -----------------------------------------------------------------

    def reserve(self, request: Request, old: Reservation | None) -> Reservation | None:
        """Choose what is kept for the head; what was kept for it before stays if it still can."""
        count = request.gpus or 0
        able = (
            [pair for pair in self.candidates(request, count) if self._able(*pair)] if count else []
        )
        if len(able) < count:
            return None
        taken = self._kept_before(request, old, able)
        if taken is None:
            able.sort(key=lambda pair: (self._when(*pair), pair[0].position))
            taken = able[:count]
        # CPUs are kept only while they are what is missing: a job that wants no device must not
        # wait behind one that waits for a device. The devices stay kept meanwhile, or jobs that
        # take the one and jobs that take the other could keep the head waiting by turns.
        lacks = self._pools_wait(request, None) is not None
        return Reservation(
            request.ticket,
            {book.device.uuid: self._take(book, need) for book, need in taken},
            alone=any(self.is_alone(need, book) for book, need in taken),
            cpus=(request.cpus or 0) if lacks else 0,
            ram_mib=(request.ram_mib or 0) if lacks else 0,
            compute=request.compute or 0,
            starts_s=max((self._starts(book, need) for book, need in taken), default=self.now),
        )

    def _starts(self, book: Book, need: Need) -> float:
        """Return when the device may have room for the head at the earliest."""
        ends = [
            (earliest_end(self._leases[lease], [book.device.model], self._profiles, self.now), b)
            for lease, b in book.bookings.items()
            if lease in self._leases
        ]
        if self.is_alone(need, book):
            return max((end for end, _ in ends), default=self.now)
        of_memory = [(end, booking.counts_mib) for end, booking in ends]
        of_compute = [(end, booking.compute) for end, booking in ends]
        lacks = need.compute - (WHOLE_COMPUTE - book.compute_booked) if need.compute else 0
        return max(
            room_at((need.mib or 0) - book.free_mib, of_memory, self.now),
            room_at(lacks, of_compute, self.now),
        )

    def _kept_before(
        self, request: Request, old: Reservation | None, able: list[_Pair]
    ) -> list[_Pair] | None:
        if old is None or old.ticket != request.ticket:
            return None
        kept = [pair for pair in able if pair[0].device.uuid in old.needs_mib]
        now = {book.device.uuid: self._take(book, need) for book, need in kept}
        return kept if now == old.needs_mib else None

    def _take(self, book: Book, need: Need) -> int:
        return book.device.capacity_mib if self.is_alone(need, book) else need.mib or 0

    def _able(self, book: Book, need: Need) -> bool:
        """Whether the device will do once its leases end, others' memory staying as it is."""
        if book.state is not DeviceState.OK:
            return False
        if self.is_alone(need, book):
            return book.room_mib * _LEAST_ROOM_FOR_ALONE >= book.device.capacity_mib
        return (need.mib or 0) <= book.room_mib

    def _when(self, book: Book, need: Need) -> tuple[int, int]:
        """Order devices by how little must end before the head fits: leases, then MiB."""
        if self.is_alone(need, book):
            return (len(book.bookings), book.committed_mib)
        bookings = book.bookings.values()
        of_memory = _ends((need.mib or 0) - book.free_mib, [b.counts_mib for b in bookings])
        lacks = need.compute - (WHOLE_COMPUTE - book.compute_booked) if need.compute else 0
        return (max(of_memory, _ends(lacks, [b.compute for b in bookings])), book.committed_mib)

    @staticmethod
    def _allowed(book: Book, request: Request) -> bool:
        return request.allowed is None or book.device.uuid in request.allowed

    # -- in words -------------------------------------------------------------------------------

    def _why(self, request: Request, pairs: list[_Pair], head: Reservation | None) -> str:
        count = request.gpus or 0
        need = pairs[0][1]
        if need.probe:
            what = f"{_devices(count)} alone (first run of this type)"
        elif need.alone:
            what = f"{_devices(count)} alone"
        else:
            what = f"{max(need.mib or 0 for _, need in pairs)} MiB on {_devices(count)}"
        if need.compute:
            what += f" with {need.compute} % of the multiprocessors"
        parts = [self._why_not(book, need, head) for book, need in pairs]
        rest = len(parts) - _DEVICES_NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        return f"{what} wanted; {'; '.join(parts[:_DEVICES_NAMED])}{more}"

    def _why_not(self, book: Book, need: Need, head: Reservation | None) -> str:
        name = f"device {book.device.index}"
        if book.state is not DeviceState.OK:
            return f"{name}: {book.state}" + (f" ({book.reason})" if book.reason else "")
        if book.alone:
            lease = self._leases.get(book.alone)
            how = "measured alone" if lease and lease.state is LeaseState.PROBE else "leased whole"
            return f"{name}: {how} by lease {book.alone}"
        text = f"{name}: {book.free_mib} MiB free of {book.device.total_mib}"
        if book.foreign_mib:
            text += f", {book.foreign_mib} used by others"
        if book.bookings:
            text += f", {len(book.bookings)} leased"
        if need.compute:
            text += f", {book.compute_booked} % of its multiprocessors booked"
        if head is not None and book.device.uuid in head.needs_mib and self.fits(book, need, None):
            text += ", kept for the request at the head of the queue"
        return text


def _largest(pairs: list[_Pair], count: int) -> list[_Pair]:
    """Leave out what is smaller than the `count` largest devices."""
    sizes = sorted((book.device.capacity_mib for book, _ in pairs), reverse=True)
    least = sizes[min(count, len(sizes)) - 1]
    return [pair for pair in pairs if pair[0].device.capacity_mib >= least]


def _ends(missing: int, counts: list[int]) -> int:
    """Count how many leases must end, the largest first, until nothing is missing."""
    ends = 0
    for count in sorted(counts, reverse=True):
        if missing <= 0:
            break
        missing -= count
        ends += 1
    return ends


def _left(book: Book, request: Request) -> int:
    """MiB free on a device beside the host RAM that the same request takes."""
    return book.free_mib - ((request.ram_mib or 0) if book.ram is not None else 0)


def _large_enough(pairs: list[_Pair], count: int) -> list[_Pair]:
    """Leave out devices too small for what was learnt, as long as `count` larger ones exist.

    Where they do not, all of the largest is the best there is.
    """
    sizes = sorted((book.device.capacity_mib for book, _ in pairs), reverse=True)
    most = sizes[count - 1]
    return [pair for pair in pairs if pair[0].device.capacity_mib >= min(pair[1].mib or 0, most)]


def _numbers(books: Iterable[Book]) -> str:
    numbers = list(dict.fromkeys(book.device.index for book in books))
    said = ", ".join(map(str, numbers[:_DEVICES_NAMED]))
    more = ", …" if len(numbers) > _DEVICES_NAMED else ""
    return f"device{'s' if len(numbers) > 1 else ''} {said}{more}"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
