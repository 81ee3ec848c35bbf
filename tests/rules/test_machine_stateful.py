"""Random events on the machine, against a small model of what it promises.

The model keeps plain facts (who was granted what, what was last seen) and knows nothing of policies,
reservations or caches. Whatever the machine decides must be explicable by those facts, and once all
is calm everybody who waits must get a turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from grn.rules import events as ev
from grn.rules.estimate import Margin
from grn.rules.machine import Machine
from grn.rules.model import Device, DeviceState, End, Lease, LeaseState, Owner, Policy, Request
from grn.rules.profiles import ProfileBook

if TYPE_CHECKING:
    from collections.abc import Iterable

CPUS, RAM_MIB = 6, 1000
TYPES = st.sampled_from(["known", "big", "a", "b"])
ENDS = st.sampled_from(
    [
        End(exit_code=0),
        End(exit_code=1),
        End(signal=9),
        End(),
        End(exit_code=1, said_oom=True),
        End(signal=15, stopped=True),
    ]
)
MIB = st.one_of(st.just(0), st.integers(0, 9000))


@dataclass
class _Held:
    """What the model remembers of a lease."""

    uuids: tuple[str, ...]
    booked: int
    state: str
    alone: bool
    cpus: int
    ram: int
    main: str = "none"  # or "own" (the client computes itself), "child", "dead"
    owner_gone: bool = False
    measured: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return any(self.measured.values())

    @property
    def kept(self) -> bool:
        return self.main == "child" or self.holds


@dataclass
class _Page:
    """What the model remembers of a device."""

    device: Device
    state: DeviceState = DeviceState.OK
    foreign: int = 0
    usage_known: bool = True


class MachineAgainstPromises(RuleBasedStateMachine):
    """Drives one machine; `_step` checks each effect."""

    @initialize(
        sizes=st.lists(st.sampled_from([1000, 4000, 8000, 8000]), min_size=1, max_size=4),
        headroom=st.sampled_from([0, 0, 300]),
        mixed=st.booleans(),
        one_process=st.booleans(),
    )
    def begin(self, sizes: list[int], headroom: int, *, mixed: bool, one_process: bool) -> None:
        """Start a broker on random devices."""
        self.devices = [
            Device(
                uuid=f"d{i}",
                index=i,
                model="ab"[i % 2] if mixed else "a",
                total_mib=mib,
                headroom_mib=headroom,
                one_process=one_process and i == 0,
            )
            for i, mib in enumerate(sizes)
        ]
        self.profiles = ProfileBook(Margin(0, 0))
        self.profiles.of("known", "a").succeeded(2000, 1.0, "sampled")
        self.profiles.of("big", "a").succeeded(6000, 1.0, "sampled")
        self.machine = self._new_machine()
        self.pages = {device.uuid: _Page(device) for device in self.devices}
        self.line: dict[int, Request] = {}
        self.held: dict[str, _Held] = {}
        self.ended: set[str] = set()
        self.journal = self.machine.snapshot()
        self.now = 0.0
        self.ticket = 0

    def _new_machine(self) -> Machine:
        return Machine(
            self.devices,
            cpus=CPUS,
            ram_mib=RAM_MIB,
            profiles=self.profiles,
            token="t",  # noqa: S106 - names leases, opens nothing
        )

    # -- the model's arithmetic -----------------------------------------------------------------

    def _on(self, uuid: str) -> list[_Held]:
        return [held for held in self.held.values() if uuid in held.uuids]

    def _free(self, uuid: str) -> int:
        page = self.pages[uuid]
        taken = sum(max(held.booked, held.measured.get(uuid, 0)) for held in self._on(uuid))
        return max(0, page.device.capacity_mib - page.foreign - taken)

    def _possible(self, request: Request) -> bool:
        if (request.cpus or 0) > CPUS or (request.ram_mib or 0) > RAM_MIB:
            return False
        count = request.gpus or 0
        sizes = sorted(
            (
                device.capacity_mib
                for device in self.devices
                if request.allowed is None or device.uuid in request.allowed
            ),
            reverse=True,
        )
        if count > len(sizes):
            return False
        return not count or request.whole or (request.memory_mib or 0) <= sizes[count - 1]

    # -- one step -------------------------------------------------------------------------------

    def _step(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.machine.step(event)
        for effect in effects:
            match effect:
                case ev.Record(record):
                    self._recorded(record)
                case ev.Granted():
                    self._granted(effect)
                case ev.Queued(ticket, reason):
                    assert ticket in self.line
                    assert reason
        self.machine.check_invariants()
        if not self.machine.disk_problem:
            self.journal += [effect.record for effect in effects if isinstance(effect, ev.Record)]
        self._books_agree()
        return effects

    def _recorded(self, record: dict[str, Any]) -> None:
        lease = str(record["lease"])
        if record["ev"] == "grant":
            self._check_grant(record)
            self.held[lease] = _Held(
                tuple(record["uuids"]),
                int(record["booked_mib"]),
                str(record["state"]),
                bool(record["alone"]),
                record["cpus"] or 0,
                record["ram_mib"] or 0,
            )
        elif record["ev"] == "end":
            assert lease not in self.ended, "a lease ends once"
            del self.held[lease]
            self.ended.add(lease)
        else:
            self._changed(self.held[lease], record)

    def _check_grant(self, record: dict[str, Any]) -> None:
        uuids, mib = record["uuids"], record["booked_mib"]
        assert record["lease"] not in self.held
        assert record["lease"] not in self.ended
        assert len(set(uuids)) == len(uuids) == (record["gpus"] or 0)
        if record["whole"] and uuids:
            assert record["alone"]
        for uuid in uuids:
            page, others = self.pages[uuid], self._on(uuid)
            assert page.state is DeviceState.OK
            assert 0 <= mib <= self._free(uuid)
            assert not any(held.alone for held in others)
            if record["alone"] or page.device.one_process or not page.usage_known:
                assert not others
        assert sum(h.cpus for h in self.held.values()) + (record["cpus"] or 0) <= CPUS
        assert sum(h.ram for h in self.held.values()) + (record["ram_mib"] or 0) <= RAM_MIB

    @staticmethod
    def _changed(held: _Held, record: dict[str, Any]) -> None:
        if record["state"] == "draining" and held.state != "draining":
            held.cpus = held.ram = 0
        if record["state"] == "running" and held.state == "probe":
            assert record["booked_mib"] <= held.booked
            held.booked, held.alone = record["booked_mib"], False
        held.state = record["state"]

    def _granted(self, effect: ev.Granted) -> None:
        lease = effect.lease
        if effect.nested:
            assert self.held[lease.id].state != "draining"
            return
        request = self.line.pop(effect.ticket)
        assert not self.machine.disk_problem
        assert self.held[lease.id].uuids == lease.uuids
        if request.allowed is not None:
            assert set(lease.uuids) <= request.allowed
        if lease.uuids and lease.state is not LeaseState.PROBE and request.memory_mib is not None:
            assert lease.booked_mib >= request.memory_mib
        assert lease.threads >= 1

    def _books_agree(self) -> None:
        machine = self.machine
        assert set(machine.leases) == set(self.held)
        assert [request.ticket for request in machine.line] == [
            request.ticket
            for request in sorted(
                self.line.values(), key=lambda r: (-r.priority, r.arrived_s, r.ticket)
            )
        ]
        for lease_id, held in self.held.items():
            assert str(machine.leases[lease_id].state) == held.state
        for uuid, page in self.pages.items():
            book = machine.ledger.by_uuid[uuid]
            assert book.free_mib == self._free(uuid)
            assert book.booked_mib <= page.device.capacity_mib
        assert machine.ledger.cpus.booked == sum(held.cpus for held in self.held.values())
        assert machine.ledger.ram.booked == sum(held.ram for held in self.held.values())

    def _refusals(self, effects: Iterable[ev.Effect]) -> list[ev.Refused]:
        return [effect for effect in effects if isinstance(effect, ev.Refused)]

    # -- requests -------------------------------------------------------------------------------

    @rule(
        job_type=TYPES,
        gpus=st.sampled_from([None, 0, 1, 1, 1, 1, 2, 3]),
        memory=st.one_of(st.none(), st.sampled_from([0, 1000, 3000, 4000, 8000]), MIB),
        whole=st.sampled_from([False, False, False, True]),
        cpus=st.sampled_from([None, None, None, 0, 1, 4, 6, 7]),
        ram=st.sampled_from([None, None, 400, 1000, 1001]),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
        policy=st.sampled_from(list(Policy)),
        mask=st.one_of(st.none(), st.none(), st.sets(st.integers(0, 3), min_size=1)),
        settle=st.booleans(),
    )
    def ask(
        self,
        job_type: str,
        gpus: int | None,
        memory: int | None,
        cpus: int | None,
        ram: int | None,
        priority: int,
        policy: Policy,
        mask: set[int] | None,
        *,
        whole: bool,
        settle: bool,
    ) -> None:
        """Somebody wants a lease: it is refused at once exactly if it can never be had."""
        allowed = None if mask is None else frozenset(f"d{i}" for i in mask) & set(self.pages)
        self._ask(
            job_type,
            settle=settle,
            gpus=gpus,
            memory_mib=None if whole else memory,
            whole=whole,
            cpus=cpus,
            ram_mib=ram,
            priority=priority,
            policy=policy,
            allowed=allowed,
        )

    @rule(
        job_type=TYPES,
        memory=st.sampled_from([None, None, 500, 1000, 3000]),
        gpus=st.sampled_from([1, 1, 1, 2]),
        policy=st.sampled_from(list(Policy)),
    )
    def ask_plainly(self, job_type: str, memory: int | None, gpus: int, policy: Policy) -> None:
        """Most wishes are ordinary."""
        self._ask(job_type, settle=True, gpus=gpus, memory_mib=memory, policy=policy)

    @rule(job_type=TYPES, memory=st.sampled_from([None, 400, 2500]), count=st.integers(2, 6))
    def ask_at_once(self, job_type: str, memory: int | None, count: int) -> None:
        """Many come in the same instant."""
        for _ in range(count):
            self._ask(job_type, settle=False, memory_mib=memory)
        self._settle()

    def _ask(self, job_type: str, *, settle: bool, **wish: Any) -> None:
        self.ticket += 1
        request = Request(
            self.ticket,
            job_type,
            Owner(100 + self.ticket, self.ticket),
            arrived_s=self.now,
            **wish,
        )
        possible = self._possible(request)
        if possible and not self.machine.disk_problem:
            self.line[self.ticket] = request
        refused = self._refusals(self._step(ev.Asked(self.now, request)))
        assert bool(refused) == (self.ticket not in self.line)
        if refused and not self.machine.disk_problem:
            assert refused[0].code == "impossible"
        if settle:
            self._settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), gpus=st.integers(0, 2), memory=MIB)
    def ask_inside(self, data: st.DataObject, gpus: int, memory: int) -> None:
        """Somebody inside a lease asks again: never a second lease."""
        outer = data.draw(st.sampled_from(sorted(self.held)))
        if self.held[outer].state == "draining":
            return
        self.ticket += 1
        request = Request(
            self.ticket, "a", Owner(99, 1), gpus=gpus, memory_mib=memory, outer=outer
        )  # fmt: skip
        before = set(self.held)
        effects = self._step(ev.Asked(self.now, request))
        assert len(effects) == 1
        assert set(self.held) == before

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A request is withdrawn."""
        ticket = data.draw(st.sampled_from(sorted(self.line)))
        del self.line[ticket]
        refused = self._refusals(self._step(ev.Cancelled(self.now, ticket)))
        assert [(refusal.ticket, refusal.code) for refusal in refused] == [(ticket, "cancelled")]
        assert not self._step(ev.Cancelled(self.now, ticket))

    @rule(wait_s=st.sampled_from([0.0, 1.0, 70.0]))
    def settle(self, wait_s: float) -> None:
        """Time passes, and what fits is granted."""
        self.now += wait_s
        self._settle()

    def _settle(self) -> list[ev.Effect]:
        effects = self._step(ev.Settle(self.now))
        if not self.machine.disk_problem:
            reasons = [self.machine.reason(ticket) for ticket in self.line]
            assert "about to be decided" not in reasons
        return effects

    # -- leases ---------------------------------------------------------------------------------

    @precondition(lambda self: self.held)
    @rule(data=st.data(), own=st.booleans())
    def start(self, data: st.DataObject, *, own: bool) -> None:
        """A client names the main process: itself, or its child."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        if self.held[lease].main != "none" or self.held[lease].owner_gone:
            return
        self.held[lease].main = "own" if own else "child"
        owner = self.machine.leases[lease].request.owner
        self._step(ev.Started(self.now, lease, owner if own else Owner(owner.pid + 5000, 7)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), end=ENDS, lives=st.booleans(), quits=st.booleans())
    def release(self, data: st.DataObject, end: End, *, lives: bool, quits: bool) -> None:
        """A lease is given back: it stays for as long as its child or its memory does."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        self._release(lease, end, main_alive=lives, quits=quits)

    def _release(self, lease: str, end: End, *, main_alive: bool, quits: bool) -> None:
        held = self.held[lease]
        if quits and held.state != "draining":  # what it held went before it said so
            self._see(lease, 0)
        drained = held.state == "draining"
        main_alive = main_alive and held.main in {"own", "child"}
        if not main_alive and held.main in {"own", "child"} and not drained:
            held.main = "dead"
        kept = held.kept
        self.ticket += 1
        effects = self._step(ev.Released(self.now, lease, end, self.ticket, main_alive=main_alive))
        if drained:
            assert [refusal.code for refusal in self._refusals(effects)] == ["lease"]
            return
        reports = [effect for effect in effects if isinstance(effect, ev.Reported)]
        assert [report.draining for report in reports] == [kept]
        assert (lease in self.held) == kept

    @precondition(lambda self: self.held)
    @rule(data=st.data(), lives=st.booleans())
    def owner_gone(self, data: st.DataObject, *, lives: bool) -> None:
        """A client died: the same holds."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        if held.owner_gone:
            return
        held.owner_gone = True
        if held.main == "own" or (held.main == "child" and not lives):
            held.main = "dead"
        kept = held.kept
        self._step(ev.OwnerGone(self.now, lease, main_alive=held.main == "child"))
        assert (lease in self.held) == kept

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def main_gone(self, data: st.DataObject) -> None:
        """A job's main process died."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        held.main = "dead"
        ends = held.state == "draining" and not held.holds
        self._step(ev.MainGone(self.now, lease))
        assert (lease in self.held) != ends

    # -- devices --------------------------------------------------------------------------------

    @rule(data=st.data(), settle=st.booleans())
    def look(self, data: st.DataObject, *, settle: bool) -> None:
        """Readings may say anything, or nothing."""
        self._sample([self._any_reading(data, uuid) for uuid in self.pages])
        if settle:
            self._settle()

    def _any_reading(self, data: st.DataObject, uuid: str) -> ev.Reading:
        state = data.draw(st.sampled_from([DeviceState.OK] * 4 + list(DeviceState)))
        if state is not DeviceState.OK:
            return ev.Reading(uuid, state, "no answer", None, None, None, {})
        held = {
            lease: data.draw(MIB)
            for lease in sorted(self.held)
            if uuid in self.held[lease].uuids or data.draw(st.integers(0, 9)) == 0
        }
        known = data.draw(st.sampled_from([True, True, True, False]))
        foreign = data.draw(st.sampled_from([0, 0, 0, 500, 3000, 9000]))
        used = data.draw(st.sampled_from([sum(held.values()) + foreign] * 3 + [None]))
        return ev.Reading(
            uuid, state, "", used, None if used is None else foreign, held if known else None, {}
        )

    def _sample(self, readings: list[ev.Reading]) -> None:
        for reading in readings:
            self._seen(reading)
        ends = {
            lease
            for lease, held in self.held.items()
            if held.state == "draining"
            and not held.kept
            and all(self.pages[uuid].state is DeviceState.OK for uuid in held.uuids)
        }
        before = set(self.held)
        self._step(ev.Sampled(self.now, tuple(readings), {}))
        assert before - set(self.held) == ends

    def _seen(self, reading: ev.Reading) -> None:
        page = self.pages[reading.uuid]
        page.state = reading.state
        if reading.state is not DeviceState.OK:
            return
        page.usage_known = reading.used_mib is not None
        on = {lease for lease, held in self.held.items() if reading.uuid in held.uuids}
        if reading.foreign_mib is not None:
            strays = {k: v for k, v in (reading.leases or {}).items() if k not in on}
            page.foreign = reading.foreign_mib + sum(strays.values())
        if reading.leases is not None:
            for lease in on:
                self.held[lease].measured[reading.uuid] = reading.leases.get(lease, 0)

    def _see(self, lease: str | None, mib: int, *, calm: bool = False) -> None:
        """Look again: all is as it was, but for one lease (or, calm, nobody holds anything)."""
        readings = []
        for uuid, page in self.pages.items():
            held = {
                name: mib if name == lease or calm else known.measured.get(uuid, 0)
                for name, known in self.held.items()
                if uuid in known.uuids
            }
            foreign = 0 if calm else page.foreign
            used = sum(held.values()) + foreign
            readings.append(ev.Reading(uuid, DeviceState.OK, "", used, foreign, held, {}))
        self._sample(readings)

    # -- disk and restart -----------------------------------------------------------------------

    @precondition(lambda self: self.line and not self.machine.disk_problem)
    @rule()
    def disk_fails_while_granting(self) -> None:
        """What was just granted is taken back when no journal keeps it."""
        kept = len(self.journal)
        effects = self._settle()
        granted = {e.lease.id: e for e in effects if isinstance(e, ev.Granted)}
        del self.journal[kept:]
        for lease in granted:
            del self.held[lease]
        refused = self._refusals(self._step(ev.DiskFailed(self.now, tuple(granted), "full")))
        assert {r.ticket for r in refused} == {e.ticket for e in granted.values()}

    @precondition(lambda self: self.machine.disk_problem)
    @rule()
    def disk_heals(self) -> None:
        """The journal is written whole, then grants go on."""
        self.journal = self.machine.snapshot()
        self._step(ev.DiskHealed(self.now))
        self._settle()

    @precondition(lambda self: len(self.held) > 1 and not self.machine.disk_problem)
    @rule(replay=st.booleans())
    def restart(self, *, replay: bool) -> None:
        """A new broker has the same leases, from a snapshot or from the journal; nobody waits."""
        before = self.machine
        self.machine = self._new_machine()
        self.machine.restore(self.journal if replay else before.snapshot(), self.now)
        self.journal = self.machine.snapshot()
        assert self.machine.number == before.number
        for lease_id, lease in before.leases.items():
            self._same(lease, self.machine.leases[lease_id])
        for old, new in zip(before.ledger.books, self.machine.ledger.books, strict=True):
            assert new.booked_mib == old.booked_mib
            assert new.alone == old.alone
        self.line.clear()
        for held in self.held.values():
            held.measured.clear()
            held.owner_gone = False
        for page in self.pages.values():
            page.state, page.foreign, page.usage_known = DeviceState.OK, 0, True
        self._books_agree()
        self.machine.check_invariants()

    @staticmethod
    def _same(old: Lease, new: Lease) -> None:
        assert new.uuids == old.uuids
        assert new.booked_mib == old.booked_mib
        assert new.state is old.state
        # A death is no record: the successor looks for itself.
        assert new.main == old.main or old.main is None
        assert new.request.owner == old.request.owner
        assert new.type == old.type

    # -- calm -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.line) > 1)
    @rule(end=ENDS)
    def calm(self, end: End) -> None:
        """With nobody else on the devices, everybody who waits gets a turn in bounded time."""
        if self.machine.disk_problem:
            self.disk_heals()
        for _ in range(len(self.line) + 1):
            self._see(None, 0, calm=True)
            for lease in list(self.held):
                self._empty(lease, end)
            assert not self.held
            self._settle()
        assert not self.line

    def _empty(self, lease: str, end: End) -> None:
        held = self.held[lease]
        if held.state != "draining":
            self._release(lease, end, main_alive=False, quits=False)
        if lease in self.held:
            held.main = "dead"
            self._step(ev.MainGone(self.now, lease))


TestMachineAgainstPromises = MachineAgainstPromises.TestCase
TestMachineAgainstPromises.settings = settings(
    parent=settings.default, max_examples=80, stateful_step_count=50
)
