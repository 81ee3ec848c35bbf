"""The broker's mind: `step(event) -> effects`, without input, output or a clock.

Design note. One `Machine` holds the ledger, the waiting line, the leases and the profiles. Every
change is an event (a request, an end, a proof of death, a look at the devices); what the broker has
to do is returned as effects. So the same code runs under the real broker, in simulations and in
property tests, and `check_invariants()` can be called after each step.

Life of a lease::

    asked -> waiting -> PROBE | RUNNING -> (DRAINING) -> ended

It ends by release or by proof of death, never by time. After either it drains for as long as its
main process lives or its processes hold device memory. Requests are decided at `Settle`, after all
that arrived together is in the line: fair shares of the cores count them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.errors import LeaseError
from grn.rules import events as ev
from grn.rules.cores import choose_cores
from grn.rules.deciding import Decider
from grn.rules.disk import disk_failed, disk_healed
from grn.rules.fairness import Limits
from grn.rules.groups import GROUP_WAIT_S, Groups, asked_together, withdrawn
from grn.rules.health import xid_text
from grn.rules.inside import (
    asked_inside,
    grant_inside,
    left,
    outer_of,
    reason_inside,
    reentered,
)
from grn.rules.learning import Learning
from grn.rules.ledger import Ledger
from grn.rules.model import Lease, LeaseState
from grn.rules.nested import NestedBook
from grn.rules.outcome import LOST, OK
from grn.rules.peaks import peak_of
from grn.rules.placing import Placement, Placer, Waits
from grn.rules.policy import BUILT_IN
from grn.rules.promises import check_machine
from grn.rules.records import end_record, grant_record, main_record
from grn.rules.seeing import kept_by_left_over, sampled, trusted
from grn.rules.succession import left_by, restore, returned, snapshot
from grn.rules.waiting import WaitingLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grn.rules.cores import Core
    from grn.rules.health import DeviceHealth
    from grn.rules.model import Device, Request
    from grn.rules.policy import Room
    from grn.rules.profiles import ProfileBook
    from grn.rules.waiting import Reservation

__all__ = ["Machine"]


class Machine:
    """All that the broker knows, and what it decides.

    Args:
        devices: in the order of the broker's mask.
        cpus: CPUs that leases may book, the reserve already taken off.
        cores: what jobs that book none share, nothing taken off; `None`: as many as `cpus`.
        ram_mib: RAM likewise; `None` when unknown.
        profiles: what is known of job types.
        token: makes lease ids unique among brokers; ids are `<token>-<number>`.
        jobs_at_once: divide the cores by this instead of by the leases and requests at hand.
        provisional_after_s: publish a provisional profile after so long without a new maximum.
        note: why there are no devices, or fewer than a mask names; said to whoever asks for one.
        core_map: the cores to which leases can be bound, if they ask for it.
        line, limits: in which order requests wait, and how many of a kind may run at once.
        group_wait_s: how long an incomplete group waits for the rest of it.
        policies: by name; a request of any other name must not get here.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        *,
        cpus: int,
        cores: int | None = None,
        ram_mib: int | None,
        profiles: ProfileBook,
        token: str,
        jobs_at_once: int | None = None,
        provisional_after_s: float = 60.0,
        note: str = "",
        core_map: Sequence[Core] = (),
        line: WaitingLine | None = None,
        limits: Limits | None = None,
        group_wait_s: float = GROUP_WAIT_S,
        policies: Mapping[str, Callable[[Room], float]] = BUILT_IN,
    ) -> None:
        self.ledger = Ledger(devices, cpus=cpus, ram_mib=ram_mib)
        self.leases: dict[str, Lease] = {}
        self.line = WaitingLine() if line is None else line  # an empty one is falsy
        self.limits = Limits() if limits is None else limits
        self.groups = Groups(self.line, group_wait_s)
        self.nested = NestedBook()
        self.draining: set[str] = set()
        self.looked_s = 0.0
        self.profiles = profiles
        self.placer = Placer(self.ledger, profiles, self.leases, note=note, policies=policies)
        self.learning = Learning(self.ledger, profiles, provisional_after_s, self.nested)
        self.health: dict[str, DeviceHealth] = {}
        """By UUID, of devices of whose health anything was ever said."""
        self.disk_problem = ""
        self.closing = False
        self.token = token
        self.number = 0
        self._jobs_at_once = jobs_at_once
        self._cores = cpus if cores is None else cores
        self._core_map = core_map
        self._mps: ev.MpsSeen | None = None
        self._fresh: set[int] = set()
        self._changed = False
        self._decider = Decider(
            self.ledger,
            self.placer,
            profiles,
            self.line,
            self.limits,
            self.groups,
            grant=self._grant_in_place_of,
            own=lambda request: left_by(self, request),
        )
        self._effects: list[ev.Effect] = []
        self._settling = ev.Settle(0.0)
        self._handlers: dict[type, Callable[[Any], list[ev.Effect]]] = {
            ev.Asked: self._asked,
            ev.Cancelled: self._cancelled,
            ev.Started: self._started,
            ev.Released: self._released,
            ev.OwnerGone: self._owner_gone,
            ev.MainGone: self._main_gone,
            ev.Returned: lambda event: returned(self, event),
            ev.Left: lambda event: left(self, event),
            ev.PeakTold: self._peak_told,
            ev.Reentered: lambda event: reentered(self, event),
            ev.Sampled: lambda event: sampled(self, event),
            ev.Found: self._found,
            ev.Trusted: lambda event: trusted(self, event),
            ev.Settle: self._settle,
            ev.DiskFailed: lambda event: disk_failed(self, event),
            ev.DiskHealed: lambda event: disk_healed(self, event),
            ev.MpsSeen: self._mps_seen,
        }

    def step(self, event: ev.Event) -> list[ev.Effect]:
        """Take one event in and return what to do about it, in order."""
        return self._handlers[type(event)](event)

    @property
    def reservation(self) -> Reservation | None:
        """What is kept for the head of the line."""
        return self._decider.reservation

    @property
    def dirty(self) -> bool:
        """Whether there is anything to decide at the next `Settle`."""
        return self._changed or bool(self._fresh)

    @dirty.setter
    def dirty(self, changed: bool) -> None:
        self._changed = changed

    # -- requests -------------------------------------------------------------------------------

    def _asked(self, event: ev.Asked) -> list[ev.Effect]:
        request = event.request
        if self.closing:
            text = "the broker is shutting down"
            return [ev.Refused(request.ticket, "shutting-down", text, request)]
        if self.disk_problem:
            return [ev.Refused(request.ticket, "disk", self.disk_problem, request)]
        outer = outer_of(self, request)
        if outer is not None:
            return asked_inside(self, request, outer)
        refusal = self.placer.impossible(request)
        if refusal:
            return [ev.Refused(request.ticket, "impossible", refusal, request)]
        if request.group:
            self._fresh.add(request.ticket)
            return asked_together(self, request, event.now)
        self.line.add(request)
        self._fresh.add(request.ticket)
        return []

    def _cancelled(self, event: ev.Cancelled) -> list[ev.Effect]:
        request = withdrawn(self, event.ticket, event.now)
        if request is None:
            return []
        self.forget_ticket(event.ticket)
        self.dirty = True
        return [ev.Refused(event.ticket, "cancelled", "the request was withdrawn", request)]

    def forget_ticket(self, ticket: int) -> None:
        """Keep nothing more for a request that waits no longer."""
        self._fresh.discard(ticket)
        self._decider.forget(ticket)

    def _settle(self, event: ev.Settle) -> list[ev.Effect]:
        if not self.dirty:
            return []
        changed, self._changed = self._changed, False
        if self.closing:
            self._fresh.clear()
            return []
        self._settling = event
        self.placer.now = event.now
        effects = self._effects = []
        for request, why in self.groups.expired(event.now) if len(self.groups) else ():
            self.forget_ticket(request.ticket)
            effects.append(ev.Refused(request.ticket, "impossible", why, request))
        if self.nested.waiting:
            changed |= grant_inside(self, effects)
        if not self.disk_problem:
            self._decide(event.now, changed=changed)
        effects += [
            ev.Queued(ticket, self.reason(ticket), self.waiting(ticket))
            for ticket in sorted(self._fresh)
        ]
        self._fresh.clear()
        return effects

    def _decide(self, now: float, *, changed: bool) -> None:
        one_by_one = bool(self.draining and self.line.in_process)
        if not (changed or one_by_one) and self._decider.decide_newcomers(now, tuple(self._fresh)):
            return
        waiting = -1
        while waiting != len(self.line):
            waiting = len(self.line)
            self._decider.decide(now, self.leases.values(), one_by_one=one_by_one)
            if not self.line.takes_turns:
                break  # else whoever was granted something has had a turn: others may come first

    def _grant_in_place_of(
        self, request: Request, placement: Placement, replaced: list[Lease]
    ) -> None:
        """Grant a lease; what its process holds on from leases before counts in it at once."""
        held: dict[str, int] = {}
        for lease in replaced:
            for uuid in lease.uuids:
                booking = self.ledger.by_uuid[uuid].bookings[lease.id]
                held[uuid] = max(held.get(uuid, 0), booking.measured_mib)
            self._effects += self.end(lease, replaced=True)
        self._effects += self._grant(self._settling, request, placement)
        for uuid, mib in held.items():
            self.ledger.measure(f"{self.token}-{self.number}", uuid, mib)

    def _grant(self, event: ev.Settle, request: Request, placement: Placement) -> list[ev.Effect]:
        threads = self.fair_share() if request.cpus is None else max(1, request.cpus)
        threads = min(threads, request.cores or threads)
        cores = self._cores_for(request, threads)
        self.line.remove(request.ticket, granted=True)
        if request.ticket in self.groups:
            self.groups.granted(request)
        self.forget_ticket(request.ticket)
        self.number += 1
        lease = Lease(
            id=f"{self.token}-{self.number}",
            number=self.number,
            request=request,
            uuids=placement.uuids,
            booked_mib=placement.mib,
            state=LeaseState.PROBE if placement.probe else LeaseState.RUNNING,
            granted_s=event.now,
            granted_at=event.at,
            threads=len(cores) or threads,
            cores=cores,
            mps=self._limits(request, placement),
            main=request.owner if request.in_process else None,
            started_s=event.now if request.in_process else None,
        )
        self.ledger.place(
            lease.id,
            placement.uuids,
            placement.mib,
            alone=placement.alone,
            cpus=request.cpus,
            ram_mib=request.ram_mib,
            compute=request.compute,
        )
        self.leases[lease.id] = lease
        record = grant_record(lease, alone=placement.alone, looked_s=event.now)
        return [ev.Record(record), ev.Granted(request.ticket, lease)]

    def fair_share(self) -> int:
        """Return the threads of a job that declared no CPUs: its part of the usable cores."""
        jobs = self._jobs_at_once or (len(self.leases) + len(self.line))
        return max(1, self._cores // max(1, jobs))

    def _cores_for(self, request: Request, threads: int) -> tuple[int, ...]:
        if not request.affinity:
            return ()
        bound = [x.cores for x in self.leases.values() if x.state is not LeaseState.DRAINING]
        return choose_cores(self._core_map, threads, held=bound, allowed=request.core_ids)

    def _limits(self, request: Request, placement: Placement) -> str:
        """Return where the MPS daemon is that will hold the job to its share; "" if none will.

        A job that is alone has no share of memory to be held to.
        """
        seen = self._mps
        limited = bool(placement.uuids) and (request.compute or not placement.alone)
        if seen is None or not limited or seen.uid not in (0, request.owner.uid):
            return ""
        return seen.folder

    def _mps_seen(self, event: ev.MpsSeen) -> list[ev.Effect]:
        """Note where a daemon answers; leases that are held keep what they were told."""
        self._mps = event if event.folder else None
        said = f"mps-answers folder={event.folder!r}" if event.folder else "mps-gone"
        return [ev.Said("info", said)]

    def waiting(self, ticket: int) -> Request | None:
        """Look up what waits for room, for the rest of its group, or inside a lease."""
        found = self.line.get(ticket) or self.groups.get(ticket)
        return found or self.nested.waiting.get(ticket)

    def reason(self, ticket: int) -> str:
        """Say why a request waits, with numbers, as of now."""
        request = self.line.get(ticket) or self.groups.get(ticket)
        if request is None:
            return reason_inside(self, ticket)
        if self.disk_problem:
            return self.disk_problem
        if reached := self._decider.reached.get(ticket):
            return reached
        if request.group and (told := self.groups.reason(ticket, self.placer, self.ledger)):
            return told
        head = self.reservation
        verdict = self.placer.place(request, head if head and head.ticket != ticket else None)
        if isinstance(verdict, Waits):
            return verdict.reason
        return "about to be decided"

    # -- life of a lease ------------------------------------------------------------------------

    def _started(self, event: ev.Started) -> list[ev.Effect]:
        lease = self.leases.get(event.lease)
        if lease is None:
            return []
        if lease.main != event.main or lease.started_s is None:  # else told again, to a successor
            lease.started_s = event.now
        lease.main = event.main
        return [ev.Record(main_record(lease), started=True)]

    def _peak_told(self, event: ev.PeakTold) -> list[ev.Effect]:
        lease = self.leases.get(event.lease)
        if lease is None or lease.state is LeaseState.DRAINING:
            raise LeaseError(f"lease {event.lease!r} is not held any more")
        effects = self.learning.reported(lease, event.mib)
        self.dirty |= bool(effects)
        return effects

    def _released(self, event: ev.Released) -> list[ev.Effect]:
        lease = self.leases.get(event.lease)
        if lease is None or lease.state is LeaseState.DRAINING:
            text = f"lease {event.lease} is not held any more"
            return [ev.Refused(event.ticket, "lease", text)]
        outcome = self.learning.outcome(lease, event.end)
        end = event.end
        lease.outcome, lease.end, lease.ended_at = outcome, end, event.at
        cure = self.learning.cure(lease, outcome, end.said)
        notes, effects = self.learning.ended(
            lease, outcome, event.now, said_oom=end.said_oom, cure=cure, at=event.at
        )
        if lease.xids and outcome != OK:
            seen = ", ".join(map(xid_text, dict.fromkeys(lease.xids)))
            notes.append(f"while it ran, its device reported {seen}")
        in_process = lease.main == lease.request.owner
        drains = (event.main_alive and not in_process) or self.is_used(lease)
        drains |= bool(event.left_over)
        lease.left_over = event.left_over
        if not event.main_alive:
            lease.main = None  # nobody will say that it is gone: what drains ends with its memory
        peak = peak_of(lease)
        report = ev.Reported(
            event.ticket,
            lease,
            outcome,
            peak.mib if peak is not None else None,
            peak.source if peak is not None else None,
            drains,
            *self.learning.retry(lease, cure, notes),
            tuple(notes),
            end,
        )
        effects.append(report)
        return effects + (self.drain(lease, event.now) if drains else self.end(lease))

    def _owner_gone(self, event: ev.OwnerGone) -> list[ev.Effect]:
        lease = self.leases.get(event.lease)
        if lease is None or lease.owner_gone:
            return []
        lease.owner_gone = True
        effects: list[ev.Effect] = [ev.Said("warning", f"owner-gone lease={lease.id}")]
        if lease.state is not LeaseState.DRAINING:
            lease.orphaned = True
            _, learnt = self.learning.ended(lease, LOST, event.now)
            effects += learnt
        in_process = lease.main is None or lease.main == lease.request.owner
        if not event.main_alive:
            lease.main = None
        lease.left_over = event.left_over
        drains = (event.main_alive and not in_process) or self.is_used(lease)
        drains = drains or kept_by_left_over(self, lease)
        effects += self.lost(lease, drains=drains)
        return effects + (self.drain(lease, event.now) if drains else self.end(lease))

    def lost(self, lease: Lease, *, drains: bool) -> list[ev.Effect]:
        """Note that nobody saw the end of a lease; nothing, if it was told before."""
        if lease.outcome:
            return []
        lease.outcome = LOST
        peak = peak_of(lease)
        mib, source = (peak.mib, peak.source) if peak is not None else (None, None)
        return [ev.Lost(lease, mib, source, drains)]

    def _main_gone(self, event: ev.MainGone) -> list[ev.Effect]:
        lease = self.leases.get(event.lease)
        if lease is None:
            return []
        lease.main, lease.left_over = None, event.left_over
        return self.end_if_drained(lease) if lease.state is LeaseState.DRAINING else []

    def end_if_drained(self, lease: Lease) -> list[ev.Effect]:
        """End a draining lease, unless processes keep it, or something of it is in use."""
        lives = lease.main is not None and lease.main != lease.request.owner
        lives = lives or kept_by_left_over(self, lease)
        return [] if lives or self.is_used(lease) else self.end(lease)

    def is_used(self, lease: Lease) -> bool:
        """Whether processes hold device memory in the lease, or nested jobs run in it."""
        return self.nested.held(lease.id) or any(
            self.ledger.by_uuid[uuid].bookings[lease.id].measured_mib > 0
            for uuid in lease.uuids
            if uuid in self.ledger.by_uuid
        )

    def drain(self, lease: Lease, now: float) -> list[ev.Effect]:
        """Keep what an ended lease holds on a device, and give the rest back."""
        if lease.state is LeaseState.DRAINING:
            return []
        lease.state = LeaseState.DRAINING
        self.draining.add(lease.id)
        lease.ended_s = now
        self.ledger.drain(lease.id, lease.uuids, runs_on=lease.orphaned)
        self.dirty = True
        text = f"draining lease={lease.id} reason='its processes live or hold device memory'"
        return [ev.Record(main_record(lease)), ev.Said("info", text)]

    def end(self, lease: Lease, *, replaced: bool = False) -> list[ev.Effect]:
        """Take a lease out of the books. `replaced`: by one whose process holds on what it holds."""
        del self.leases[lease.id]
        self.draining.discard(lease.id)
        self.nested.forget_lease(lease.id)
        (self.ledger.remove if replaced else self.ledger.end)(lease.id, lease.uuids)
        self.dirty = True
        return [ev.Record(end_record(lease))]

    # -- devices --------------------------------------------------------------------------------

    def _found(self, event: ev.Found) -> list[ev.Effect]:
        """Open books for devices that are new, unless a lease names one: it was never booked here."""
        named = {uuid for lease in self.leases.values() for uuid in lease.uuids}
        new = [x for x in event.devices if x.uuid not in named | self.ledger.by_uuid.keys()]
        self.ledger.add(new)
        self.placer.renew(event.note)
        self.dirty |= bool(new)
        return [
            ev.Said("info", f"device-found uuid={x.uuid} index={x.index} model={x.model!r}")
            for x in new
        ]

    # -- taking over ----------------------------------------------------------------------------

    def snapshot(self) -> list[dict[str, object]]:
        """Return the records from which a successor rebuilds the leases that are held now."""
        return snapshot(self)

    def restore(self, records: Iterable[Mapping[str, Any]], now: float) -> list[str]:
        """Rebuild the leases that a journal tells of; return what of it is not understood."""
        return restore(self, records, now)

    # -- promises -------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise `InvariantError` unless the books and the leases agree with all promises."""
        check_machine(self)
