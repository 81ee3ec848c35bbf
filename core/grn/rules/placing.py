"""Where a request goes, and why it must wait.

Pure decisions over the ledger, the profiles and the leases that are held. Nothing here changes
anything but the reservation for the head of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grn.rules.backfill import likely_over_s
from grn.rules.estimate import ALONE_AFTER_OOMS, OTHER_MODEL_FACTOR
from grn.rules.impossible import impossible, wanted, why_not
from grn.rules.interference import undisturbed
from grn.rules.ledger import WHOLE_COMPUTE
from grn.rules.model import DeviceState, LeaseState
from grn.rules.policy import BUILT_IN, choose
from grn.rules.priors import prior_mib
from grn.rules.reserving import LEAST_ROOM_FOR_ALONE, can_hold, likely_start, taken_mib, when
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
            if not request.cpus and (wish or 1) <= self.smallest_mib:
                return None  # as nearly always
        return impossible(self._ledger, request, self._note)

    # -- what it needs --------------------------------------------------------------------------

    def need(self, request: Request, model: str) -> Need:
        """Return what the request takes on a device of this model."""
        if request.memory_mib is None and not (request.whole or request.compute):
            settled = self._profiles.settled_mib(request.type, model)
            if settled is not None:
                return self._shared(settled)
        need = self._need(request, model)
        return need._replace(compute=request.compute) if request.compute else need

    def _need(self, request: Request, model: str) -> Need:
        if request.whole:
            return Need(None, alone=True, probe=False)
        if request.memory_mib is not None:
            # A declared size below a peak that was seen would take its neighbours' memory.
            seen = self._profiles.peak_mib(request.type, model) or 0
            return self._shared(max(request.memory_mib, seen))
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
        probe = LeaseState.PROBE
        for lease in self._leases.values():
            if lease.state is probe and lease.type == job_type:
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
        if self.plain and request.allowed is None and not in_words:
            need = self.need(request, self.models[0])
            if not need.wait:
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
        """Do the same on devices that are all alike, as is most common."""
        books, count = self._ledger.books, request.gpus or 1
        if need.mib is not None and need.mib > self.smallest_mib:
            # Learnt elsewhere: all of a device is the best there is.
            need = need._replace(mib=self.smallest_mib, alone=True)
        elif count > 1:
            need = self._alone_or_not(need)
        if head is not None and self._over_before(head, request.type, books[0]):
            head = None  # it is in nobody's way
        least, alone, most = need.mib or 0, need.alone, self.smallest_mib
        by_room, ok = not (alone or need.compute), DeviceState.OK
        kept = head.needs_mib if head is not None else ()
        fitting = [
            book
            for book in books
            if most - book.foreign_mib - book.committed_mib >= least
            and not (book.alone or (alone and book.bookings))
            and book.state is ok
            and (
                (by_room and book.usage_known and not (kept and book.device.uuid in kept))
                or self.fits(book, need, head)
            )
        ]
        chosen = self._chosen(fitting, request, count)
        if chosen is None:
            return NO_ROOM
        taken = [books[position] for position in chosen]
        alone = self.is_alone(need, taken[0])
        mib = min([book.free_mib for book in taken]) if alone else least
        uuids = tuple([book.device.uuid for book in taken])
        return Placement(uuids, mib, alone=alone, probe=need.probe)

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
        if self.plain and request.allowed is None:
            return self._all_alike(self.need(request, self.models[0]), count)
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

    def _all_alike(self, need: Need, count: int) -> list[_Pair]:
        """Do the same where all devices are alike: none is larger, or too small beside others."""
        if count > 1:
            need = self._alone_or_not(need)
        return [(book, need) for book in self._ledger.books]

    def _alone_or_not(self, need: Need) -> Need:
        """Take several devices that are all alike alone if any of them must be, see `_alike`."""
        books = self._ledger.books
        if need.alone or (
            (need.mib or 0) <= self.smallest_mib and all(book.usage_known for book in books)
        ):
            return need
        return need._replace(alone=True)

    def _alike(self, pairs: list[_Pair], count: int) -> list[_Pair]:
        """Give several devices one need: a lease books the same on each, alone on all or none."""
        mib = max((need.mib for _, need in pairs if need.mib is not None), default=None)
        same = pairs[0][1]._replace(mib=mib, alone=any(need.alone for _, need in pairs))
        pairs = _large_enough([(book, same) for book, _ in pairs], count)
        if not same.alone and any(self.is_alone(same, book) for book, _ in pairs):
            same = same._replace(alone=True)
        return [(book, same) for book, _ in pairs]

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
        device, mib = book.device, need.mib
        if need.alone or not book.usage_known or device.one_process:
            return True
        # Learnt elsewhere, larger than this device: all of it is the best there is.
        return mib is not None and mib > device.capacity_mib

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
            if book.bookings:
                return False
            free_mib, capacity_mib = book.free_mib, book.device.capacity_mib
            enough = need.mib is None or min(need.mib, capacity_mib) <= free_mib
            half = book.room_mib * LEAST_ROOM_FOR_ALONE >= capacity_mib
            return half and enough and free_mib > 0
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
        pairs = self.candidates(request, count) if count else []
        asked = [(book, need, self.is_alone(need, book)) for book, need in pairs]
        able = [choice for choice in asked if can_hold(choice)]
        if len(able) < count:
            return None
        before = old if old is not None and old.ticket == request.ticket else None
        kept = before.needs_mib if before is not None else {}
        taken = [choice for choice in able if choice[0].device.uuid in kept]
        needs_mib = taken_mib(taken)
        if before is None or needs_mib != kept:
            able.sort(key=when)
            taken = able[:count]
            needs_mib = taken_mib(taken)
        # CPUs are kept only while they are what is missing: a job that wants no device must not
        # wait behind one that waits for a device. The devices stay kept meanwhile, or jobs that
        # take the one and jobs that take the other could keep the head waiting by turns.
        lacks = self._pools_wait(request, None) is not None
        leases, profiles, now = self._leases, self._profiles, self.now
        starts_s = max([likely_start(each, leases, profiles, now) for each in taken], default=now)
        if before is not None:
            latest_s = before.latest_s
        else:
            latest_s = starts_s + max(0.0, starts_s - request.arrived_s)
        return Reservation(
            request.ticket,
            needs_mib,
            alone=any(alone for _, _, alone in taken),
            cpus=(request.cpus or 0) if lacks else 0,
            ram_mib=(request.ram_mib or 0) if lacks else 0,
            compute=request.compute or 0,
            starts_s=min(starts_s, latest_s),
            latest_s=latest_s,
        )

    def able(self, book: Book, need: Need) -> bool:
        """Whether the device will do once its leases end, others' memory staying as it is."""
        return can_hold((book, need, self.is_alone(need, book)))


def _largest(pairs: list[_Pair], count: int) -> list[_Pair]:
    """Leave out what is smaller than the `count` largest devices."""
    sizes = sorted((book.device.capacity_mib for book, _ in pairs), reverse=True)
    least = sizes[min(count, len(sizes)) - 1]
    return [pair for pair in pairs if pair[0].device.capacity_mib >= least]


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
