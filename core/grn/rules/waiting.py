"""The order of the queue, and who may overtake whom.

Order: priority, then arrival, unless fair shares or aging are asked for (see `fairness`) or the order of
run times. The first request that could run but finds no room is the *head*. It
gets a reservation: the devices on which it will start. Others may be placed in the meantime, on
other devices freely, on reserved ones only if that cannot delay the head, whichever of the running
jobs end first. Where run times are unknown, "cannot delay" is decided for every possible order of
ends: for each set of running leases beside which the head would fit, it must fit beside that set
and the newcomer too. Where they were learnt, a job that is likely over before the head can start does
not count as delaying it; as that may turn out wrong, it ends once the head has waited twice as long as
was likely (see `backfill`). A reservation stays with the head until it starts, so its devices drain and
its wait is bounded by the jobs that already run there.

Run times: a request counts as if it had come later by `STRETCH` times the run time that its type is
expected to have. So short ones go first, and nobody starves: whoever comes more than that time after
a job cannot go before it. What nothing is known of is tried at once, since only running it teaches.

Requests of one shape fit, or do not, together. They are kept as one *kind* each, in order, so that a
decision looks at the first of each kind instead of at thousands of the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from grn.rules.fairness import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from grn.rules.model import Request

__all__ = [
    "ARRIVAL",
    "ORDERS",
    "RUN_TIME",
    "STRETCH",
    "Kind",
    "Reservation",
    "WaitingLine",
    "largest_sum_within",
    "would_delay",
]

ARRIVAL, RUN_TIME = "arrival", "run-time"
ORDERS = (ARRIVAL, RUN_TIME)

STRETCH = 10.0
"""Shorter jobs may go before one that came up to so many of its own run times earlier."""

Key = tuple[float, float, int]


class Kind:
    """The requests of one shape that wait, in order; `first` stands for all in what they need.

    `delay_s` is by how much they count as having come later. `least_mib`, `over_s` belong to who
    screens kinds: what one takes at least (-1: not told), and after how long it is likely over.
    """

    __slots__ = ("closed", "delay_s", "fresh", "keys", "least_mib", "over_s", "request", "shape")

    def __init__(self, shape: tuple[object, ...], request: Request) -> None:
        self.shape = shape
        self.request = request
        self.keys: list[Key] = []
        self.delay_s = 0.0
        self.fresh = True
        """Nothing was looked up about it yet, or that may have changed."""
        self.closed = 0
        """The number of the last round of decisions in which one of it was refused."""
        self.least_mib = -1
        self.over_s: float | None = None


class WaitingLine:
    """Requests that wait, in the order in which they are considered.

    Args:
        share: between whom turns are taken: "off", "user" or "client".
        aging_s: how long a wait is worth one step of priority; `None`: none is.
        order: `ARRIVAL`, or `RUN_TIME`: those expected to be over soon go first.
    """

    def __init__(
        self, share: str = "off", aging_s: float | None = None, order: str = ARRIVAL
    ) -> None:
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._of_type: dict[str, set[Kind]] = {}
        self._fresh: set[Kind] = set()
        self._by_ticket: dict[int, tuple[Request, Kind]] = {}
        self._turns = Turns(share) if share != "off" else None
        self._aging_s = aging_s
        self.by_run_time = order == RUN_TIME
        self.in_process = 0
        """How many of those that wait use the device in their own process."""
        self.expected_s: Callable[[str], float | None] | None = None
        """Says how long a job of a type is expected to run; who holds the profiles sets it."""

    def __len__(self) -> int:
        return len(self._by_ticket)

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _ in self.in_order())

    def in_order(self) -> list[tuple[Request, Kind]]:
        """List all that wait, each with its kind, in the order in which they are considered."""
        keys = sorted(key for kind in self.kinds() for key in self._shifted(kind))
        entries = [self._by_ticket[key[2]] for key in keys]
        if self._turns is None:
            return entries
        turns = self._turns.in_turn(
            [request for request, _ in entries], priorities=not self._aging_s
        )
        return [self._by_ticket[request.ticket] for request in turns]

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._by_ticket

    @property
    def takes_turns(self) -> bool:
        """Whether the order is not that of keys, but depends on who had which turns."""
        return self._turns is not None

    @property
    def want_devices(self) -> bool:
        """Whether any request wants a device, so that the devices must be known."""
        return any(kind.request.gpus for kind in self._kinds.values())

    def get(self, ticket: int) -> Request | None:
        """Look a waiting request up."""
        entry = self._by_ticket.get(ticket)
        return entry[0] if entry is not None else None

    def entry(self, ticket: int) -> tuple[Request, Kind]:
        """Return a waiting request with its kind."""
        return self._by_ticket[ticket]

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        shape = request.shape
        kind = self._kinds.get(shape)
        if kind is None:
            kind = self._kinds[shape] = Kind(shape, request)
            self._fresh.add(kind)
            alike = self._of_type.get(request.type)
            if alike is None:
                self._of_type[request.type] = {kind}
            else:
                alike.add(kind)
        insort(kind.keys, self._key(request))
        self._by_ticket[request.ticket] = (request, kind)
        self.in_process += request.in_process
        if self._turns is not None:
            self._turns.joined(request)

    def remove(self, ticket: int, *, granted: bool = False) -> Request | None:
        """Take a request out; `None` if it does not wait."""
        entry = self._by_ticket.pop(ticket, None)
        if entry is None:
            return None
        request, kind = entry
        if len(kind.keys) == 1:
            kind.keys.clear()
            self._drop(kind)
        else:
            del kind.keys[bisect_left(kind.keys, self._key(request))]
        self.in_process -= request.in_process
        if self._turns is not None:
            self._turns.left(request, granted=granted)
        return request

    def _drop(self, kind: Kind) -> None:
        del self._kinds[kind.shape]
        self._fresh.discard(kind)
        alike = self._of_type[kind.request.type]
        if len(alike) == 1:
            del self._of_type[kind.request.type]
        else:
            alike.remove(kind)

    def copied(self, most: int) -> WaitingLine:
        """Return a line of its own with the first `most` requests, in which turns go on from here."""
        twin = WaitingLine(aging_s=self._aging_s)
        twin.by_run_time, twin.expected_s = self.by_run_time, self.expected_s
        first = list(islice(self, most))
        for request in first:
            twin.add(request)
        if self._turns is not None:
            twin._turns = self._turns.copied(first)
        return twin

    # -- by kind --------------------------------------------------------------------------------

    def kinds(self) -> Iterable[Kind]:
        """List the kinds that wait; how long they are expected to run is as of now."""
        if self.by_run_time:
            for kind in self._fresh:
                self.reckon(kind)
        return self._kinds.values()

    def taken_fresh(self) -> list[Kind]:
        """Hand out the kinds that are fresh, to be looked up: they are listed once."""
        fresh = list(self._fresh)
        self._fresh.clear()
        return fresh

    def heads(self) -> list[tuple[Key, Kind]]:
        """List the kinds that wait, in no order, each with what the first of it is ordered by."""
        kinds = self._kinds.values()
        if not self.by_run_time:
            return [(kind.keys[0], kind) for kind in kinds]
        return [(self._shift(kind.keys[0], kind.delay_s), kind) for kind in kinds]

    def reckon(self, kind: Kind) -> None:
        """Find out by how much a kind counts as having come later."""
        if self.by_run_time and self.expected_s is not None:
            kind.delay_s = STRETCH * (self.expected_s(kind.request.type) or 0.0)

    def renew(self, types: set[str] | None) -> None:
        """Take note that what is known of these job types has changed; `None`: of any."""
        for job_type in self._of_type if types is None else types:
            for kind in self._of_type.get(job_type, ()):
                kind.fresh = True
                self._fresh.add(kind)

    def key(self, ticket: int) -> Key:
        """Return by what a waiting request is ordered among all."""
        request, kind = self._by_ticket[ticket]
        key = self._key(request)
        return self._shift(key, kind.delay_s) if kind.delay_s else key

    def after(self, kind: Kind, request: Request) -> Key | None:
        """Return by what the next of a kind is ordered, after a request of it that may be gone."""
        place = bisect_right(kind.keys, self._key(request))
        return self._shift(kind.keys[place], kind.delay_s) if place < len(kind.keys) else None

    def _shifted(self, kind: Kind) -> list[Key]:
        return [self._shift(key, kind.delay_s) for key in kind.keys]

    def _shift(self, key: Key, delay_s: float) -> Key:
        if self._aging_s:
            return (key[0] + delay_s, key[1], key[2])
        return (key[0], key[1] + delay_s, key[2])

    def _key(self, request: Request) -> Key:
        if self._aging_s:
            first = request.arrived_s - request.priority * self._aging_s
            return (first, request.arrived_s, request.ticket)
        return (-request.priority, request.arrived_s, request.ticket)


class Reservation(NamedTuple):
    """What is kept for the head: devices with MiB and compute on each, or CPUs and RAM, or both.

    `starts_s` is when the head is likely to start: until then others may use it. It is put off as
    jobs run on, but never beyond `latest_s`.
    """

    ticket: int
    needs_mib: dict[str, int]
    alone: bool
    cpus: int = 0
    ram_mib: int = 0
    compute: int = 0
    starts_s: float = 0.0
    latest_s: float = 0.0


def largest_sum_within(parts: Iterable[int], limit: int) -> int:
    """Return the largest sum of some of `parts` that is at most `limit`.

    A set of reachable sums is one big integer, bit n for sum n: a few shifts for a device.
    """
    if limit <= 0:
        return 0
    full = (1 << (limit + 1)) - 1
    sums = 1
    for part in parts:
        if part <= limit:
            sums |= (sums << part) & full
    return sums.bit_length() - 1


def would_delay(*, room_mib: int, held: Iterable[int], head_mib: int, newcomer_mib: int) -> bool:
    """Tell whether a newcomer can delay the head on a device, for some order of ends.

    Args:
        room_mib: what leases may take on the device in all.
        held: what each present lease counts for.
        head_mib: what the head will take.
        newcomer_mib: what the newcomer would take.
    """
    slack = room_mib - head_mib
    return largest_sum_within(held, slack) + newcomer_mib > slack
