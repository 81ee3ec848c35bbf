"""What readings leave open is never taken for room: memory that is seen counts, whoever holds it."""

from __future__ import annotations

from grn.rules import events as ev
from grn.rules.attribution import Use, figures
from grn.rules.model import DeviceState, LeaseState
from tests.rules.acting import Job, Stage
from tests.rules.test_in_process import give_back


def _vague(stage: Stage, used_mib: int | None, foreign_mib: int | None) -> None:
    """Look at a device of which nobody can say what leases hold there."""
    reading = ev.Reading("GPU-0000", DeviceState.OK, "", used_mib, foreign_mib, None, {})
    stage.step(ev.Sampled(stage.now, (reading,), {}))
    stage.settle()


def _measured(stage: Stage, job: Job) -> int:
    assert job.lease is not None
    return stage.machine.ledger.books[0].bookings[job.lease.id].measured_mib


def test_others_who_are_seen_count_where_figures_are_vague() -> None:
    """What a visible stranger holds is neither the lease's rise nor free."""
    stage = Stage(10000)
    job = stage.ask(memory_mib=7000)
    _vague(stage, 3600, 2500)
    assert (_measured(stage, job), stage.free()) == (1100, 500)
    assert stage.ask(memory_mib=2900).waits


def test_without_a_total_those_who_are_listed_count() -> None:
    """A device whose total is unknown is not empty while somebody is listed there with 9000 MiB."""
    alone = figures([Use(5, 9000)], None, {}, None)
    assert (alone.foreign_mib, alone.leases) == (9000, {})
    beside = figures([Use(5, 9000), Use(6, 300, "L1")], None, {"L1": 500}, None)
    assert (beside.foreign_mib, beside.leases) == (9000, {"L1": 300})
    assert figures([], None, {}, None).foreign_mib is None


def test_memory_that_goes_away_makes_no_small_peak() -> None:
    """Where others gave memory back meanwhile, the rise of the total is not the job's size."""
    stage = Stage(10000)
    _vague(stage, 3000, 3000)
    job = stage.ask("job", memory_mib=4000)
    _vague(stage, 1000, None)
    stage.finish(job)
    assert stage.estimate("job") is None


def test_a_lease_of_vague_figures_ends_with_its_last_process() -> None:
    """What is held there afterwards is somebody else's; while a process of it lives it stays."""
    stage = Stage(10000)
    job = stage.ask("job", memory_mib=4000)
    _vague(stage, 1000, None)
    assert job.lease is not None
    end = ev.Released(stage.now, job.lease.id, job.end, next(stage._numbers))
    stage.jobs[end.ticket] = job
    stage.step(end)
    job.ended_s = stage.now
    assert job.lease.state is LeaseState.DRAINING
    left = ev.Reading("GPU-0000", DeviceState.OK, "", 1000, None, None, {})
    stage.step(ev.Sampled(stage.now, (left,), {job.lease.id: (77,)}))
    assert job.lease.id in stage.machine.leases
    _vague(stage, 200, None)
    assert not stage.machine.leases


def test_a_release_while_nobody_can_look_keeps_what_lives() -> None:
    """A process of the lease that lives keeps it where its device cannot be read."""
    stage = Stage(10000)
    job = stage.ask("job", memory_mib=4000)
    assert job.lease is not None
    stage.states["GPU-0000"] = DeviceState.STALE
    stage.look()
    end = ev.Released(
        stage.now, job.lease.id, job.end, next(stage._numbers), left_over=(77,)
    )  # fmt: skip
    stage.jobs[end.ticket] = job
    stage.step(end)
    job.ended_s = stage.now
    assert job.lease.state is LeaseState.DRAINING
    stage.states.clear()
    stage.look()
    assert not stage.machine.leases


def test_what_is_left_where_figures_are_vague_is_given_to_nobody() -> None:
    """A process that nobody can name holds 7000 MiB on: others have what is beside it."""
    stage = Stage(16000)
    _vague(stage, 0, 0)
    job = stage.ask("job", memory_mib=8000)
    _vague(stage, 7000, None)
    large = stage.ask(memory_mib=15000)
    assert job.lease is not None
    end = ev.Released(stage.now, job.lease.id, job.end, next(stage._numbers))
    stage.jobs[end.ticket] = job
    stage.step(end)
    job.ended_s = stage.now
    _vague(stage, 7000, None)
    assert job.lease.id not in stage.machine.leases
    assert (large.waits, stage.free()) == (True, 9000)
    stage.cancel(large)
    small = stage.ask("small", memory_mib=9000)
    assert small.runs
    _vague(stage, 7500, None)
    assert (_measured(stage, small), stage.machine.ledger.books[0].foreign_mib) == (500, 7000)


def test_what_a_process_keeps_of_a_lease_is_given_to_nobody() -> None:
    """Of two that nobody tells apart one gives its lease back, and keeps its memory as frameworks do."""
    stage = Stage(16000)
    _vague(stage, 0, 0)
    first = stage.ask(memory_mib=6000, in_process=True)
    stage.ask(memory_mib=6000, in_process=True)
    third = stage.ask(memory_mib=8000)
    _vague(stage, 12000, 0)
    give_back(stage, first)
    assert (third.waits, stage.free()) == (True, 4000)
    _vague(stage, 6000, 0)
    assert third.runs
