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
from grn.rules.attribution import main_processes, split_use
from grn.rules.model import DeviceState, LeaseState

if TYPE_CHECKING:
    import asyncio

    from grn.broker.core import BrokerCore
    from grn.devices.base import DeviceReading

__all__ = ["Sampler"]

log = logging.getLogger("grn.broker")


class Sampler:
    """Turns readings of the backend into `Sampled` events."""

    def __init__(self, core: BrokerCore, *, fast_s: float, slow_s: float) -> None:
        self._core = core
        self._fast_s = fast_s
        self._slow_s = slow_s
        self._timer: asyncio.TimerHandle | None = None
        self._pace_s: float | None = None
        self._table = procs.ProcessTable()

    # -- when to look ---------------------------------------------------------------------------

    def adjust(self) -> None:
        """Set the timer to the pace that is needed now."""
        pace = self._needed_pace()
        if pace == self._pace_s:
            return
        self._pace_s = pace
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if pace is not None:
            self._timer = self._core.loop.call_later(pace, self._tick)

    def _needed_pace(self) -> float | None:
        machine = self._core.machine
        if not machine.leases:
            return self._slow_s if len(machine.line) else None
        profiles = machine.profiles
        for lease in machine.leases.values():
            if lease.state is not LeaseState.RUNNING:
                return self._fast_s
            if lease.uuids and not any(p.known for p in profiles.matching(lease.type)):
                return self._fast_s
        return self._slow_s

    def _tick(self) -> None:
        self._timer = None
        self._pace_s = None
        self.look()
        self._core.settle()

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    # -- looking --------------------------------------------------------------------------------

    def refresh(self, ending: str | None = None) -> None:
        """Look now, unless nothing changed since the last look.

        Memory of the `ending` lease may have gone with its processes, which changes no record.
        """
        core = self._core
        if not core.backend.unchanged_since_last_read() or (ending and self._held(ending)):
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
        event = ev.Sampled(
            core.now(),
            tuple(self._understood(reading, mains) for reading in readings),
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
