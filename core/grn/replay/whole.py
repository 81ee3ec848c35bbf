"""The same through the whole `Machine`, event by event, its promises checked after each: slow and sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.replay.ours import MODEL, Retries, RuleOptions, devices_of, wish_of
from grn.rules import events as ev
from grn.rules.machine import Machine
from grn.rules.model import DeviceState, End, LeaseState
from grn.rules.outcome import MEMORY
from grn.rules.profiles import ProfileBook
from grn.rules.waiting import WaitingLine

if TYPE_CHECKING:
    from grn.replay.job import Job
    from grn.replay.world import Start, WorldOptions
    from grn.rules.model import Lease

__all__ = ["WholeMachine"]

_MANY = 10**9


class WholeMachine:
    """Who starts when, as a broker decides that is told all that a real one is told."""

    def __init__(self, world: WorldOptions, rules: RuleOptions) -> None:
        self.rules = rules
        self.looks_s = rules.provisional_after_s
        self.probe_s = 0.0
        self.wakes: list[tuple[float, Job]] = []
        self.profiles = ProfileBook(rules.margin, limit=_MANY)
        self.machine = Machine(
            devices_of(world),
            cpus=_MANY,
            ram_mib=None,
            profiles=self.profiles,
            token="r",  # noqa: S106 - names leases, opens nothing
            provisional_after_s=rules.provisional_after_s,
            line=WaitingLine(order=rules.order),
        )
        self._retries = Retries(world.tries)
        self._position = {b.device.uuid: b.position for b in self.machine.ledger.books}
        self._asked: dict[int, Job] = {}
        self._runs: dict[int, tuple[Job, Lease]] = {}
        self._holds: dict[int, int] = {}
        self._ticket = 0
        self._starts: list[Start] = []
        self._last: list[ev.Effect] = []

    def _step(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.machine.step(event)
        self.machine.check_invariants()
        for effect in effects:
            if isinstance(effect, ev.Granted):
                job, lease = self._asked.pop(effect.ticket), effect.lease
                self._runs[job.number] = (job, lease)
                where = tuple(self._position[uuid] for uuid in lease.uuids)
                self._starts.append((job, where, lease.booked_mib))
        return effects

    def _look(self, now: float) -> None:
        """Let the broker look at all devices."""
        held: dict[str, dict[str, int]] = {uuid: {} for uuid in self._position}
        for job, lease in self._runs.values():
            for uuid in lease.uuids:
                held[uuid][lease.id] = self._holds.get(job.number, 0)
        readings = tuple(
            ev.Reading(
                uuid=uuid,
                state=DeviceState.OK,
                reason="",
                used_mib=sum(leases.values()),
                foreign_mib=0,
                leases=leases,
                holders={},
            )
            for uuid, leases in held.items()
        )
        self._step(ev.Sampled(now, readings, {}))

    # -- what happens ---------------------------------------------------------------------------

    def arrived(self, job: Job, now: float) -> None:
        """Let a job ask."""
        self._ticket += 1
        if self.rules.all_known:
            self.profiles.of(f"job {job.number}", MODEL).durations_s = [job.duration_s] * 3
        self._asked[self._ticket] = job
        wish = wish_of(job, self.rules, self._retries.changes(job), self._ticket, job.arrival_s)
        self._step(ev.Asked(now, wish))

    def grown(self, job: Job, now: float) -> bool:
        """Let the broker see a job's memory."""
        probe = self._runs[job.number][1].state is LeaseState.PROBE
        self._holds[job.number] = job.peak_mib
        self._look(now)
        return probe

    def looked(self, job: Job, now: float) -> None:
        """Let the broker see it again."""
        lease = self._runs[job.number][1]
        self._look(now)
        job.booked_mib = lease.booked_mib
        if lease.state is not LeaseState.PROBE:
            self.probe_s += (now - job.started_s) * job.gpus

    def ended(self, job: Job, now: float) -> None:
        """Let it end well."""
        lease = self._over(job, now, End(exit_code=0))
        if self.rules.all_known:
            self.profiles.forget(lease.type)

    def _over(self, job: Job, now: float, end: End) -> Lease:
        """Let a job give its memory back, and then its lease."""
        _, lease = self._runs[job.number]
        if lease.state is LeaseState.PROBE:
            self.probe_s += (now - job.started_s) * job.gpus
        for uuid in lease.uuids:
            self.machine.ledger.measure(lease.id, uuid, 0)
        self._holds.pop(job.number, None)
        self._last = self._step(ev.Released(now, lease.id, end, 0))
        del self._runs[job.number]
        return lease

    def died(self, job: Job, now: float, left_mib: int) -> bool:
        """Let it die of memory, as far as the broker sees that; tell whether it runs again."""
        _, lease = self._runs[job.number]
        for uuid in lease.uuids:
            self.machine.ledger.by_uuid[uuid].bookings[lease.id].left_mib = left_mib
        self._over(job, now, End(exit_code=1, said_oom=True, said=MEMORY))
        report = next(effect for effect in self._last if isinstance(effect, ev.Reported))
        return self._retries.again(job, lease, report.remedy, report.next_mib)

    def woken(self, job: Job, now: float) -> None:
        """Nothing is ever asked for."""

    def decide(self, now: float) -> list[Start]:
        """Return who starts."""
        self._starts = []
        self._step(ev.Settle(now))
        return self._starts
