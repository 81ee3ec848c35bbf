"""A lease ends by release or by proof of death, once, and outlives its broker."""

from __future__ import annotations

import pytest

from grn.rules import events as ev
from grn.rules.model import End, LeaseState, Owner
from tests.rules.acting import EXACT, Job, Stage

# -- a lease's life -------------------------------------------------------------------------------


def test_a_lease_stays_while_its_memory_is_held() -> None:
    """A job that ended but left memory behind keeps its room until that is gone."""
    stage = Stage(10000)
    first = stage.ask(memory_mib=4000)
    stage.hold(first, 204)
    waiter = stage.ask(whole=True)
    stage.finish(first, holds_on=True)
    assert first.lease is not None
    assert first.lease.state is LeaseState.DRAINING
    assert waiter.waits
    first.held.clear()
    stage.look()
    assert waiter.runs


def test_a_left_over_without_memory_keeps_nothing() -> None:
    """A process that stays but holds no device memory does not keep the lease."""
    stage = Stage(8000)
    first = stage.ask("job", memory_mib=3000)
    waiter = stage.ask(whole=True)
    stage.finish(first)
    assert waiter.runs


def _gone_owner(stage: Stage, job: Job, *, main_alive: bool) -> None:
    assert job.lease is not None
    stage.step(ev.OwnerGone(stage.now, job.lease.id, main_alive=main_alive))
    stage.settle()


def test_a_dead_client_whose_job_lives_keeps_the_lease() -> None:
    """The submitter's death frees nothing while the job's process lives, even without memory."""
    stage = Stage(10000)
    stage.know("job", 4000)
    job = stage.ask(runs_s=None)
    stage.run_until(0)
    late = stage.ask(memory_mib=8000)
    _gone_owner(stage, job, main_alive=True)
    stage.look()
    assert late.waits
    assert job.lease is not None
    stage.step(ev.MainGone(stage.now, job.lease.id))
    stage.settle()
    assert late.runs


def test_a_dead_client_whose_job_died_too_frees_the_lease() -> None:
    """Nobody left and nothing held: the lease ends at once, a probe's too."""
    stage = Stage(10000)
    job = stage.ask("unknown")
    stage.run_until(0)
    _gone_owner(stage, job, main_alive=False)
    assert not stage.machine.leases
    assert stage.ask("unknown").runs


def test_a_dead_job_that_left_memory_drains_until_it_is_gone() -> None:
    """Owner and main process are dead, a worker holds memory: the lease ends with that memory."""
    stage = Stage(10000)
    job = stage.ask(memory_mib=4000)
    stage.run_until(0)
    stage.hold(job, 102)
    _gone_owner(stage, job, main_alive=False)
    assert stage.machine.leases
    job.held.clear()
    stage.look()
    assert not stage.machine.leases


def test_a_release_after_the_main_process_died_ends_with_the_memory() -> None:
    """The same for a client that lives and says so itself."""
    stage = Stage(10000)
    job = stage.ask(memory_mib=4000)
    stage.run_until(0)
    stage.hold(job, 102)
    stage.finish(job, holds_on=True)
    assert stage.machine.leases
    job.held.clear()
    stage.look()
    assert not stage.machine.leases


def test_a_client_that_computes_itself_need_not_die() -> None:
    """A function that returned in a living process frees its lease once it holds no memory."""
    stage = Stage(10000)
    job = stage.ask(memory_mib=4000)
    assert job.lease is not None
    stage.step(ev.Started(0.0, job.lease.id, job.request.owner))
    stage.hold(job, 300)
    ticket = 10_000
    stage.jobs[ticket] = job
    stage.step(ev.Released(0.0, job.lease.id, End(exit_code=0), ticket, main_alive=True))
    assert stage.free() == 6000
    job.held.clear()
    stage.look()
    assert stage.free() == 10000


def test_a_lease_ends_once() -> None:
    """A second release is answered with an error and changes nothing."""
    stage = Stage(10000)
    job = stage.ask(memory_mib=4000)
    stage.finish(job)
    stage.finish(job)
    assert job.refused is not None
    assert job.refused.code == "lease"
    ends = [record for record in stage.journal if record["ev"] == "end"]
    assert len(ends) == 1


def test_no_time_ends_a_lease() -> None:
    """A lease that says nothing for a year is a lease."""
    stage = Stage(10000)
    job = stage.ask(memory_mib=4000)
    stage.run_until(365 * 86400.0)
    stage.look()
    assert job.runs
    assert stage.free() == 6000


def test_what_drains_gives_cpus_back() -> None:
    """Only device memory is kept for a job that has ended."""
    stage = Stage(10000, cpus=4)
    job = stage.ask(memory_mib=4000, cpus=4)
    stage.hold(job, 10)
    stage.finish(job, holds_on=True)
    assert stage.ask(memory_mib=10, cpus=4).runs


def test_events_about_unknown_leases_are_harmless() -> None:
    """News of a lease that has ended changes nothing."""
    stage = Stage(10000)
    stage.step(ev.OwnerGone(0.0, "t-9", main_alive=False))
    stage.step(ev.MainGone(0.0, "t-9"))
    stage.step(ev.Started(0.0, "t-9", Owner(1, 1)))
    stage.step(ev.Cancelled(0.0, 9))
    assert not stage.machine.leases


# -- a new broker ---------------------------------------------------------------------------------


def _successor(stage: Stage, *, replay: bool) -> Stage:
    other = Stage(*[device.total_mib for device in stage.devices], margin=EXACT)
    other.machine.restore(stage.journal if replay else stage.machine.snapshot(), stage.now)
    other.machine.check_invariants()
    return other


@pytest.mark.parametrize("replay", [True, False], ids=["journal", "snapshot"])
def test_a_new_broker_knows_every_lease(*, replay: bool) -> None:
    """Devices, bookings, owners, states and CPUs are those of the broker before."""
    stage = Stage(10000, 10000, 10000)
    stage.ask(memory_mib=6000, cpus=2)
    stage.ask("probe")
    drains = stage.ask(memory_mib=100, cpus=3)
    stage.ask(gpus=0)
    stage.run_until(0)
    stage.hold(drains, 50)
    stage.finish(drains, holds_on=True)
    gone = stage.ask(memory_mib=500)
    stage.finish(gone)
    other = _successor(stage, replay=replay)
    before, after = stage.machine, other.machine
    assert list(after.leases) == list(before.leases)
    for lease_id, lease in before.leases.items():
        again = after.leases[lease_id]
        assert again.uuids == lease.uuids
        assert again.booked_mib == lease.booked_mib
        assert again.state is lease.state
        assert again.request.owner == lease.request.owner
        assert again.main == lease.main
    assert after.ledger.cpus.booked == before.ledger.cpus.booked == 2
    for old, new in zip(before.ledger.books, after.ledger.books, strict=True):
        assert new.booked_mib == old.booked_mib
        assert new.alone == old.alone


def test_a_new_broker_gives_no_lease_an_old_name() -> None:
    """Ids go on where the broker before stopped, also after leases that have ended."""
    stage = Stage(10000)
    for _ in range(3):
        stage.finish(stage.ask(memory_mib=10))
    other = _successor(stage, replay=False)
    job = other.ask(memory_mib=10)
    assert job.lease is not None
    assert job.lease.id == "t-4"


def _returns(stage: Stage, job: Job, *, claimed: set[str], alive: set[str], last: int = 99) -> None:
    event = ev.Returned(
        stage.now, job.request.owner, "s", frozenset(claimed), frozenset(alive), last
    )  # fmt: skip
    stage.step(event)
    stage.settle()


def test_what_a_client_does_not_claim_ends() -> None:
    """A client that comes back without a lease has ended it, or never heard of it."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=1000, session="s")
    stage.run_until(0)
    _returns(stage, job, claimed={"t-1"}, alive={"t-1"})
    assert stage.machine.leases
    _returns(stage, job, claimed=set(), alive=set())
    assert not stage.machine.leases


def test_what_a_client_was_granted_since_it_came_back_is_not_unclaimed() -> None:
    """A claim says nothing about a lease that is newer than the claim."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=1000, session="s")
    _returns(stage, job, claimed=set(), alive=set(), last=0)
    assert stage.machine.leases


@pytest.mark.parametrize("alive", [True, False], ids=["job lives", "job died"])
def test_an_unclaimed_lease_with_memory_drains_until_that_is_gone(*, alive: bool) -> None:
    """What is not claimed stays while its process lives or its memory is held, not longer."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=1000, session="s")
    stage.run_until(0)
    stage.hold(job, 500)
    _returns(stage, job, claimed=set(), alive={"t-1"} if alive else set())
    assert stage.free() == 7000
    job.held.clear()
    stage.look()
    assert bool(stage.machine.leases) == alive
    stage.step(ev.MainGone(stage.now, "t-1"))
    assert not stage.machine.leases


def test_a_restored_lease_keeps_others_out() -> None:
    """After a restart a third job waits until one of the two that run has ended."""
    stage = Stage(10000, 10000)
    for _ in range(2):
        stage.ask(memory_mib=6000)
    other = _successor(stage, replay=False)
    other.know("job", 6000)
    third = other.ask()
    assert third.waits
    other.step(ev.OwnerGone(1.0, "t-1", main_alive=False))
    other.settle()
    assert third.at == (0,)
