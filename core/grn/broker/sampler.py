"""Looks at the devices, and only as often as somebody needs it.

Never while nothing is leased and nobody waits; at the fast pace while a type is unprofiled or a
lease drains; at the slow pace otherwise. A release looks at once, so that what it frees is granted
in the same batch: no timer lies on the path from release to grant.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from grn import procs
from grn.rules import events as ev
from grn.rules.attribution import main_processes, sole_owners, split_use
from grn.rules.model import DeviceState, LeaseState

if TYPE_CHECKING:
    import asyncio

    from grn.broker.core import BrokerCore
    from grn.devices.base import DeviceReading
    from grn.rules.model import Lease

__all__ = ["Sampler"]

_A_MOMENT_S = 0.001
"""Requests this close together share one check: no driver or file time is finer."""

log = logging.getLogger("grn.broker")


class Sampler:
    """Turns readings of the backend into `Sampled` events."""

    def __init__(self, core: BrokerCore, *, fast_s: float, slow_s: float) -> None:
        self._core = core
        self._fast_s = fast_s
        self._slow_s = slow_s
        self._timer: asyncio.TimerHandle | None = None
        self._checked_s = 0.0
        self._table = procs.ProcessTable()

    # -- when to look ---------------------------------------------------------------------------

    def notice(self, lease: Lease) -> None:
        """Look soon enough for a lease that is new, or has begun to drain."""
        if self._timer is None or self._timer.when() > self._core.loop.time() + self._fast_s:
            self._look_within(self._fast_s if self._needs_fast(lease) else self._slow_s)

    def batch_ended(self) -> None:
        """See that somebody looks as long as it matters."""
        if self._timer is None:
            pace = self._needed_pace()
            if pace is not None:
                self._look_within(pace)

    def _needed_pace(self) -> float | None:
        machine = self._core.machine
        if not machine.leases:
            return self._slow_s if len(machine.line) else None
        fast = any(map(self._needs_fast, machine.leases.values()))
        return self._fast_s if fast else self._slow_s

    def _needs_fast(self, lease: Lease) -> bool:
        if lease.state is not LeaseState.RUNNING:
            return True
        profiles = self._core.machine.profiles
        return bool(lease.uuids) and not any(p.known for p in profiles.of_type(lease.type))

    def _look_within(self, seconds: float) -> None:
        """Bring the timer forward if it would fire later; it is never put off or taken back.

        So leases that come and go cost no timer each, and the last one leaves one idle tick behind.
        """
        due = self._core.loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._core.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._needed_pace() is not None:
            self.look()
            self._core.settle()

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    # -- looking --------------------------------------------------------------------------------

    def refresh(self, ending: str | None = None) -> None:
        """Look now, unless nothing changed since the last look.

        For what waits, one check a moment will do. Not for an `ending` lease: what it holds now
        must not be given away, and its memory may have gone with its processes, which changes no
        record.
        """
        if ending is not None:
            if self._held(ending) or not self._core.backend.unchanged_since_last_read():
                self.look()
        elif self._core.now() - self._checked_s >= _A_MOMENT_S:
            self._checked_s = self._core.now()
            if not self._core.backend.unchanged_since_last_read():
                self.look()

    def _held(self, lease_id: str) -> bool:
        machine = self._core.machine
        books = machine.ledger.by_uuid
        lease = machine.leases[lease_id]
        return any(
            uuid in books and books[uuid].bookings[lease_id].measured_mib for uuid in lease.uuids
        )

    def look(self) -> None:
        """Read all devices and tell the rules."""
        core = self._core
        if not core.devices:
            return
        leases = core.machine.leases
        mains = main_processes(leases.values())
        roots = {lease: [pid] for pid, (_, lease) in mains.items()}
        places = {lease.id: lease.uuids for lease in leases.values()}
        readings = core.backend.read(roots, places)
        known = {**sole_owners(leases.values()), **mains}
        event = ev.Sampled(
            core.now(),
            tuple(self._understood(reading, known) for reading in readings),
            self._left_over(),
        )
        core.step(event)

    def _understood(self, reading: DeviceReading, mains: dict[int, tuple[int, str]]) -> ev.Reading:
        state = DeviceState(reading.state)
        leases = self._core.machine.leases
        if reading.processes is None:
            foreign = self._foreign_unseen(reading)
            return ev.Reading(
                reading.uuid, state, reading.reason, reading.used_mib, foreign, None, {}
            )
        uses = [(use.pid, use.mib) for use in reading.processes]
        held, holders, complete = split_use(uses, leases, mains, self._table)
        foreign = None
        if reading.used_mib is not None:
            foreign = max(0, reading.used_mib - sum(held.values()))
        known = held if complete else None
        return ev.Reading(
            reading.uuid, state, reading.reason, reading.used_mib, foreign, known, holders
        )

    def _foreign_unseen(self, reading: DeviceReading) -> int | None:
        """Without figures by process, count as foreign what exceeds the bookings."""
        book = self._core.machine.ledger.by_uuid.get(reading.uuid)
        if reading.used_mib is None or book is None:
            return None
        return max(0, reading.used_mib - book.booked_mib)

    def _left_over(self) -> dict[str, tuple[int, ...]]:
        """Name the living processes of leases that drain: they are why it is not free yet."""
        draining = [
            lease
            for lease in self._core.machine.leases.values()
            if lease.state is LeaseState.DRAINING
        ]
        if not draining:
            return {}
        marked = procs.with_marker()
        return {lease.id: tuple(marked.get(lease.id, ())) for lease in draining}
