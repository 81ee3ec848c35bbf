"""Looks at the devices, and only as often as somebody needs it.

Never while nothing is leased and nobody waits; at the fast pace while a type is unprofiled or a
lease drains; at the slow pace otherwise. A release looks at once, so that what it frees is granted
in the same batch: no timer lies on the path from release to grant.

Simulated devices are read in line. A driver may be slow or stuck, so it is asked and answers later:
what must know the devices as they are (a release, a status, the first grant after a rest) waits for
that answer, and the loop goes on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from grn import procs
from grn.broker.whose import Whose
from grn.rules import events as ev
from grn.rules.attribution import main_processes
from grn.rules.model import LONGEST_GAP_S, LeaseState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from grn.broker.core import BrokerCore
    from grn.devices.base import Backend, DeviceReading, DrivenBackend
    from grn.rules.model import Lease

__all__ = ["Sampler"]

_A_MOMENT_S = 0.001
"""Requests this close together share one check: no file time is finer."""

_FRESH_S = 0.2
"""A driver's answer serves who waits for so long; an end of a lease always asks anew."""

_LOOK, _LOOK_AT_A_LEASE, _RAREST = 0.9, 0.035, 10.0
"""What a look at a card costs, and at each lease on it, in milliseconds on a slow core."""

_HEALTH_EVERY_S, _HEALTH_BEFORE_LEASE_S = 30.0, 1.0

log = logging.getLogger("grn.broker")


class Sampler:
    """Turns readings of the backend into `Sampled` events."""

    def __init__(self, core: BrokerCore, backend: Backend, *, fast_s: float, slow_s: float) -> None:
        self._core = core
        self._fast_s = fast_s
        self._slow_s = slow_s
        self._timer: asyncio.TimerHandle | None = None
        self._checked_s = 0.0
        self._driver: DrivenBackend | None = None
        self._asking = False
        self._late = False
        self._after_next: list[Callable[[], None]] = []
        self._fresh_until_s = 0.0
        self._health_s = -_HEALTH_EVERY_S
        self._whose = Whose(procs.ProcessTable())
        self.drive(backend)

    def drive(self, backend: Backend) -> None:
        """Look at the devices of this backend from now on."""
        self._driver = cast("DrivenBackend", backend) if hasattr(backend, "ask") else None
        self._fresh_until_s = 0.0

    @property
    def driven(self) -> bool:
        """Whether a driver is asked, which may number devices anew."""
        return self._driver is not None

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
        if any(map(self._needs_fast, machine.leases.values())):
            return self._fast_s
        return self._slow_s * self._crowded()

    def _crowded(self) -> float:
        """Look the more rarely the more leases a card has, so that looking at it costs the same."""
        if self._driver is None:
            return 1.0
        most = max((len(b.bookings) for b in self._core.machine.ledger.books), default=0)
        return min(max(1.0, _LOOK + _LOOK_AT_A_LEASE * most), _RAREST)

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

    def _is_overdue(self) -> bool:
        """Whether we could not look when we should have: stopped, or starved of processor or disk."""
        due = self._timer.when() if self._timer is not None else None
        return due is not None and self._core.loop.time() - due > LONGEST_GAP_S

    def _tick(self) -> None:
        self._late |= self._is_overdue()
        self._timer = None
        if self._needed_pace() is not None:
            if not self._asking:
                self.look()
            self._core.settle()

    def close(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()

    # -- looking --------------------------------------------------------------------------------

    def fresh(self) -> bool:
        """Look now if something may have changed, for who waits; `False`: the driver must answer.

        When it has, the batch is ended again. One check a moment will do.
        """
        now = self._core.now()
        if self._driver is not None:
            if now < self._fresh_until_s:
                return True
            if not self._asking:
                self.look()
            return False
        if now - self._checked_s >= _A_MOMENT_S:
            self._checked_s = now
            if not self._core.backend.unchanged_since_last_read():
                self.look()
        return True

    def when_fresh(self, then: Callable[[], None]) -> None:
        """Call `then` when the books show the devices as they are now."""
        if self.fresh():
            then()
        else:
            self._after_next.append(then)

    def before_end(self, lease_id: str, then: Callable[[], None]) -> None:
        """Look, then let a lease end.

        What it holds now must not be given away, and its memory may have gone with its processes,
        which changes no record.
        """
        lease = self._core.machine.leases.get(lease_id)
        if lease is None or not lease.uuids:
            then()
        elif (
            self._driver is not None
            or self._held(lease_id)
            or not self._core.backend.unchanged_since_last_read()
        ):
            self.look(then)
        else:
            then()

    def _held(self, lease_id: str) -> bool:
        machine = self._core.machine
        books = machine.ledger.by_uuid
        lease = machine.leases[lease_id]
        return any(
            uuid in books and books[uuid].bookings[lease_id].measured_mib for uuid in lease.uuids
        )

    def look(self, then: Callable[[], None] | None = None) -> None:
        """Read all devices and tell the rules, then call `then`: later, if a driver is asked.

        What asks while an answer is on its way is served by the next look, which begins after it.
        """
        if then is not None:
            self._after_next.append(then)
        if self._driver is not None:
            if not self._asking:
                self._ask(self._driver)
            return
        if self._core.devices:
            leases = self._core.machine.leases
            mains = main_processes(leases.values())
            roots = {lease: [pid] for pid, (_, lease) in mains.items()}
            places = {lease.id: lease.uuids for lease in leases.values()}
            self._tell(self._core.backend.read(roots, places))
        self._call_back()

    def _ask(self, driver: DrivenBackend) -> None:
        now = self._core.now()
        pause = _HEALTH_BEFORE_LEASE_S if len(self._core.machine.line) else _HEALTH_EVERY_S
        health = now - self._health_s >= pause
        if health:
            self._health_s = now
        waiting, self._after_next = self._after_next, []
        self._asking = True

        def answered(readings: tuple[DeviceReading, ...]) -> None:
            self._asking = False
            # From now, not from the question: a slow answer must not be stale when it comes.
            self._fresh_until_s = self._core.now() + _FRESH_S
            self._tell(readings)
            later, self._after_next = self._after_next, waiting
            self._call_back()
            self._after_next += later
            if self._after_next and not self._asking:
                self._ask(driver)
            self._core.settle()

        driver.ask(answered, health=health)

    def _call_back(self) -> None:
        waiting, self._after_next = self._after_next, []
        for then in waiting:
            then()

    def _tell(self, readings: Sequence[DeviceReading]) -> None:
        core = self._core
        understood = self._whose.readings(readings, core.machine.leases)
        late, self._late = self._late or self._is_overdue(), False
        core.step(ev.Sampled(core.now(), understood, self._left_over(), late=late))
        core.observers.sampled(understood)

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
