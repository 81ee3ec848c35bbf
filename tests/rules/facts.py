"""The small model that random events on the machine are compared with.

It keeps plain facts (who was granted what, what was last seen) and knows nothing of policies,
reservations or caches. Whatever the machine decides must be explicable by those facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from grn.rules import events as ev
from grn.rules.estimate import Margin
from grn.rules.machine import Machine
from grn.rules.model import Device, DeviceState, Lease, LeaseState, Request
from grn.rules.profiles import ProfileBook

if TYPE_CHECKING:
    from collections.abc import Iterable

CPUS, RAM_MIB = 6, 1000


@dataclass
class Held:
    """What the model remembers of a lease."""

    uuids: tuple[str, ...]
    booked: int
    state: str
    alone: bool
    cpus: int
    ram: int
    main: str = "none"  # or "own" (the client computes itself), "child", "dead"
    owner_gone: bool = False
    orphaned: bool = False
    """Nobody saw its end, since its client died before."""
    lives_on: bool = False
    """A process of it that is not its main one was last seen to live."""
    measured: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    """What was seen of it at most by process, of a job that is not over."""
    nested: dict[int, int] = field(default_factory=dict)
    """Ticket -> MiB, of the jobs inside it."""
    restored: bool = False
    vague: set[str] = field(default_factory=set)
    """Devices of which nobody can say what its processes hold there."""
    company: set[str] = field(default_factory=set)
    """Devices of which the rise of the total is not only its own."""

    def may_want_again(self, uuid: str, mib: int) -> None:
        """Keep what it held beyond its booking, while its job runs."""
        if mib > self.booked and (self.orphaned or self.state != "draining"):
            self.most[uuid] = max(mib, self.most.get(uuid, 0))

    @property
    def holds(self) -> bool:
        """Whether any of its memory was last seen."""
        return any(self.measured.values())

    @property
    def kept(self) -> bool:
        """Whether something of it outlives its release."""
        lives = self.main == "child" or (self.orphaned and self.lives_on)
        return lives or self.holds or bool(self.nested)


@dataclass
class Page:
    """What the model remembers of a device."""

    device: Device
    state: DeviceState = DeviceState.OK
    foreign: int = 0
    baseline: int = 0
    usage_known: bool = True
    used: int | None = None


class Facts(RuleBasedStateMachine):
    """One machine and what is known of it; `_step` checks each effect."""

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
        self.pages = {device.uuid: Page(device) for device in self.devices}
        self.line: dict[int, Request] = {}
        self.inside: dict[int, Request] = {}
        """Requests that wait inside a lease."""
        self.held: dict[str, Held] = {}
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

    def _on(self, uuid: str) -> list[Held]:
        return [held for held in self.held.values() if uuid in held.uuids]

    def _free(self, uuid: str) -> int:
        page = self.pages[uuid]
        return max(0, page.device.capacity_mib - page.foreign - self._taken(uuid))

    def _taken(self, uuid: str) -> int:
        return sum(
            max(held.booked, held.measured.get(uuid, 0), held.most.get(uuid, 0))
            for held in self._on(uuid)
        )

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
                    assert ticket in self.line or ticket in self.inside
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
            self.held[lease] = Held(
                tuple(record["uuids"]),
                int(record["booked_mib"]),
                str(record["state"]),
                bool(record["alone"]),
                record["cpus"] or 0,
                record["ram_mib"] or 0,
            )
        elif record["ev"] == "end":
            assert lease not in self.ended, "a lease ends once"
            gone = self.held.pop(lease)
            self.ended.add(lease)
            for page in (self.pages[uuid] for uuid in gone.vague):
                left = (page.used or 0) - self._taken(page.device.uuid)
                page.foreign = max(page.foreign, left if page.used is not None else 0)
                page.baseline = max(page.baseline, page.foreign if page.used is not None else 0)
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
    def _changed(held: Held, record: dict[str, Any]) -> None:
        if record["state"] == "draining" and held.state != "draining":
            held.cpus = held.ram = 0
            if not held.orphaned:
                held.most.clear()
        if record["state"] == "running" and held.state == "probe":
            assert record["booked_mib"] <= held.booked
            held.booked, held.alone = record["booked_mib"], False
        held.state = record["state"]

    def _granted(self, effect: ev.Granted) -> None:
        lease = effect.lease
        if effect.nested:
            held, request = self.held[lease.id], self.inside.pop(effect.ticket)
            mib = (request.memory_mib or 0) if request.gpus else 0
            assert held.state != "draining"
            assert not mib or sum(held.nested.values()) + mib <= held.booked
            held.nested[effect.ticket] = mib
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

    def _sample(self, readings: list[ev.Reading], living: Iterable[str] = ()) -> None:
        """Look at devices; `living`: the leases of which processes were found."""
        left_over = {lease: (77,) for lease in living if self.held[lease].orphaned}
        for lease, held in self.held.items():
            held.lives_on = lease in left_over
        for reading in readings:
            self._seen(reading)
        ends = {lease for lease, held in self.held.items() if self._has_drained(held)}
        before = set(self.held)
        self._step(ev.Sampled(self.now, tuple(readings), left_over))
        assert before - set(self.held) == ends

    def _has_drained(self, held: Held) -> bool:
        """Whether a look ends the lease: its devices are clean, or no process of it is left."""
        if held.state != "draining":
            return False
        for uuid in held.uuids:
            state = self.pages[uuid].state
            nobody = held.main in {"none", "dead"} and not held.lives_on
            if nobody and (uuid in held.vague or state is DeviceState.LOST):
                held.measured[uuid] = 0
            elif state is not DeviceState.OK:
                return False
        return not held.kept

    def _seen(self, reading: ev.Reading) -> None:
        page = self.pages[reading.uuid]
        page.state = reading.state
        if reading.state is not DeviceState.OK:
            return
        page.usage_known = reading.used_mib is not None
        page.used = reading.used_mib
        on = {lease for lease, held in self.held.items() if reading.uuid in held.uuids}
        if reading.leases is None:
            self._seen_total(reading, page, on)
            return
        if reading.foreign_mib is not None:
            strays = {k: v for k, v in (reading.leases or {}).items() if k not in on}
            page.foreign = page.baseline = reading.foreign_mib + sum(strays.values())
        for lease in on:
            mib = self.held[lease].measured[reading.uuid] = reading.leases.get(lease, 0)
            self.held[lease].may_want_again(reading.uuid, mib)
            self.held[lease].company.discard(reading.uuid)
            self.held[lease].vague.discard(reading.uuid)

    def _seen_total(self, reading: ev.Reading, page: Page, on: set[str]) -> None:
        """Without figures a lease holds the rise of the total, if it was alone all the time."""
        fell = (reading.used_mib or 0) < page.baseline
        for lease in on:
            self.held[lease].vague.add(reading.uuid)
            if len(on) > 1 or fell:
                self.held[lease].company.add(reading.uuid)
        if reading.used_mib is None:
            return
        page.baseline = min(page.baseline, reading.used_mib)
        others = reading.foreign_mib or 0
        if not on:
            page.foreign = page.baseline = reading.used_mib
            return
        held = self.held[next(iter(on))]
        if len(on) == 1 and not held.restored and reading.uuid not in held.company:
            page.foreign = max(page.baseline, others)
            held.measured[reading.uuid] = max(0, reading.used_mib - page.foreign)
        else:
            booked = sum(self.held[lease].booked for lease in on)
            page.foreign = max(0, reading.used_mib - booked, min(others, reading.used_mib))

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

    @staticmethod
    def _same(old: Lease, new: Lease) -> None:
        assert new.uuids == old.uuids
        assert new.booked_mib == old.booked_mib
        assert new.state is old.state
        # A death is no record: the successor looks for itself.
        assert new.main == old.main or old.main is None
        assert new.request.owner == old.request.owner
        assert new.type == old.type
