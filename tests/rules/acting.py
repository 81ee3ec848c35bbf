"""A stage for the rules: a `Machine`, a fake clock, and jobs that hold memory that only exists here.

Each event is followed by `check_invariants()`, and after each event the truth is compared with the
size of the devices: a job that holds more than the books allow shows up in `overruns`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from grn.rules import events as ev
from grn.rules.estimate import Margin
from grn.rules.machine import Machine
from grn.rules.model import Device, DeviceState, End, Lease, Owner, Request
from grn.rules.profiles import ProfileBook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXACT = Margin(0, 0)
MODEL = "Simulated"


@dataclass(slots=True, eq=False)
class Job:
    """One request and what became of it. `holds` is the truth: MiB by device."""

    request: Request
    runs_s: float | None
    peak_mib: int
    boots_s: float
    end: End
    held: dict[str, int] = field(default_factory=dict)
    lease: Lease | None = None
    refused: ev.Refused | None = None
    told: str = ""
    report: ev.Reported | None = None
    granted_s: float | None = None
    ended_s: float | None = None
    at: tuple[int, ...] = ()
    """Indices of its devices, in lease order."""

    @property
    def runs(self) -> bool:
        """Whether it was granted and has not ended."""
        return self.lease is not None and self.ended_s is None

    @property
    def waits(self) -> bool:
        """Whether it is still in the line."""
        return self.lease is None and self.refused is None

    @property
    def booked_mib(self) -> int:
        """MiB set aside for it on each device."""
        assert self.lease is not None
        return self.lease.booked_mib


def devices(
    sizes_mib: Sequence[int],
    *,
    order: Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    one_process: bool = False,
) -> list[Device]:
    """Make devices in bus order, or in the `order` of a mask."""
    made = [
        Device(
            uuid=f"GPU-{index:04d}",
            index=index,
            model=models[index] if models else MODEL,
            total_mib=mib,
            one_process=one_process,
        )
        for index, mib in enumerate(sizes_mib)
    ]
    return [made[index] for index in order] if order else made


class Stage:
    """Acts scenarios out. Time moves only in `run_until` and `run_all`."""

    def __init__(
        self,
        *sizes_mib: int,
        order: Sequence[int] | None = None,
        models: Sequence[str] | None = None,
        one_process: bool = False,
        margin: Margin = EXACT,
        **machine: Any,
    ) -> None:
        self.devices = devices(sizes_mib, order=order, models=models, one_process=one_process)
        self.profiles = ProfileBook(margin)
        self.machine = Machine(
            self.devices,
            profiles=self.profiles,
            token="t",  # noqa: S106 - names leases, opens nothing
            **{"cpus": 8, "ram_mib": None, **machine},
        )
        self.now = 0.0
        self.jobs: dict[int, Job] = {}
        self.by_lease: dict[str, Job] = {}
        self.foreign: dict[str, int] = {}
        self.states: dict[str, DeviceState] = {}
        self.said: list[str] = []
        self.journal: list[dict[str, object]] = []
        self.overruns: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)

    # -- what is known and seen -----------------------------------------------------------------

    def know(self, job_type: str, mib: int, model: str = MODEL) -> None:
        """Let a type be known by one measured run."""
        self.profiles.of(job_type, model).succeeded(mib, 1.0, "sampled")

    def estimate(self, job_type: str, model: str = MODEL) -> int | None:
        """What a next run would book."""
        return self.profiles.estimate_mib(job_type, model, factor=1.0)

    def free(self, index: int = 0) -> int:
        """What the books would still hand out on a device."""
        return self.machine.ledger.by_uuid[f"GPU-{index:04d}"].free_mib

    def reason(self, job: Job) -> str:
        """Why a job waits."""
        return self.machine.reason(job.request.ticket)

    def running(self) -> list[Job]:
        """Jobs that run now."""
        return [job for job in self.jobs.values() if job.runs]

    def others(self, index: int, mib: int) -> None:
        """Let somebody else hold memory on a device."""
        self.foreign[f"GPU-{index:04d}"] = mib
        self.look()

    # -- what jobs do ---------------------------------------------------------------------------

    def ask(
        self,
        job_type: str = "job",
        *,
        runs_s: float | None = None,
        peak_mib: int = 0,
        boots_s: float = 0.0,
        end: End | None = None,
        settle: bool = True,
        **wish: Any,
    ) -> Job:
        """Ask for a lease. With `runs_s` the job lives by itself once it is granted."""
        ticket = next(self._numbers)
        usual = {"owner": Owner(10_000 + ticket, ticket), "arrived_s": self.now}
        request = Request(ticket, job_type, **{**usual, **wish})
        job = Job(request, runs_s, peak_mib, boots_s, end or End(exit_code=0))
        self.jobs[ticket] = job
        self.step(ev.Asked(self.now, request))
        if settle:
            self.settle()
        return job

    def ask_together(self, *wishes: dict[str, Any]) -> list[Job]:
        """Ask for several leases in the same instant."""
        jobs = [self.ask(**{**wish, "settle": False}) for wish in wishes]
        self.settle()
        return jobs

    def hold(self, job: Job, mib: int, index: int | None = None) -> None:
        """Let a job hold memory on its devices, or on one of its own choice."""
        assert job.lease is not None
        uuids = job.lease.uuids if index is None else (f"GPU-{index:04d}",)
        job.held.update(dict.fromkeys(uuids, mib))
        self.look()

    def finish(
        self, job: Job, end: End | None = None, *, holds_on: bool = False, settle: bool = True
    ) -> None:
        """Let a job end and be released; with `holds_on` something of it keeps its memory."""
        assert job.lease is not None
        if not holds_on:
            job.held.clear()
            self.look(settle=False)
        ticket = next(self._numbers)
        self.jobs[ticket] = job
        self.step(ev.Released(self.now, job.lease.id, end or job.end, ticket))
        del self.jobs[ticket]
        job.ended_s = self.now
        if settle:
            self.settle()

    def cancel(self, job: Job) -> None:
        """Withdraw a request."""
        self.step(ev.Cancelled(self.now, job.request.ticket))
        self.settle()

    # -- time -----------------------------------------------------------------------------------

    def at(self, when_s: float, do: Callable[[], object]) -> None:
        """Do something later."""
        heapq.heappush(self._agenda, (when_s, next(self._numbers), lambda: (do(), None)[1]))

    def run_until(self, end_s: float) -> None:
        """Let time pass."""
        while self._agenda and self._agenda[0][0] <= end_s:
            self.now, _, do = heapq.heappop(self._agenda)
            do()
        self.now = end_s

    def run_all(self, limit_s: float = 1e6) -> None:
        """Let time pass until nothing is left to happen."""
        while self._agenda and self._agenda[0][0] <= limit_s:
            self.run_until(self._agenda[0][0])

    # -- the machine ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Decide."""
        self.step(ev.Settle(self.now))

    def look(self, *, settle: bool = True) -> None:
        """Look at all devices, as the broker would."""
        readings = tuple(self._reading(device) for device in self.devices)
        self.step(ev.Sampled(self.now, readings, {}))
        if settle:
            self.settle()

    def _reading(self, device: Device) -> ev.Reading:
        uuid = device.uuid
        state = self.states.get(uuid, DeviceState.OK)
        if state is not DeviceState.OK:
            return ev.Reading(uuid, state, "as told", None, None, None, {})
        held = {
            lease: job.held[uuid]
            for lease, job in self.by_lease.items()
            if lease in self.machine.leases and job.held.get(uuid)
        }
        foreign = self.foreign.get(uuid, 0)
        used = sum(held.values()) + foreign
        if used > device.total_mib:
            self.overruns.append(f"{self.now}: {used} of {device.total_mib} MiB on {uuid}")
        return ev.Reading(uuid, state, "", used, foreign, held, {})

    def step(self, event: ev.Event) -> list[ev.Effect]:
        """Take one event in, check all promises, and act on the effects."""
        effects = self.machine.step(event)
        self.machine.check_invariants()
        for effect in effects:
            self._act(effect)
        return effects

    def _act(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Granted(ticket, lease, nested):
                self._granted(self.jobs[ticket], lease, nested=nested is not None)
            case ev.Refused():
                self.jobs[effect.ticket].refused = effect
            case ev.Queued(ticket, reason):
                self.jobs[ticket].told = reason
            case ev.Reported():
                self.jobs[effect.ticket].report = effect
            case ev.Record(record):
                self.journal.append(record)
            case ev.Said(_, text):
                self.said.append(text)

    def _granted(self, job: Job, lease: Lease, *, nested: bool) -> None:
        assert job.lease is None, "granted twice"
        by_uuid = {device.uuid: device.index for device in self.devices}
        job.lease, job.granted_s = lease, self.now
        job.at = tuple(by_uuid[uuid] for uuid in lease.uuids)
        if nested:
            return
        self.by_lease[lease.id] = job
        self.at(self.now, lambda: self._begin(job))

    def _begin(self, job: Job) -> None:
        assert job.lease is not None
        if not job.runs:
            return
        main = Owner(20_000 + job.request.ticket, job.request.ticket)
        self.step(ev.Started(self.now, job.lease.id, main))
        if job.runs_s is None:
            return
        if job.peak_mib:
            self.at(self.now + job.boots_s, lambda: self.hold(job, job.peak_mib))
        self.at(self.now + job.runs_s, lambda: self.finish(job))
