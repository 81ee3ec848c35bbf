"""The broker's rules under the simulated clock: ledger, line, decisions and learning, none of it copied.

The parts are driven directly rather than through `Machine`, which also writes records for a journal and
words for people. `WholeMachine` drives that one; both must decide alike, which the tests check.

What is told to the rules: a job's memory once it has appeared, and that of a probe once more after
`provisional_after_s`. In between nothing changes in this world, so that the readings which the broker
takes every second would change nothing either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grn.rules.deciding import Decider
from grn.rules.estimate import Margin
from grn.rules.fairness import Limits
from grn.rules.learning import Learning
from grn.rules.ledger import Ledger
from grn.rules.model import Device, Lease, LeaseState, Owner, Policy, Request
from grn.rules.nested import NestedBook
from grn.rules.outcome import MEMORY, OK, OOM
from grn.rules.placing import Placer
from grn.rules.profiles import ProfileBook
from grn.rules.waiting import ARRIVAL, WaitingLine
from grn.supervise.retrying import following

if TYPE_CHECKING:
    from typing import Any

    from grn.replay.job import Job
    from grn.replay.world import Start, WorldOptions
    from grn.rules.placing import Placement

__all__ = [
    "DECLARED",
    "MODEL",
    "NOTHING",
    "OWNER",
    "PEAK",
    "Ours",
    "Retries",
    "RuleOptions",
    "devices_of",
    "wish_of",
]

MODEL = "Simulated"
NOTHING, DECLARED, PEAK = "nothing", "declared", "peak"
OWNER = Owner(1, 1)
_MANY = 10**9


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Which settings of the broker a replay uses.

    `needs`: what jobs say of their memory: `nothing`, what they `declared`, or their real `peak`.
    `all_known`: of each job it is known how long it will run, for an oracle.
    """

    policy: Policy = Policy.SPREAD
    order: str = ARRIVAL
    needs: str = NOTHING
    all_known: bool = False
    margin: Margin = field(default_factory=Margin)
    provisional_after_s: float = 60.0


def devices_of(options: WorldOptions) -> list[Device]:
    """Describe the world's devices to the rules."""
    return [
        Device(uuid=f"GPU-{n}", index=n, model=MODEL, total_mib=options.device_mib)
        for n in range(options.devices)
    ]


def wish_of(
    job: Job, rules: RuleOptions, changes: dict[str, Any], ticket: int, now: float
) -> Request:
    """Put a job's wish as a client would. `changes`: what differs after it died of memory."""
    memory = None
    if rules.needs == DECLARED:
        memory = job.declared_mib
    elif rules.needs == PEAK:
        memory = job.peak_mib
    wish = changes.get("memory_mib", memory)
    return Request(
        ticket,
        f"job {job.number}" if rules.all_known else job.type,
        OWNER if not job.user else Owner(1, 1, job.user),
        gpus=job.gpus,
        memory_mib=None if wish == "whole" else wish,
        whole=wish == "whole",
        policy=rules.policy,
        largest=bool(changes.get("largest")),
        arrived_s=now,
    )


@dataclass(slots=True)
class _Tries:
    """What the rule for retries needs of a job."""

    tries: int
    request: dict[str, Any]


class Retries:
    """What jobs that died of memory ask for at their next try, by the rule of `grn run --retries`."""

    def __init__(self, tries: int) -> None:
        self._tries = tries
        self._changes: dict[int, dict[str, Any]] = {}

    def changes(self, job: Job) -> dict[str, Any]:
        """Return what differs from the job's first wish."""
        return self._changes.get(job.number, {})

    def again(self, job: Job, lease: Lease, remedy: str, next_mib: int | None) -> bool:
        """Take note of a try that died; tell whether there shall be another."""
        so_far = _Tries(job.ooms, {"largest": lease.request.largest})
        wish = following(so_far, retries=self._tries - 1, remedy=remedy, next_mib=next_mib)
        if wish is not None:
            self._changes[job.number] = {**self.changes(job), **wish}
        return wish is not None


class Ours:
    """Who starts when, as the broker would decide."""

    def __init__(self, world: WorldOptions, rules: RuleOptions) -> None:
        self.rules = rules
        self.looks_s = rules.provisional_after_s
        self.probe_s = 0.0
        self.wakes: list[tuple[float, Job]] = []
        self.ledger = Ledger(devices_of(world), cpus=_MANY, ram_mib=None)
        self.profiles = ProfileBook(rules.margin, limit=_MANY)
        self.leases: dict[str, Lease] = {}
        self.line = WaitingLine(order=rules.order)
        self._placer = Placer(self.ledger, self.profiles, self.leases)
        self._learning = Learning(
            self.ledger, self.profiles, rules.provisional_after_s, NestedBook()
        )
        self._decider = Decider(
            self.ledger, self._placer, self.profiles, self.line, Limits(), grant=self._grant
        )
        self._retries = Retries(world.tries)
        self._position = {book.device.uuid: book.position for book in self.ledger.books}
        self._waiting: dict[int, Job] = {}
        self._lease_of: dict[int, Lease] = {}
        self._fresh: list[int] = []
        self._changed = False
        self._number = 0
        self._starts: list[Start] = []
        self._now = 0.0

    # -- what happens ---------------------------------------------------------------------------

    def arrived(self, job: Job, now: float) -> None:
        """Let a job ask."""
        self._number += 1
        ticket = self._number
        if self.rules.all_known:
            self.profiles.of(f"job {job.number}", MODEL).durations_s = [job.duration_s] * 3
        changes = self._retries.changes(job)
        self.line.add(wish_of(job, self.rules, changes, ticket, job.arrival_s))
        self._waiting[ticket] = job
        self._fresh.append(ticket)
        del now

    def grown(self, job: Job, now: float) -> bool:
        """Let the broker see a job's memory."""
        lease = self._lease_of[job.number]
        probe = lease.state is LeaseState.PROBE
        self._see(job, lease, job.peak_mib, now)
        return probe

    def looked(self, job: Job, now: float) -> None:
        """Let the broker see it again: a probe that has not grown any more frees its device."""
        lease = self._lease_of[job.number]
        self._see(job, lease, job.peak_mib, now)
        if lease.state is not LeaseState.PROBE:
            self.probe_s += (now - job.started_s) * job.gpus

    def _see(self, job: Job, lease: Lease, mib: int, now: float) -> None:
        for uuid in lease.uuids:
            self.ledger.measure(lease.id, uuid, mib)
        if self._learning.sampled(lease, now):
            self._changed = True
            job.booked_mib = lease.booked_mib

    def ended(self, job: Job, now: float) -> None:
        """Let the broker learn from a job that ended well."""
        lease = self._lease_of.pop(job.number)
        if lease.state is LeaseState.PROBE:
            self.probe_s += (now - job.started_s) * job.gpus
        self._learning.ended(lease, OK, now)
        self._end(lease)
        if self.rules.all_known:
            self.profiles.forget(lease.type)

    def died(self, job: Job, now: float, left_mib: int) -> bool:
        """Let the broker learn from a job that died of memory; tell whether it runs again."""
        lease = self._lease_of.pop(job.number)
        if lease.state is LeaseState.PROBE:
            self.probe_s += (now - job.started_s) * job.gpus
        for uuid in lease.uuids:
            self.ledger.by_uuid[uuid].bookings[lease.id].left_mib = left_mib
        cure = self._learning.cure(lease, OOM, MEMORY)
        remedy, next_mib = self._learning.retry(lease, cure, [])
        self._learning.ended(lease, OOM, now, said_oom=True, cure=cure)
        self._end(lease)
        return self._retries.again(job, lease, remedy, next_mib)

    def woken(self, job: Job, now: float) -> None:
        """Nothing is ever asked for."""

    # -- decisions ------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Start]:
        """Return who starts."""
        if not self._changed and not self._fresh:
            return []
        self._starts = []
        self._now = now
        if self._changed or not self._decider.decide_newcomers(now, self._fresh):
            self._decider.decide(now, self.leases.values())
        self._changed = False
        self._fresh.clear()
        return self._starts

    def _grant(self, request: Request, placement: Placement, replaced: list[Lease]) -> None:
        del replaced  # nobody here uses a device in its own process
        ticket = request.ticket
        self.line.remove(ticket, granted=True)
        self._decider.forget(ticket)
        lease = Lease(
            id=f"r-{ticket}",
            number=ticket,
            request=request,
            uuids=placement.uuids,
            booked_mib=placement.mib,
            state=LeaseState.PROBE if placement.probe else LeaseState.RUNNING,
            granted_s=self._now,
            threads=1,
            started_s=self._now,
        )
        self.ledger.place(lease.id, placement.uuids, placement.mib, alone=placement.alone)
        self.leases[lease.id] = lease
        job = self._waiting.pop(ticket)
        self._lease_of[job.number] = lease
        where = tuple([self._position[uuid] for uuid in placement.uuids])
        self._starts.append((job, where, placement.mib))

    def _end(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.ledger.remove(lease.id, lease.uuids)
        self._changed = True
