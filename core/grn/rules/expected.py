"""When each request that waits would start, if jobs run as long as jobs of their types did.

The books are played forward on a copy: what runs ends at its typical time, the real placer decides what
starts then, and that ends at its own typical time. A job that has run longer than all of its type is
about to end. Where nothing is known, nothing is guessed: what has no known end holds its devices for
good, so whatever can only start after it has no expected start, while what finds room elsewhere has.

Bounded, since the broker does nothing else meanwhile: the first `MOST_WAITERS` of the line, and
`MOST_ENDS` moments at which something ends, and `MOST_DECISIONS` of the placer. Beyond that nothing is
known.

Pure: the time is an argument; nothing of the machine is changed.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from grn.rules.model import DeviceState, Lease, LeaseState
from grn.rules.placing import Placement, Placer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.ledger import Book, Ledger
    from grn.rules.machine import Machine
    from grn.rules.model import Request
    from grn.rules.profiles import ProfileBook
    from grn.rules.waiting import Reservation

__all__ = [
    "MOST_DECISIONS",
    "MOST_ENDS",
    "MOST_WAITERS",
    "Expectations",
    "Forecast",
    "expected_end",
    "expected_starts",
    "forecasts",
    "typical_s",
]

MOST_WAITERS = 200
MOST_ENDS = 64
MOST_DECISIONS = 600
"""Each asks the placer once; most of a sweep is of one shape, and decided together."""

_KEPT_S = 1.0
_LONG_LINE = 50
_KEPT_OF_A_LONG_LINE_S = 3.0
"""Where many wait, most wait for long, and working it out takes longest."""

_KEPT_UNCHANGED_S = 5.0
"""If nobody came, started, ended or left: what is overdue is later by so much, nothing else is."""

_DRAINS_WITHIN_S = 10.0
"""A process frees its memory within moments of its job's end, or nobody knows when."""


class Forecast(NamedTuple):
    """When a request is expected to start, on the clock of the leases, and where."""

    start_s: float
    uuids: tuple[str, ...]
    probe: bool


class Expectations:
    """The last answer, which serves all who ask within a second or so, longer if nothing happened."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._of: object = None
        self._known: dict[int, Forecast] = {}

    def at(self, machine: Machine, now: float) -> Mapping[int, Forecast]:
        """Return what `forecasts` says, as of the last moments."""
        age = None if self._at is None else now - self._at
        kept_s = _KEPT_S if len(machine.line) <= _LONG_LINE else _KEPT_OF_A_LONG_LINE_S
        if age is not None and 0 <= age < kept_s:
            return self._known
        of = (tuple(machine.leases), tuple(request.ticket for request in machine.line))
        if age is None or of != self._of or not 0 <= age < _KEPT_UNCHANGED_S:
            self._known = forecasts(machine, now)
            self._at, self._of = now, of
        return self._known


def expected_starts(machine: Machine, now: float) -> dict[int, float | None]:
    """Return by ticket when each waiting request would start, on the clock of the leases.

    `None`: a run time on the way to it is not known, or it is too far off. What is about to be
    decided starts `now`. What waits inside a lease is not in it.
    """
    known = forecasts(machine, now)
    return {
        request.ticket: known[request.ticket].start_s if request.ticket in known else None
        for request in machine.line
    }


def forecasts(machine: Machine, now: float, more: Request | None = None) -> dict[int, Forecast]:
    """Return by ticket what is expected of those requests of which anything is.

    `more` is a request that is only thought of: it waits with the others.
    """
    waits = len(machine.line) or more is not None
    if not waits or machine.disk_problem or machine.closing:
        return {}
    return _Play(machine, now, more).forecasts()


def typical_s(durations_s: Iterable[float], ran_s: float = 0.0) -> float | None:
    """Return how long a run takes that has lasted `ran_s`, by what earlier ones took.

    It is the median of those that took at least as long; `ran_s` if none did: it is about to end.
    `None` if there are none at all.
    """
    known = sorted(durations_s)
    if not known:
        return None
    longer = known[bisect_left(known, ran_s) :]
    if not longer:
        return ran_s
    middle = len(longer) // 2
    return (longer[middle] + longer[~middle]) / 2


class _Play:
    """A copy of the books, played forward."""

    def __init__(self, machine: Machine, now: float, more: Request | None) -> None:
        self._now = now
        self._ledger = machine.ledger.copied()
        self._leases = dict(machine.leases)
        self._profiles = machine.profiles
        self._placer = Placer(
            self._ledger, machine.profiles, self._leases, policies=machine.placer.policies
        )
        self._limits = machine.limits
        self._line = machine.line.copied(MOST_WAITERS)
        if more is not None and len(self._line) < MOST_WAITERS:
            self._line.add(more)
        self._reservation = machine.reservation
        self._known: dict[int, Forecast] = {}
        self._decisions = 0
        shapes: dict[tuple[object, ...], int] = {}
        self._shape = {r.ticket: shapes.setdefault(r.shape, r.ticket) for r in self._line}
        """By ticket, the first ticket of that shape: quicker to look up than the shape."""
        models = {book.device.model for book in self._ledger.books}
        self._least_mib = {
            ticket: self._least(request, models)
            for ticket in shapes.values()
            if (request := self._line.get(ticket)) is not None
        }
        self._ends = [
            (end, lease.id)
            for lease in self._leases.values()
            if (end := expected_end(lease, self._ledger, self._profiles, now)) is not None
        ]
        heapify(self._ends)

    def forecasts(self) -> dict[int, Forecast]:
        """Play until nobody waits, nothing ends any more, or it went on for long enough."""
        self._settle(self._now)
        for _ in range(MOST_ENDS):
            if not self._ends or not len(self._line) or self._decisions >= MOST_DECISIONS:
                break
            now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= now:
                self._end(heappop(self._ends)[1])
            self._settle(now)
        return self._known

    def _least(self, request: Request, models: Iterable[str]) -> float:
        """Return the least that the request takes on a device that is not empty, MiB."""
        if not request.gpus:
            return 0
        needs = [self._placer.need(request, model).mib for model in models]
        return min((mib for mib in needs if mib is not None), default=inf)

    def _end(self, lease_id: str) -> None:
        lease = self._leases.pop(lease_id)
        self._ledger.remove(lease.id, lease.uuids)

    def _settle(self, now: float) -> None:
        """Grant what fits, as the machine does."""
        self._placer.now = now
        self._limits.count(self._leases.values())
        head: Reservation | None = None
        no_room: set[int] = set()
        room: _Room | None = None
        for request in self._line:
            shape = self._shape[request.ticket]
            if shape in no_room or self._limits.reached(request):
                continue
            if head is not None:
                room = room or _Room(self._ledger.books)
                if not room.may_suffice(self._least_mib[shape]):
                    continue
            self._decisions += 1
            verdict = self._placer.place(request, head, in_words=False)
            if isinstance(verdict, Placement):
                self._grant(request, verdict, now)
                room = None
                continue
            no_room.add(shape)
            if head is None and verdict.for_room:
                head = self._placer.reserve(request, self._reservation)
        self._reservation = head

    def _grant(self, request: Request, placement: Placement, now: float) -> None:
        self._line.remove(request.ticket, granted=True)
        self._known[request.ticket] = Forecast(now, placement.uuids, placement.probe)
        lease = Lease(
            id=f"expected-{request.ticket}",
            number=0,
            request=request,
            uuids=placement.uuids,
            booked_mib=placement.mib,
            state=LeaseState.PROBE if placement.probe else LeaseState.RUNNING,
            granted_s=now,
            threads=1,
        )
        self._ledger.place(
            lease.id,
            placement.uuids,
            placement.mib,
            alone=placement.alone,
            cpus=request.cpus,
            ram_mib=request.ram_mib,
            compute=request.compute,
        )
        self._leases[lease.id] = lease
        self._limits.add(request)
        end = expected_end(lease, self._ledger, self._profiles, now)
        if end is not None:
            heappush(self._ends, (end, lease.id))


class _Room:
    """The most that is free on any device: many requests are told by that alone not to fit."""

    def __init__(self, books: Iterable[Book]) -> None:
        usable = [book for book in books if book.state is DeviceState.OK and book.alone is None]
        self._has_empty = any(not book.bookings for book in usable)
        self._most_mib = max((book.free_mib for book in usable), default=-1)

    def may_suffice(self, least_mib: float) -> bool:
        """Whether so much might fit; sure only if it says no. An empty device takes what is larger."""
        return self._has_empty or least_mib <= self._most_mib


def expected_end(lease: Lease, ledger: Ledger, profiles: ProfileBook, now: float) -> float | None:
    """Return when a lease is expected to end; `None` if there is nothing to tell it by."""
    if lease.state is LeaseState.DRAINING:
        recent = lease.ended_s is not None and now - lease.ended_s < _DRAINS_WITHIN_S
        return now if recent else None
    book = ledger.by_uuid.get(lease.uuids[0]) if lease.uuids else None
    profile = profiles.find(lease.type, book.device.model) if book is not None else None
    if profile is None:
        return None
    began = lease.granted_s if lease.started_s is None else lease.started_s
    typical = typical_s(profile.durations_s, max(0.0, now - began))
    return None if typical is None else max(now, began + typical)
