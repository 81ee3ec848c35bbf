"""Turns what a driver lists into what leases hold, and remembers what `/proc` forgets.

Design note. A driver's list and our look at `/proc` are two moments, and perhaps two pid
namespaces. A pid that the driver names and that does not exist here is

- *dead* if it was seen here at the reading before: a child that inherited the device's files keeps
  the memory of a parent that is gone. It stays its lease's for as long as the driver lists it.
- *doubtful* if it was never seen: it may have lived for less than a reading. Nothing is concluded
  for one reading, and for as long as the device's total falls.
- a *stranger* if the next reading names it again: it lives in another pid namespace (the broker
  runs in a container), and may be anybody's, a lease's too. It stays one while it is listed, even
  if a process of that number appears here.

A broker outside the first pid namespace that was shown strangers cannot trust the driver's other
numbers either: a process of that number here may be meant for another one. Where it is in the first
one, all processes have their own numbers, and a stranger spoils its own device only.

Promises: a known process costs one look at its folder, a new one a walk. What is remembered goes
with its lease. All rules are in `rules.attribution`. Must not: signal anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from grn.rules import events as ev
from grn.rules.attribution import (
    Claims,
    Processes,
    Use,
    Verdict,
    accountable,
    chosen,
    claims,
    figures,
    figures_unseen,
    hides_clients,
    judge,
    largest_together,
    shows_clients,
)
from grn.rules.model import DeviceState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grn.devices.base import BusyReading, DeviceReading, ProcessUse
    from grn.rules.model import Lease

__all__ = ["Table", "Whose"]

_MOST_REMEMBERED = 1024
"""Processes that left the devices and whose lease lives: the driver may account for them."""

_FOREIGN = Verdict(0)


class Table(Processes, Protocol):
    """What is asked of the process table."""

    def exists(self, pid: int) -> bool:
        """Whether the number names a process here, a zombie and a hidden one too."""
        ...

    def identity(self, pid: int) -> int | None:
        """Return a number that changes when another process has the pid; `None`: it is gone."""

    def in_first_pid_namespace(self) -> bool:
        """Whether every process of the machine is seen under its own number."""
        ...


@dataclass(slots=True)
class _Known:
    """A process that was seen here, and the first and last look at it by device."""

    verdict: Verdict
    identity: int | None = None
    gone: bool = False
    had_lease: bool = False
    """Should that lease end, what is left of it is not its owner's next lease's."""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Device:
    """What the readings before said of one device."""

    processes: tuple[ProcessUse, ...] | None = None
    here: frozenset[int] = frozenset()
    """Listed processes that exist here, or did at the reading before."""
    doubts: dict[int, int | None] = field(default_factory=dict)
    """Doubtful pid -> the device's total as it was then."""
    strangers: frozenset[int] = frozenset()
    held: dict[str, int] | None = None
    lists_processes: bool = False
    idle_mib: int | None = None
    """The total as it was last seen without a lease there."""
    shows_clients: bool = False
    """Its MPS server was seen beside a client: a matter of the card, so it stays so."""

    def hides_processes(self, reading: DeviceReading) -> bool:
        """Whether the total rose since the device was idle, and nobody was ever listed."""
        self.lists_processes |= bool(reading.processes)
        used, idle = reading.used_mib, self.idle_mib
        return not self.lists_processes and used is not None and idle is not None and used > idle

    def confirms(self, pid: int, reading: DeviceReading) -> bool:
        """Whether a pid that does not exist here is a stranger by now.

        Not while the device empties: then it may be a process whose memory is just being freed.
        """
        if pid in self.strangers:
            return True
        if pid not in self.doubts or reading.processes is self.processes:
            return False  # what a driver that is late said before is told again
        then, now = self.doubts[pid], reading.used_mib
        return then is None or now is None or now >= then


class Whose:
    """Says of each reading which lease holds what."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._claims = Claims({}, {})
        self._known: dict[int, _Known] = {}
        self._devices: dict[str, _Device] = {}
        self._look = 0

    def readings(
        self, readings: Sequence[DeviceReading], leases: Mapping[str, Lease]
    ) -> tuple[ev.Reading, ...]:
        """Understand one look at all devices. `leases`: the live ones by id, oldest first."""
        self._look += 1
        listed = {use.pid for reading in readings for use in reading.processes or () if use.pid > 0}
        self._claim(leases)
        here = frozenset[int]().union(*(device.here for device in self._devices.values()))
        absent = {pid for pid in listed if not self._see(pid, leases, was_here=pid in here)}
        uses = {reading.uuid: self._uses(reading, absent, leases) for reading in readings}
        wrong = any(device.strangers for device in self._devices.values()) and not (
            self._table.in_first_pid_namespace()
        )
        told = tuple(
            self._told(reading, uses[reading.uuid], leases, other_numbers=wrong)
            for reading in readings
        )
        self._forget(listed, leases)
        return told

    # -- processes ------------------------------------------------------------------------------

    def _claim(self, leases: Mapping[str, Lease]) -> None:
        """Take in which processes leases name; who descends from a new one is judged again."""
        now = claims(leases.values())
        if now == self._claims:
            return
        changed = now.changed(self._claims)
        self._claims = now
        for pid in [p for p, known in self._known.items() if known.verdict.chain & changed]:
            self._judge_again(pid, leases)

    def _see(self, pid: int, leases: Mapping[str, Lease], *, was_here: bool) -> bool:
        """Look at a listed process; return whether it is, or just was, one of this pid namespace."""
        known = self._known.get(pid)
        # Before its birth is read: a process that takes the number in between is told apart.
        identity = self._table.identity(pid)
        if known is not None and identity is not None and identity == known.identity:
            if known.verdict.leases and not any(x in leases for x in known.verdict.leases):
                self._judge_again(pid, leases)
            return True
        born = self._table.birth(pid)
        if born is None:
            if self._table.exists(pid):  # hidden from us, hence another user's by now
                if known is None or not was_here:
                    self._known[pid] = _Known(_FOREIGN)
                return True
            died_since = known is not None and not known.gone
            if known is not None:
                known.gone, known.identity = True, None
            return died_since or was_here
        if known is None or known.verdict.start != born[0]:
            verdict = judge(pid, leases, self._claims, self._table)
            # `None`: it died on the way. It was seen, so it is no stranger.
            known = self._known[pid] = _Known(verdict or Verdict(born[0]))
        elif known.verdict.leases and not any(x in leases for x in known.verdict.leases):
            self._judge_again(pid, leases)
        known.identity = identity
        return True

    def _judge_again(self, pid: int, leases: Mapping[str, Lease]) -> None:
        """Look for a nearer lease of a known process; without one it stays its live lease's.

        So a process stays its lease's when its parents have died and it has no marker.
        """
        known = self._known[pid]
        before = known.verdict
        known.had_lease |= bool(before.leases)
        verdict = judge(pid, leases, self._claims, self._table, by_owner=not known.had_lease)
        if verdict is not None and verdict.start == before.start and verdict.leases:
            known.verdict = verdict
        elif not any(x in leases for x in before.leases):
            known.verdict = Verdict(before.start, (), before.chain)

    def _forget(self, listed: set[int], leases: Mapping[str, Lease]) -> None:
        """Drop who left the devices, except a live lease's: the driver may account for it."""
        left = [pid for pid in self._known if pid not in listed]
        kept = [pid for pid in left if any(x in leases for x in self._known[pid].verdict.leases)]
        for pid in {*left} - {*kept[-_MOST_REMEMBERED:]}:
            del self._known[pid]

    # -- devices --------------------------------------------------------------------------------

    def _uses(
        self, reading: DeviceReading, absent: set[int], leases: Mapping[str, Lease]
    ) -> list[Use]:
        """Say of each process that a device lists whose it is, and remember it."""
        device = self._devices.setdefault(reading.uuid, _Device())
        if reading.processes is None:
            return []
        uses = [self._use(use, reading, device, absent, leases) for use in reading.processes]
        device.strangers = frozenset(use.pid for use in uses if use.stranger)
        device.doubts = {use.pid: reading.used_mib for use in uses if use.doubtful}
        device.here = frozenset(u.pid for u in uses if not (u.stranger or u.doubtful))
        device.processes = reading.processes
        return uses

    def _use(
        self,
        use: ProcessUse,
        reading: DeviceReading,
        device: _Device,
        absent: set[int],
        leases: Mapping[str, Lease],
    ) -> Use:
        if use.pid in device.strangers or use.pid in absent:
            stranger = device.confirms(use.pid, reading)
            return Use(use.pid, use.mib, stranger=stranger, doubtful=not stranger)
        known = self._known.get(use.pid)
        if known is None or use.server:  # a server's own share is the system's
            return Use(use.pid, use.mib, server=use.server)
        lease = chosen(known.verdict.leases, reading.uuid, leases)
        if lease is not None:
            first, _ = known.spans.get(reading.uuid, (self._look, 0))
            known.spans[reading.uuid] = (first, self._look)
        return Use(use.pid, use.mib, lease)

    def _told(
        self,
        reading: DeviceReading,
        uses: list[Use],
        leases: Mapping[str, Lease],
        *,
        other_numbers: bool,
    ) -> ev.Reading:
        device = self._devices[reading.uuid]
        booked = {x.id: x.booked_mib for x in leases.values() if reading.uuid in x.uuids}
        if reading.processes is None:
            what = figures_unseen(reading.used_mib, booked)
        else:
            device.shows_clients |= shows_clients(uses, booked)
            hidden = device.hides_processes(reading) and bool(booked)
            if not booked:
                device.idle_mib = reading.used_mib
            before = device.held and {x: mib for x, mib in device.held.items() if x in leases}
            what = figures(
                uses,
                reading.used_mib,
                booked,
                before,
                old_server=not device.shows_clients and hides_clients(uses, booked),
                other_numbers=other_numbers,
                hidden=hidden,
            )
            device.held = what.leases
        return ev.Reading(
            reading.uuid,
            DeviceState(reading.state),
            reading.reason,
            reading.used_mib,
            what.foreign_mib,
            what.leases,
            what.holders,
            strangers=tuple(sorted(device.strangers)),
            hidden=reading.processes is not None and what.leases is None and not reading.processes,
            accounted=self._accounted(reading, leases),
            xids=reading.xids,
            health=reading.health,
            busy=_busy(reading.busy, what.holders),
        )

    def _accounted(self, reading: DeviceReading, leases: Mapping[str, Lease]) -> dict[str, int]:
        """Sum up by lease what the driver recorded of its processes on this device.

        The driver tells of those that hold memory and of those that came, or went, since the look
        before. Of several that came and went between two looks the largest counts: nothing says
        that they met.
        """
        spans: dict[str, list[tuple[int, int, int]]] = {}
        passed: dict[str, int] = {}
        for pid, mib in reading.accounted:
            start, names = self._recorded(pid, leases)
            lease = chosen(names, reading.uuid, leases)
            if lease is None or not accountable((pid, start), leases[lease]):
                continue
            known = self._known.get(pid)
            span = known.spans.get(reading.uuid) if known is not None else None
            if span is not None:
                spans.setdefault(lease, []).append((*span, mib))
            else:
                passed[lease] = max(mib, passed.get(lease, 0))
        for lease, mib in passed.items():
            spans.setdefault(lease, []).append((self._look, self._look, mib))
        return {lease: largest_together(found) for lease, found in spans.items()}

    def _recorded(self, pid: int, leases: Mapping[str, Lease]) -> tuple[int, tuple[str, ...]]:
        """Return start time and leases of a process that the driver recorded, living or over."""
        born = self._table.birth(pid)
        known = self._known.get(pid)
        if known is not None and (born is None or born[0] == known.verdict.start):
            return known.verdict.start, known.verdict.leases
        if born is not None:
            verdict = judge(pid, leases, self._claims, self._table)
            return (verdict.start, verdict.leases) if verdict is not None else (born[0], ())
        # Over before it was ever listed: of those only main processes were named to us.
        mains = (main for main in self._claims.mains if main[0] == pid)
        main = max(mains, key=lambda process: process[1], default=(pid, 0))
        return main[1], self._claims.mains.get(main, ())


def _busy(reading: BusyReading | None, holders: Mapping[str, tuple[int, ...]]) -> ev.Busy | None:
    """Sum up by lease how busy its processes keep a device; more than all of it is all of it."""
    if reading is None:
        return None
    if reading.processes is None:
        return ev.Busy(reading.percent, None)
    shares = dict(reading.processes)
    by_lease = {x: sum(shares.get(pid, 0) for pid in pids) for x, pids in holders.items()}
    return ev.Busy(reading.percent, {x: min(100, share) for x, share in by_lease.items()})
