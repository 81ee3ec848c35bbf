"""Requests that start together: the ranks of one distributed job, asked for one by one.

A group is known by its user and its name, and is complete with `group_size` requests. Until then its
members hold nothing, so two half-complete groups cannot lock each other out; what is not complete
within `wait_s` is refused. A complete one waits in the line as one: its first member stands for all,
in its place. All are granted in one step, or none; as the head of the queue it has a reservation that
covers them all.

Pure: the time is an argument. Must not: place a single request otherwise than `Placer` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules import events as ev
from grn.rules.ledger import Ledger
from grn.rules.model import DeviceState
from grn.rules.placing import Placement, Placer
from grn.rules.waiting import Reservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from grn.rules.machine import Machine
    from grn.rules.model import Request
    from grn.rules.waiting import WaitingLine

__all__ = ["GROUP_WAIT_S", "Groups", "asked_together", "withdrawn"]

GROUP_WAIT_S = 600.0
"""So long an incomplete group waits for the rest of it, if the settings say nothing."""

_Key = tuple[int, str]
_Placed = list[tuple["Request", Placement]]


def _key(request: Request) -> _Key:
    return (request.owner.uid, request.group)


class Groups:
    """All groups that wait, complete or not.

    Args:
        line: where complete groups wait.
        wait_s: how long an incomplete one may wait for the rest of it.
    """

    def __init__(self, line: WaitingLine, wait_s: float = GROUP_WAIT_S) -> None:
        self._line = line
        self._wait_s = wait_s
        self._members: dict[_Key, list[Request]] = {}
        self._of: dict[int, _Key] = {}
        """By ticket, of all members that wait."""
        self._since: dict[_Key, float] = {}
        """Since when a group waits for members: since its first one came here, or one left it."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._of

    def everybody(self) -> Iterator[Request]:
        """Return all that wait, in the line's order, members beside each other, incomplete ones last."""
        for request in self._line:
            if request.ticket in self._of:
                yield from self.members(request)
            else:
                yield request
        for members in self._incomplete():
            yield from members

    # -- coming and going -----------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """Say why a request cannot join its group; `None` if it can."""
        members = self._members.get(_key(request), [])
        if not members:
            return None
        size = members[0].group_size
        if request.group_size != size:
            return (
                f"group {request.group!r} has {size} members by its first one, this one says"
                f" {request.group_size}: give all the same group_size"
            )
        if len(members) >= size:
            return (
                f"group {request.group!r} is complete with its {size} members, which still wait: give"
                " the next one another name"
            )
        return None

    def add(self, request: Request, now: float) -> bool:
        """Take a member in; tell whether its group is complete and waits in the line by now."""
        members = self._members.setdefault(_key(request), [])
        self._since.setdefault(_key(request), now)
        members.append(request)
        self._of[request.ticket] = _key(request)
        complete = len(members) >= members[0].group_size
        if complete:
            self._line.add(members[0])
        return complete

    def remove(self, ticket: int, now: float) -> Request | None:
        """Take a member out that is withdrawn; the others wait for another one in its place."""
        key = self._of.pop(ticket, None)
        if key is None:
            return None
        members = self._members[key]
        if self._line.remove(members[0].ticket) is not None:  # it was complete until now
            self._since[key] = now
        gone = next(request for request in members if request.ticket == ticket)
        members.remove(gone)
        if not members:
            del self._members[key], self._since[key]
        return gone

    def granted(self, request: Request) -> None:
        """Take a member out that starts."""
        key = self._of.pop(request.ticket)
        members = self._members[key]
        members.remove(request)
        if not members:
            del self._members[key], self._since[key]

    def members(self, request: Request) -> Sequence[Request]:
        """Return all that wait with this one, in the order of their arrival."""
        return tuple(self._members[_key(request)])

    def get(self, ticket: int) -> Request | None:
        """Look a member up."""
        key = self._of.get(ticket)
        found = self._members.get(key, []) if key is not None else []
        return next((request for request in found if request.ticket == ticket), None)

    # -- time -----------------------------------------------------------------------------------

    @property
    def due_s(self) -> float | None:
        """When the next incomplete group has waited for too long; `None`: there is none."""
        return min((self._due(members) for members in self._incomplete()), default=None)

    def expired(self, now: float) -> list[tuple[Request, str]]:
        """Take out what waited for too long for the rest of its group; return it with the reason."""
        gone: list[tuple[Request, str]] = []
        for members in [found for found in self._incomplete() if self._due(found) <= now]:
            size, came = members[0].group_size, len(members)
            text = (
                f"group {members[0].group!r}: {came} of {size} members came within {self._wait_s:g} s"
                " (group_wait): start them closer together, or with the right group_size"
            )
            gone += [(request, text) for request in members]
        for request, _ in gone:
            self.remove(request.ticket, now)
        return gone

    def _incomplete(self) -> Iterator[list[Request]]:
        return (found for found in self._members.values() if len(found) < found[0].group_size)

    def _due(self, members: Sequence[Request]) -> float:
        return self._since[_key(members[0])] + self._wait_s

    def reason(self, ticket: int, placer: Placer, ledger: Ledger) -> str:
        """Say what a group waits for; "" if that is what its first member waits for."""
        members = self._members[self._of[ticket]]
        size, name = members[0].group_size, members[0].group
        if len(members) < size:
            return f"group {name!r} starts together: {len(members)} of {size} members are here"
        placed = len(self.placed(members, placer, ledger, None))
        if not placed:
            return ""
        if placed == size:
            return f"group {name!r}: there is room, kept for the request at the head of the queue"
        return f"group {name!r} starts together: there is room for {placed} of its {size} members"

    # -- room -----------------------------------------------------------------------------------

    def impossible(self, request: Request, placer: Placer, ledger: Ledger) -> str | None:
        """Say why this machine can never hold the whole group; `None` if it can."""
        members = self.members(request)
        empty = Ledger(
            (book.device for book in ledger.books),
            cpus=ledger.cpus.total or 0,
            ram_mib=ledger.ram.total,
        )
        placed = self.placed(members, placer.over(empty), empty, None)
        if len(placed) == len(members):
            return None
        return (
            f"group {request.group!r} wants its {len(members)} members to run at once, and this machine"
            f" has room for {len(placed)} of them, empty as it may be"
        )

    @staticmethod
    def placed(
        members: Iterable[Request], placer: Placer, ledger: Ledger, head: Reservation | None
    ) -> _Placed:
        """Place one after the other until one finds no room; the ledger is as before at the end."""
        placed: _Placed = []
        names: list[tuple[str, tuple[str, ...]]] = []
        try:
            for request in members:
                verdict = placer.place(request, head, in_words=False)
                if not isinstance(verdict, Placement):
                    break
                placed.append((request, verdict))
                names.append((f"group-{request.ticket}", verdict.uuids))
                ledger.place(
                    *names[-1],
                    verdict.mib,
                    alone=verdict.alone,
                    cpus=request.cpus,
                    ram_mib=request.ram_mib,
                    compute=request.compute,
                )
        finally:
            for name, uuids in names:
                ledger.remove(name, uuids)
        return placed

    def reserve(
        self, request: Request, placer: Placer, ledger: Ledger, old: Reservation | None
    ) -> Reservation | None:
        """Choose what is kept for a group at the head; what was kept before stays so, on well devices.

        It is what the group would get if all leases ended now, and nobody may use it meanwhile who
        could be in the way: no run time is taken into account.
        """
        if (
            old is not None
            and old.ticket == request.ticket
            and all(ledger.by_uuid[uuid].state is DeviceState.OK for uuid in old.needs_mib)
        ):
            return old
        drained = ledger.copied()
        for lease in {name for book in drained.books for name in book.bookings}:
            drained.remove(
                lease, tuple(b.device.uuid for b in drained.books if lease in b.bookings)
            )
        members = self.members(request)
        placed = self.placed(members, placer.over(drained), drained, None)
        if len(placed) < len(members):
            return None
        needs: dict[str, int] = {}
        for _, placement in placed:
            for uuid in placement.uuids:
                needs[uuid] = needs.get(uuid, 0) + placement.mib
        return Reservation(
            request.ticket,
            needs,
            alone=any(placement.alone for _, placement in placed),
            compute=min(sum(member.compute or 0 for member in members), 100),
            starts_s=placer.now,
        )


def asked_together(machine: Machine, request: Request, now: float) -> list[ev.Effect]:
    """Take a member of a group in; refuse them all if they can never run at once."""
    groups = machine.groups
    refusal = groups.refusal(request)
    if refusal:
        machine.forget_ticket(request.ticket)
        return [ev.Refused(request.ticket, "usage", refusal, request)]
    if not groups.add(request, now):
        return []
    members = groups.members(request)
    refusal = groups.impossible(request, machine.placer, machine.ledger) or machine.limits.never(
        members
    )
    if refusal is None:
        return []
    for member in members:
        machine.forget_ticket(member.ticket)
        groups.remove(member.ticket, now)
    return [ev.Refused(member.ticket, "impossible", refusal, member) for member in members]


def withdrawn(machine: Machine, ticket: int, now: float) -> Request | None:
    """Take a request out of wherever it waits; `None` if it waits no more."""
    return (
        machine.nested.waiting.pop(ticket, None)
        or machine.groups.remove(ticket, now)
        or machine.line.remove(ticket)
    )
