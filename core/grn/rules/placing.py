"""Where a request goes, and why it must wait.

Pure decisions over the ledger, the profiles and the leases that are held. Nothing here changes
anything but the reservation for the head of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grn.rules.backfill import likely_end, likely_over_s, room_at
from grn.rules.estimate import ALONE_AFTER_OOMS, OTHER_MODEL_FACTOR
from grn.rules.impossible import impossible, wanted, why_not
from grn.rules.interference import undisturbed
from grn.rules.ledger import WHOLE_COMPUTE
from grn.rules.model import DeviceState, LeaseState
from grn.rules.policy import BUILT_IN, choose
from grn.rules.priors import prior_mib
from grn.rules.topology import distances
from grn.rules.waiting import Reservation, would_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grn.rules.ledger import Book, Ledger
    from grn.rules.model import Lease, Request
    from grn.rules.policy import Room
    from grn.rules.profiles import ProfileBook

__all__ = ["NO_ROOM", "Need", "Placement", "Placer", "Waits"]

_NEEDS_KEPT = 4096
_LEAST_ROOM_FOR_ALONE = 2
"""A probe or whole-device lease wants a device of which others hold at most one half."""


class Placement(NamedTuple):
    """A decision: these devices, this booking on each."""

    uuids: tuple[str, ...]
    mib: int
    alone: bool
    probe: bool


class Waits(NamedTuple):
    """Why a request cannot be placed. `for_room`: it may be the head; others may overtake it."""

    reason: str
    for_room: bool = True


NO_ROOM = Waits("no room")
"""For who does not ask why."""


class Need(NamedTuple):
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
        policies: Mapping[str, Callable[[Room], float]] = BUILT_IN,
    ) -> None:
        self.policies = policies
        self._ledger = ledger
        self._profiles = profiles
        self._leases = leases
        self._needs: dict[int, Need] = {}
        self.now = 0.0
        """When it is decided, on the clock of the leases: who may end before whom depends on it."""
        self.renew(note)

    def renew(self, note: str) -> None:
        """Take in which devices there are; `note` says why none, or fewer than a mask names."""
        books = self._ledger.books
        self._note = f" ({note})" if note else ""
        self._distances = distances(book.device for book in books)
        self.models = list(dict.fromkeys(book.device.model for book in books))
        self.smallest_mib = min((book.device.capacity_mib for book in books), default=0)
        sizes = {book.device.capacity_mib for book in books}
        self.plain = len(self.models) == len(sizes) == 1 and not any(
            book.device.parent is not None or book.ram is not None or book.device.one_process
            for book in books
        )
        """All devices are alike, and none has a rule of its own."""

    def over(self, ledger: Ledger) -> Placer:
        """Return one that decides by the same rules over other books, of which no lease is known."""
        other = Placer(ledger, self._profiles, {}, policies=self.policies)
        other.now = self.now
        return other

    def impossible(self, request: Request) -> str | None:
        """Say why this machine can never meet the request, with numbers; `None` if it can."""
        if self.plain and request.gpus == 1 and request.allowed is None and not request.ram_mib:
            wish = request.memory_mib
            if not request.cpus and (wish is None or wish <= self.smallest_mib):
                return None  # as nearly always
        return impossible(self._ledger, request, self._note)

    # -- what it needs --------------------------------------------------------------------------

    def need(self, request: Request, model: str) -> Need:
        """Return what the request takes on a device of this model."""
        need = self._need(request, model)
        return need._replace(compute=request.compute) if request.compute else need

    def _need(self, request: Request, model: str) -> Need:
        if request.whole:
            return Need(None, alone=True, probe=False)
        if request.memory_mib is not None:
            # A declared size below a peak that was seen would take its neighbours' memory.
            seen = self._profiles.peak_mib(request.type, model) or 0
            return self._shared(max(request.memory_mib, seen))
        settled = self._profiles.settled_mib(request.type, model)
        if settled is not None:
            return self._shared(settled)
        learnt = self._profiles.estimate_mib(request.type, model, factor=OTHER_MODEL_FACTOR)
        if learnt is None:
            return self._unknown(request.type, model)
        if self._profiles.ooms(request.type, model) >= ALONE_AFTER_OOMS:
            return Need(None, alone=True, probe=False)
        return self._shared(learnt)

    def _shared(self, mib: int) -> Need:
        """Return what a job takes that shares its device; most are asked for again and again."""
        need = self._needs.get(mib)
        if need is None:
            if len(self._needs) >= _NEEDS_KEPT:
                self._needs.clear()
            need = self._needs[mib] = Need(mib, alone=False, probe=False)
        return need

    def _unknown(self, job_type: str, model: str) -> Need:
        if self._profiles.runs_unmeasured(job_type):
            return Need(None, alone=True, probe=True)
        prior = prior_mib(self._profiles, job_type, model) if self._profiles.lends else None
        if prior is not None and prior <= self.smallest_mib:
            return self._shared(prior)
        for lease in self._leases.values():
            if lease.state is LeaseState.PROBE and lease.type == job_type:
                text = f"the first run of this type is being measured (lease {lease.id})"
                return Need(None, alone=True, probe=True, wait=text)
        return Need(None, alone=True, probe=True)

    # -- where it goes --------------------------------------------------------------------------

    def place(
        self, request: Request, head: Reservation | None, *, in_words: bool = True
    ) -> Placement | Waits:
        """Decide for one request; `head` is the reservation of a request before it, if any.

        A refusal says why, unless it need not be `in_words`.
        """
        waits = self._pools_wait(request, head) if request.cpus or request.ram_mib else None
        if waits:
            return waits
        if not request.gpus:
            return Placement((), 0, alone=False, probe=False)
        if self.plain and request.gpus == 1 and request.allowed is None and not in_words:
            need = self.need(request, self.models[0])
            if not need.wait and (need.mib or 0) <= self.smallest_mib:
                return self._place_plainly(request, need, head)
        pairs = self.candidates(request, request.gpus)
        for _, need in pairs:
            if need.wait:
                return Waits(need.wait, for_room=False)
        fitting = [
            book
            for book, need in pairs
            if self.fits(book, need, head, request.type)
            and (book.ram is None or self.ram_suffices(book, need, request))
        ]
        chosen = self._chosen(fitting, request, request.gpus)
        if chosen is None:
            return Waits(self._why(request, pairs, head)) if in_words else NO_ROOM
        return self._placement([pair for pair in pairs if pair[0].position in chosen], request)

    def _place_plainly(
        self, request: Request, need: Need, head: Reservation | None
    ) -> Placement | Waits:
        """Do the same for one of several devices that are all alike, as is most common."""
        least = need.mib or 0
        by_room = not need.alone and not need.compute
        kept = head.needs_mib if head is not None else {}
        fitting: list[Book] = []
        for book in self._ledger.books:
            device = book.device
            free = device.capacity_mib - book.foreign_mib - book.committed_mib
            if free < least or book.alone or book.state is not DeviceState.OK:
                continue
            enough = by_room and book.usage_known and device.uuid not in kept
            if enough or self.fits(book, need, head, request.type):
                fitting.append(book)
        chosen = self._chosen(fitting, request, 1)
        if chosen is None:
            return NO_ROOM
        book = self._ledger.books[chosen[0]]
        alone = self.is_alone(need, book)
        mib = book.free_mib if alone else least
        return Placement((book.device.uuid,), mib, alone=alone, probe=need.probe)

    def _chosen(self, fitting: list[Book], request: Request, count: int) -> list[int] | None:
        """Choose among devices with room; return their positions, `None` if there are too few."""
        if len(fitting) > count:
            fitting = undisturbed(fitting, request, self._profiles, self._leases)
        return choose(fitting, count, self.policies[request.policy], self._distances)

    def _why(self, request: Request, pairs: list[_Pair], head: Reservation | None) -> str:
        said = [
            why_not(
                book,
                need,
                self._leases,
                kept=head is not None
                and book.device.uuid in head.needs_mib
                and self.fits(book, need, None),
            )
            for book, need in pairs
        ]
        return wanted(request.gpus or 1, [need for _, need in pairs], said)

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
        same = pairs[0][1]._replace(mib=mib, alone=any(need.alone for _, need in pairs))
        pairs = _large_enough([(book, same) for book, _ in pairs], count)
        alone = any(self.is_alone(same, book) for book, _ in pairs)
        return [(book, same._replace(alone=alone)) for book, _ in pairs]

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
        """Whether a job of this type is likely over before the head can start."""
        if head.starts_s <= self.now:
            return False
        ran_s = self.over_s(job_type, book.device.model)
        return ran_s is not None and self.now + ran_s <= head.starts_s

    def over_s(self, job_type: str, model: str) -> float | None:
        """Return after how long a job of this type is likely over, if enough is known of it."""
        return likely_over_s(self._profiles, job_type, model)

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
            [pair for pair in self.candidates(request, count) if self.able(*pair)] if count else []
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
        starts_s = max((self._starts(book, need) for book, need in taken), default=self.now)
        if old is not None and old.ticket == request.ticket:
            latest_s = old.latest_s
        else:
            latest_s = starts_s + max(0.0, starts_s - request.arrived_s)
        return Reservation(
            request.ticket,
            {book.device.uuid: self._take(book, need) for book, need in taken},
            alone=any(self.is_alone(need, book) for book, need in taken),
            cpus=(request.cpus or 0) if lacks else 0,
            ram_mib=(request.ram_mib or 0) if lacks else 0,
            compute=request.compute or 0,
            starts_s=min(starts_s, latest_s),
            latest_s=latest_s,
        )

    def _starts(self, book: Book, need: Need) -> float:
        """Return when the device is likely to have room for the head."""
        ends = [
            (likely_end(self._leases[lease], [book.device.model], self._profiles, self.now), b)
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

    def able(self, book: Book, need: Need) -> bool:
        """Whether the device will do once its leases end, others' memory staying as it is."""
        if book.state is not DeviceState.OK:
            return False
        if self.is_alone(need, book):
            enough = min(need.mib or 0, book.device.capacity_mib) <= book.room_mib
            return enough and book.room_mib * _LEAST_ROOM_FOR_ALONE >= book.device.capacity_mib
        return (need.mib or 0) <= book.room_mib

    def _when(self, book: Book, need: Need) -> tuple[int, int]:
        """Order devices by how little must end before the head fits: leases, then MiB."""
        if self.is_alone(need, book):
            return (len(book.bookings), book.committed_mib)
        bookings = book.bookings.values()
        of_memory = _ends((need.mib or 0) - book.free_mib, [b.counts_mib for b in bookings])
        lacks = need.compute - (WHOLE_COMPUTE - book.compute_booked) if need.compute else 0
        return (max(of_memory, _ends(lacks, [b.compute for b in bookings])), book.committed_mib)


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
