"""Random bookings, measurements and ends against a model that keeps plain lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from grn.rules.ledger import InvariantError, Ledger
from grn.rules.model import Device

MIB = st.integers(0, 4000)


@dataclass
class _Held:
    uuids: tuple[str, ...]
    booked: int
    alone: bool
    cpus: int
    ram: int
    measured: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    ended: bool = False

    def counts(self, uuid: str) -> int:
        return max(self.booked, self.measured.get(uuid, 0), self.most.get(uuid, 0))

    def held_beyond(self, uuid: str, mib: int) -> None:
        if not self.ended and mib > self.booked:
            self.most[uuid] = max(mib, self.most.get(uuid, 0))


class LedgerAgainstLists(RuleBasedStateMachine):
    """The model knows nothing of caches: it adds up what is held each time it is asked."""

    @initialize(sizes=st.lists(st.integers(500, 8000), min_size=1, max_size=4), data=st.data())
    def begin(self, sizes: list[int], data: st.DataObject) -> None:
        """Open the books of a random machine."""
        devices = [
            Device(f"d{i}", i, "m", mib, headroom_mib=data.draw(st.integers(0, 300)))
            for i, mib in enumerate(sizes)
        ]
        self.ledger = Ledger(devices, cpus=8, ram_mib=1000)
        self.capacity = {device.uuid: device.capacity_mib for device in devices}
        self.foreign = dict.fromkeys(self.capacity, 0)
        self.held: dict[str, _Held] = {}
        self.number = 0

    def _on(self, uuid: str) -> list[_Held]:
        return [held for held in self.held.values() if uuid in held.uuids]

    def _free(self, uuid: str) -> int:
        taken = sum(held.counts(uuid) for held in self._on(uuid))
        return max(0, self.capacity[uuid] - self.foreign[uuid] - taken)

    def _may(self, wish: _Held) -> bool:
        if len(set(wish.uuids)) != len(wish.uuids):
            return False
        for uuid in wish.uuids:
            there = self._on(uuid)
            if any(held.alone for held in there) or (wish.alone and there):
                return False
            if wish.booked > self._free(uuid):
                return False
        return True

    @rule(data=st.data(), mib=MIB, alone=st.booleans())
    def place(self, data: st.DataObject, mib: int, *, alone: bool) -> None:
        """A placement succeeds exactly if the model finds room for it."""
        uuids = tuple(data.draw(st.lists(st.sampled_from(sorted(self.capacity)), max_size=3)))
        cpus = data.draw(st.integers(0, 8 - sum(held.cpus for held in self.held.values())))
        ram = data.draw(st.integers(0, 1000 - sum(held.ram for held in self.held.values())))
        wish = _Held(uuids, mib, alone, cpus, ram)
        self.number += 1
        lease = f"l{self.number}"
        try:
            self.ledger.place(lease, uuids, mib, alone=alone, cpus=cpus, ram_mib=ram)
        except InvariantError:
            assert not self._may(wish)
            return
        assert self._may(wish)
        self.held[lease] = wish

    @precondition(lambda self: self.held)
    @rule(data=st.data(), mib=MIB)
    def measure(self, data: st.DataObject, mib: int) -> None:
        """A reading may say anything."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        if held.uuids:
            uuid = data.draw(st.sampled_from(held.uuids))
            self.ledger.measure(lease, uuid, mib)
            held.measured[uuid] = mib
            held.held_beyond(uuid, mib)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """A lease ends."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger.remove(lease, self.held.pop(lease).uuids)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), mib=MIB)
    def rebook(self, data: st.DataObject, mib: int) -> None:
        """A probe turns into a lease of known size."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        self.ledger.rebook(lease, held.uuids, mib)
        if held.uuids:
            held.booked, held.alone = min(held.booked, mib), False

    @precondition(lambda self: self.held)
    @rule(data=st.data(), mib=MIB)
    def told(self, data: st.DataObject, mib: int) -> None:
        """A job says what it held at most."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        if not held.ended:  # the machine takes no word of a job that is over
            self.ledger.told(lease, held.uuids, mib)
            for uuid in held.uuids:
                held.held_beyond(uuid, mib)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), runs_on=st.booleans())
    def drain(self, data: st.DataObject, *, runs_on: bool) -> None:
        """A lease that drains gives CPUs and RAM back, and its memory later."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        self.ledger.drain(lease, held.uuids, runs_on=runs_on)
        held.cpus = held.ram = 0
        if not runs_on:
            held.ended = True
            held.most.clear()

    @rule(data=st.data(), mib=MIB)
    def others(self, data: st.DataObject, mib: int) -> None:
        """Others come and go."""
        uuid = data.draw(st.sampled_from(sorted(self.capacity)))
        self.foreign[uuid] = self.ledger.by_uuid[uuid].foreign_mib = mib

    @invariant()
    def sums_agree(self) -> None:
        """Every figure of the books is the sum of what is held."""
        if not hasattr(self, "ledger"):
            return
        self.ledger.check_invariants()
        for uuid in self.capacity:
            book = self.ledger.by_uuid[uuid]
            assert book.free_mib == self._free(uuid)
            assert book.booked_mib == sum(held.booked for held in self._on(uuid))
            assert book.booked_mib <= self.capacity[uuid]
            assert bool(book.alone) == any(held.alone for held in self._on(uuid))
        assert self.ledger.cpus.booked == sum(held.cpus for held in self.held.values())
        assert self.ledger.ram.booked == sum(held.ram for held in self.held.values())


TestLedgerAgainstLists = LedgerAgainstLists.TestCase
TestLedgerAgainstLists.settings = settings(
    parent=settings.default, max_examples=60, stateful_step_count=40
)
