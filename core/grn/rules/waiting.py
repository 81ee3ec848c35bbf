"""The order of the queue, and who may overtake whom.

Order: priority, then arrival, unless fair shares or aging are asked for (see `fairness`). The first request that could run but finds no room is the *head*. It
gets a reservation: the devices on which it will start. Others may be placed in the meantime, on
other devices freely, on reserved ones only if that cannot delay the head, whichever of the running
jobs end first. Where run times are unknown, "cannot delay" is decided for every possible order of
ends: for each set of running leases beside which the head would fit, it must fit beside that set
and the newcomer too. Where they were learnt, a job that is over before the head can start does not
delay it either (see `backfill`). A reservation stays with the head until it starts, so its devices drain and
its wait is bounded by the jobs that already run there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from grn.rules.fairness import Turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from grn.rules.model import Request

__all__ = ["Reservation", "WaitingLine", "largest_sum_within", "would_delay"]

_Key = tuple[float, float, int]


class WaitingLine:
    """Requests that wait, in the order in which they are considered.

    Args:
        share: between whom turns are taken: "off", "user" or "client".
        aging_s: how long a wait is worth one step of priority; `None`: none is.
    """

    def __init__(self, share: str = "off", aging_s: float | None = None) -> None:
        self._keys: list[_Key] = []
        self._by_ticket: dict[int, Request] = {}
        self._turns = Turns(share) if share != "off" else None
        self._aging_s = aging_s

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Request]:
        requests = [self._by_ticket[key[2]] for key in self._keys]
        if self._turns is not None:
            requests = self._turns.in_turn(requests, priorities=not self._aging_s)
        return iter(requests)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._by_ticket

    @property
    def want_devices(self) -> bool:
        """Whether any request wants a device, so that the devices must be known."""
        return any(request.gpus for request in self._by_ticket.values())

    def get(self, ticket: int) -> Request | None:
        """Look a waiting request up."""
        return self._by_ticket.get(ticket)

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        insort(self._keys, self._key(request))
        self._by_ticket[request.ticket] = request
        if self._turns is not None:
            self._turns.joined(request)

    def remove(self, ticket: int, *, granted: bool = False) -> Request | None:
        """Take a request out; `None` if it does not wait."""
        request = self._by_ticket.pop(ticket, None)
        if request is not None:
            del self._keys[bisect_left(self._keys, self._key(request))]
            if self._turns is not None:
                self._turns.left(request, granted=granted)
        return request

    def copied(self, most: int) -> WaitingLine:
        """Return a line of its own with the first `most` requests, in which turns go on from here."""
        twin = WaitingLine(aging_s=self._aging_s)
        first = list(islice(self, most))
        if self._turns is not None:
            twin._turns = self._turns.copied(first)
        twin._keys = sorted(self._key(request) for request in first)
        twin._by_ticket = {request.ticket: request for request in first}
        return twin

    def _key(self, request: Request) -> _Key:
        if self._aging_s:
            first = request.arrived_s - request.priority * self._aging_s
            return (first, request.arrived_s, request.ticket)
        return (-request.priority, request.arrived_s, request.ticket)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept for the head: devices with MiB and compute on each, or CPUs and RAM, or both.

    `starts_s` is when the head may start at the earliest: until then others may use it.
    """

    ticket: int
    needs_mib: dict[str, int]
    alone: bool
    cpus: int = 0
    ram_mib: int = 0
    compute: int = 0
    starts_s: float = 0.0


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
