"""Random events on the machine, against a small model of what it promises.

Whatever the machine does is checked against plain facts, and once all is calm everybody who waits
must get a turn.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from grn.rules import events as ev
from grn.rules.model import DeviceState, End, Owner, Policy, Request
from tests.rules.facts import Facts

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


class MachineAgainstPromises(Facts):
    """The events: requests, lives of leases, readings, a failing disk, a new broker, calm."""

    # -- requests -------------------------------------------------------------------------------

    @rule(
        job_type=TYPES,
        gpus=st.sampled_from([None, 0, 1, 1, 1, 1, 2, 3]),
        memory=st.one_of(st.none(), st.sampled_from([0, 1000, 3000, 4000, 8000]), MIB),
        whole=st.sampled_from([False, False, False, True]),
        cpus=st.sampled_from([None, None, None, 0, 1, 4, 6, 7]),
        ram=st.sampled_from([None, None, 400, 1000, 1001]),
        compute=st.sampled_from([None, None, None, 1, 40, 60, 100]),
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
        compute: int | None,
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
            compute=compute,
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
        before, held = set(self.held), self.held[outer]
        possible = gpus <= len(held.uuids) and (not gpus or memory <= held.booked)
        if possible and not self.machine.disk_problem:
            self.inside[self.ticket] = request
        effects = self._step(ev.Asked(self.now, request))
        assert len(effects) == 1
        assert set(self.held) == before
        refused = self.ticket not in self.inside and self.ticket not in held.nested
        assert bool(self._refusals(effects)) == refused

    @precondition(lambda self: any(held.nested for held in self.held.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A nested job ends: the outer lease does, too, if only that kept it."""
        lease = data.draw(st.sampled_from(sorted(k for k, h in self.held.items() if h.nested)))
        held = self.held[lease]
        ticket = data.draw(st.sampled_from(sorted(held.nested)))
        del held.nested[ticket]
        ends = held.state == "draining" and not held.kept
        self._step(ev.Left(self.now, ticket))
        assert (lease in self.held) != ends

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
        self._move_in_line()
        effects = self._step(ev.Settle(self.now))
        if not self.machine.disk_problem:
            reasons = [self.machine.reason(ticket) for ticket in self.line]
            assert "about to be decided" not in reasons
        return effects

    def _move_in_line(self) -> None:
        """What waited inside a lease that is over waits as all do."""
        for ticket, request in list(self.inside.items()):
            outer = self.held.get(request.outer or "")
            if outer is None or outer.state == "draining":
                del self.inside[ticket]
                if self._possible(request):
                    self.line[ticket] = request

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
    @rule(data=st.data(), lives=st.booleans(), others=st.booleans())
    def owner_gone(self, data: st.DataObject, *, lives: bool, others: bool) -> None:
        """A client died: what runs on of a job that nobody saw end keeps its lease, too."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        if held.owner_gone:
            return
        held.owner_gone = True
        if held.main == "own" or (held.main == "child" and not lives):
            held.main = "dead"
        held.orphaned |= held.state != "draining"
        held.lives_on = others and held.orphaned
        kept = held.kept
        left_over = (77,) if held.lives_on else ()
        main_alive = held.main == "child"
        self._step(ev.OwnerGone(self.now, lease, main_alive=main_alive, left_over=left_over))
        assert (lease in self.held) == kept

    @precondition(lambda self: self.held)
    @rule(data=st.data(), others=st.booleans())
    def main_gone(self, data: st.DataObject, *, others: bool) -> None:
        """A job's main process died."""
        lease = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[lease]
        held.main = "dead"
        held.lives_on = others and held.orphaned
        ends = held.state == "draining" and not held.kept
        self._step(ev.MainGone(self.now, lease, (77,) if held.lives_on else ()))
        assert (lease in self.held) != ends

    # -- devices --------------------------------------------------------------------------------

    @rule(data=st.data(), settle=st.booleans())
    def look(self, data: st.DataObject, *, settle: bool) -> None:
        """Readings may say anything, or nothing."""
        readings = [self._any_reading(data, uuid) for uuid in self.pages]
        self._sample(readings, [lease for lease in self.held if data.draw(st.booleans())])
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

    # -- disk and restart -----------------------------------------------------------------------

    @precondition(lambda self: self.line and not self.machine.disk_problem)
    @rule()
    def disk_fails_while_granting(self) -> None:
        """What was just granted is taken back when no journal keeps it."""
        kept = len(self.journal)
        effects = self._settle()
        granted = {e.lease.id: e for e in effects if isinstance(e, ev.Granted) and not e.nested}
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
        self.inside.clear()
        for lease_id, held in self.held.items():
            held.measured.clear()
            held.most.clear()
            held.nested.clear()
            held.restored = True
            held.vague.clear()
            held.company.clear()
            held.owner_gone = held.lives_on = False
            known = self.machine.leases[lease_id]
            if held.main == "dead" and known.main is not None:
                # No record tells of a death: the watcher will, once more.
                held.main = "own" if known.main == known.request.owner else "child"
        for page in self.pages.values():
            page.state, page.foreign, page.usage_known = DeviceState.OK, 0, True
            page.baseline, page.used = 0, None
        self._books_agree()
        self.machine.check_invariants()

    # -- calm -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.line) > 1)
    @rule(end=ENDS)
    def calm(self, end: End) -> None:
        """With nobody else on the devices, everybody who waits gets a turn in bounded time."""
        if self.machine.disk_problem:
            self.disk_heals()
        for _ in range(len(self.line) + len(self.inside) + 1):
            self._see(None, 0, calm=True)
            for lease in list(self.held):
                self._empty(lease, end)
            assert not self.held
            self._settle()
        assert not self.line
        assert not self.inside

    def _empty(self, lease: str, end: End) -> None:
        held = self.held[lease]
        while held.nested:
            self._step(ev.Left(self.now, held.nested.popitem()[0]))
        if held.state != "draining":
            self._release(lease, end, main_alive=False, quits=False)
        if lease in self.held:
            held.main = "dead"
            self._step(ev.MainGone(self.now, lease))


TestMachineAgainstPromises = MachineAgainstPromises.TestCase
TestMachineAgainstPromises.settings = settings(
    parent=settings.default, max_examples=150, stateful_step_count=50
)
