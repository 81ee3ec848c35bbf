"""A round of decisions: who of those that wait gets a lease now, and who becomes the head.

In the line's order each request is placed or refused; the first that is refused for want of room is
the head, and what is kept for it binds all after it. Requests of one kind are refused together. Once
there is a head, kinds that certainly find no room are passed over (see `screening`).

A newcomer that comes after the head is decided by itself: since the last round nothing was given
back and nothing was learnt, so all others would be refused again.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from grn.rules.groups import Groups
from grn.rules.placing import NO_ROOM, Placement, Placer, Waits
from grn.rules.screening import Screen, look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from grn.rules.fairness import Limits
    from grn.rules.ledger import Ledger
    from grn.rules.model import Lease, Request
    from grn.rules.profiles import ProfileBook
    from grn.rules.waiting import Key, Kind, Reservation, WaitingLine

__all__ = ["Decider"]


class Decider:
    """Decides over the line; who grants is called back for each request that is placed.

    Args:
        grant: takes a request, where it goes, and the leases of its own process that it replaces.
        own: the leases of the process that asks which only drain; see `succession.left_by`.
    """

    def __init__(
        self,
        ledger: Ledger,
        placer: Placer,
        profiles: ProfileBook,
        line: WaitingLine,
        limits: Limits,
        groups: Groups | None = None,
        *,
        grant: Callable[[Request, Placement, list[Lease]], None],
        own: Callable[[Request], list[Lease]] | None = None,
    ) -> None:
        self._ledger = ledger
        self._placer = placer
        self._profiles = profiles
        self._line = line
        self._limits = limits
        self._groups = Groups(line) if groups is None else groups
        self._grant = grant
        self._own = own
        self.reservation: Reservation | None = None
        self.reached: dict[int, str] = {}
        """By ticket: the limit that holds a request up."""
        self._round = 0
        self._screen: Screen | None = None
        line.expected_s = profiles.expected_s

    def forget(self, ticket: int) -> None:
        """Keep nothing more for a request that waits no longer."""
        self.reached.pop(ticket, None)
        if self.reservation is not None and self.reservation.ticket == ticket:
            self.reservation = None

    # -- all that wait --------------------------------------------------------------------------

    def decide(self, now: float, leases: Iterable[Lease], *, one_by_one: bool = False) -> None:
        """Look at all that wait. `one_by_one`: at each by itself, not at the first of each kind."""
        old = self.reservation
        self.reservation = None
        if not len(self._line):
            self._profiles.touched.clear()
            self.reached.clear()
            return
        self._begin(now, leases)
        self._screen = None
        owns = self._own if one_by_one else None
        one_by_one = one_by_one or self._line.takes_turns
        limited = self._limits.given
        for request, kind in self._line.in_order() if one_by_one else self._by_kind(now):
            if limited and self._held_by_limit(request):
                continue
            if request.group:
                self._decide_group(request, kind, old, owns)
                continue
            own = owns(request) if owns is not None else []
            if kind.closed == self._round and not own:
                continue
            head: Reservation | None = self.reservation
            verdict, replaced = self._place(request, kind, head, own)
            if isinstance(verdict, Placement):
                self._granted(request, verdict, replaced)
                continue
            kind.closed = self._round
            if head is None and verdict.for_room:
                self.reservation = self._placer.reserve(request, old)
                self._screen = None

    def _decide_group(
        self,
        request: Request,
        kind: Kind,
        old: Reservation | None,
        owns: Callable[[Request], list[Lease]] | None,
    ) -> None:
        """Grant all members of a group, or none."""
        members = self._groups.members(request)
        if reached := self._limits.reached_together(members):
            self.reached.update((member.ticket, reached) for member in members)
            return
        if owns is not None and self._go_on_together(members, [owns(x) for x in members]):
            return
        placed = self._groups.placed(members, self._placer, self._ledger, self.reservation)
        if len(placed) == len(members):
            for member, placement in placed:
                self._granted(member, placement, [])
            return
        kind.closed = self._round
        if self.reservation is None:
            self.reservation = self._groups.reserve(request, self._placer, self._ledger, old)
            self._screen = None

    def _go_on_together(self, members: Sequence[Request], own: list[list[Lease]]) -> bool:
        """Grant a group whose processes hold memory on from leases before, each where it holds it.

        They must not wait for themselves. Only where no two of them share a device: what one gives
        up need not be counted for another then.
        """
        if not any(own):
            return False
        narrowed = [_where_it_is(*pair) for pair in zip(members, own, strict=True)]
        with self._ledger.without([lease.id for leases in own for lease in leases]):
            placed = self._groups.placed(narrowed, self._placer, self._ledger, None)
        if len(placed) < len(members):
            return False
        places = [set(placement.uuids) for _, placement in placed]
        if len(set().union(*places)) < sum(map(len, places)):
            return False
        if not all(x.issuperset(y.uuids) for x, ys in zip(places, own, strict=True) for y in ys):
            return False
        for member, (_, placement), leases in zip(members, placed, own, strict=True):
            self._granted(member, placement, leases)
        return True

    def _begin(self, now: float, leases: Iterable[Lease]) -> None:
        self._round += 1
        self._placer.now = now
        self.reached.clear()
        self._limits.count(leases)
        touched = self._profiles.touched
        if touched:
            self._line.renew(None if self._profiles.lends else touched)
            touched.clear()

    def _by_kind(self, now: float) -> Iterator[tuple[Request, Kind]]:
        """Yield the first of each kind, the next one of it only if that one was not refused."""
        line = self._line
        for fresh in line.taken_fresh():
            line.reckon(fresh)
            look_up(fresh, self._placer)
        heads = line.heads()
        heapify(heads)
        while heads:
            key, kind = heappop(heads)
            request = line.entry(key[2])[0]
            yield request, kind
            if kind.closed != self._round:
                following = line.after(kind, request)
                if following is not None:
                    heappush(heads, (following, kind))
                if self._limits.given:
                    continue  # of each that waits it is said whether a limit holds it up
            elif self._screen is None:  # not before somebody is refused: most rounds need none
                self._screen = Screen(self._ledger, self.reservation, now)
            else:
                continue
            if self._screen is not None and self.reservation is not None:
                heads = self._screen.let_through(heads)
                heapify(heads)

    def _place(
        self, request: Request, kind: Kind, head: Reservation | None, own: list[Lease]
    ) -> tuple[Placement | Waits, list[Lease]]:
        """Decide for one request; return what it takes the place of, of its process's `own`."""
        if own:
            with self._ledger.without([lease.id for lease in own]):
                # What is kept for the head cannot be had before this process goes on.
                verdict = self._placer.place(request, None, in_words=False)
            uuids = set(verdict.uuids) if isinstance(verdict, Placement) else set()
            replaced = [lease for lease in own if not uuids.isdisjoint(lease.uuids)]
            if all(uuids.issuperset(lease.uuids) for lease in replaced):
                return verdict, replaced
        # Only of room is it said for certain that there is none: a probe may wait for another one.
        screen = self._screen
        told = screen is not None and kind.least_mib >= 0 and not kind.fresh
        if told and screen is not None and screen.rejects(kind):
            return NO_ROOM, []
        return self._placer.place(request, head, in_words=False), []

    def _granted(self, request: Request, placement: Placement, replaced: list[Lease]) -> None:
        self._grant(request, placement, replaced)
        self._limits.add(request)
        if replaced:
            self._screen = None  # there may be more room than before
        elif self._screen is not None:
            self._screen.took(placement.uuids)

    def _held_by_limit(self, request: Request) -> bool:
        reached = self._limits.reached(request)
        if reached:
            self.reached[request.ticket] = reached
        return bool(reached)

    # -- newcomers ------------------------------------------------------------------------------

    def decide_newcomers(self, now: float, tickets: Collection[int]) -> bool:
        """Look at these alone; tell whether that will do, or all must be looked at."""
        line = self._line
        if line.takes_turns or self._profiles.touched or self._limits.given:
            return False
        if len(self._groups) and any(ticket in self._groups for ticket in tickets):
            return False
        newcomers = [line.entry(ticket) for ticket in tickets]
        for _, kind in newcomers if line.by_run_time else ():
            if kind.fresh:
                line.reckon(kind)
        if len(newcomers) > 1:
            newcomers.sort(key=lambda newcomer: line.key(newcomer[0].ticket))
        head = self.reservation
        if head is not None and not self._binds(head, line.key(newcomers[0][0].ticket), now):
            return False
        self._round += 1
        self._placer.now = now
        self._screen = None
        for request, kind in newcomers:
            # What came before it of its kind was refused; so would it be.
            if kind.closed != self._round and kind.keys[0][2] == request.ticket:
                self._decide_alone(request, kind)
        return True

    def _binds(self, head: Reservation, first: Key, now: float) -> bool:
        """Whether the head stays the head beside newcomers, and what was said of it is still true."""
        if head.ticket not in self._line or first < self._line.key(head.ticket):
            return False
        return not head.starts_s < now < head.latest_s  # or it should have started by now

    def _decide_alone(self, request: Request, kind: Kind) -> None:
        verdict = self._placer.place(request, self.reservation, in_words=False)
        if isinstance(verdict, Placement):
            self._grant(request, verdict, [])
            return
        kind.closed = self._round
        if self.reservation is None and verdict.for_room:
            self.reservation = self._placer.reserve(request, None)


def _where_it_is(request: Request, own: list[Lease]) -> Request:
    """Narrow a request to the devices on which its process holds memory, if it asks for as many."""
    held = frozenset(uuid for lease in own for uuid in lease.uuids)
    if not own or request.gpus != len(held):
        return request
    return replace(request, allowed=held if request.allowed is None else held & request.allowed)
