"""Jobs inside a job share its lease: what they declare is added up, and nobody waits for himself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules import events as ev
from grn.rules.model import LeaseState, Owner
from tests.rules.acting import Job, Stage

if TYPE_CHECKING:
    from grn.rules.model import Lease


def _outer(stage: Stage, mib: int = 4000, **wish: Any) -> Lease:
    job = stage.ask("outer", memory_mib=mib, **wish)
    assert job.lease is not None
    return job.lease


def _inner(stage: Stage, outer: Lease, mib: int | None = None, **wish: Any) -> Job:
    return stage.ask("inner", memory_mib=mib, outer=outer.id, **wish)


def _leave(stage: Stage, job: Job) -> None:
    stage.step(ev.Left(stage.now, job.request.ticket))
    job.ended_s = stage.now
    stage.settle()


def test_declared_sizes_are_added_up() -> None:
    """Of three jobs of 2000 MiB in a lease of 4000, two run; the third follows the first's end."""
    stage = Stage(10000)
    outer = _outer(stage)
    first, second, third = (_inner(stage, outer, 2000) for _ in range(3))
    assert (first.runs, second.runs, third.waits) == (True, True, True)
    assert third.told == stage.reason(third)
    assert "2000 MiB wanted" in third.told
    assert "0 of 4000 MiB free" in third.told
    _leave(stage, second)
    assert third.lease is outer


def test_what_declares_nothing_shares_the_lease() -> None:
    """Jobs without a size, and those without a device, start whatever is taken."""
    stage = Stage(10000)
    outer = _outer(stage)
    assert _inner(stage, outer, 4000).runs
    assert _inner(stage, outer).runs
    assert _inner(stage, outer, 3000, gpus=0).runs


def test_a_whole_device_inside_is_all_of_the_lease() -> None:
    """A nested job that wants its device whole has the lease for itself."""
    stage = Stage(10000)
    outer = _outer(stage)
    whole = _inner(stage, outer, whole=True)
    assert whole.runs
    other = _inner(stage, outer, 1)
    assert other.waits
    _leave(stage, whole)
    assert other.runs


def test_a_job_inside_a_nested_job_is_booked_inside_that_one() -> None:
    """It does not wait for the job above it, which waits for its end."""
    stage = Stage(10000)
    outer = _outer(stage)
    middle = _inner(stage, outer, 4000)
    above = middle.request.owner.pid
    ancestors = (999, above, outer.request.owner.pid)
    assert _inner(stage, outer, 3000, ancestors=ancestors).runs
    beside = _inner(stage, outer, 1500, ancestors=ancestors)
    assert "1000 of 4000 MiB free" in beside.told
    large = _inner(stage, outer, 4001, ancestors=ancestors)
    assert large.refused is not None
    assert "4000 MiB each" in large.refused.message


def test_a_job_above_that_declared_nothing_is_no_limit() -> None:
    """What runs in a nested job without a size is booked in the outer lease."""
    stage = Stage(10000)
    outer = _outer(stage)
    middle = _inner(stage, outer)
    ancestors = (middle.request.owner.pid,)
    assert _inner(stage, outer, 3000, ancestors=ancestors).runs
    assert _inner(stage, outer, 3000, ancestors=ancestors).waits


def test_a_call_within_a_nested_call_is_booked_inside_that_one() -> None:
    """One process calls a job in a job: the inner one never waits for the one that waits for it."""
    stage = Stage(10000)
    outer = _outer(stage)
    middle = _inner(stage, outer, 3000)
    within = middle.request.ticket
    deep = _inner(stage, outer, 2000, within=within)
    assert deep.runs
    assert "1000 of 3000 MiB free" in _inner(stage, outer, 1500, within=within).told
    large = _inner(stage, outer, 3001, within=within)
    assert large.refused is not None
    assert "3000 MiB each" in large.refused.message
    assert _inner(stage, outer, 1000).runs  # beside the one in the middle, not beside what is in it


def test_a_call_within_one_that_declared_nothing_is_booked_above_it() -> None:
    """What has no size is no limit, at whichever depth."""
    stage = Stage(10000)
    outer = _outer(stage)
    sized = _inner(stage, outer, 3000)
    free = _inner(stage, outer, within=sized.request.ticket)
    assert _inner(stage, outer, 3000, within=free.request.ticket).runs
    assert _inner(stage, outer, 3000, within=free.request.ticket).waits


def test_the_process_of_a_call_within_a_call_counts_once() -> None:
    """A program that is started from deep inside may take what the outermost of these calls has."""
    stage = Stage(10000)
    outer = _outer(stage)
    middle = _inner(stage, outer, 3000)
    deep = _inner(stage, outer, 2000, within=middle.request.ticket, owner=middle.request.owner)
    ancestors = (middle.request.owner.pid,)
    large = _inner(stage, outer, 3001, ancestors=ancestors)
    assert large.refused is not None
    assert "3000 MiB each" in large.refused.message
    _leave(stage, middle)  # out of order: what is left is at the top
    assert deep.runs
    assert "2000 of 4000 MiB free" in _inner(stage, outer, 2500).told


def test_what_outlives_the_job_above_it_still_counts() -> None:
    """A job in the background goes on taking what it declared, after the one that started it."""
    stage = Stage(10000)
    outer = _outer(stage)
    middle = _inner(stage, outer, 3000)
    assert _inner(stage, outer, 2000, ancestors=(middle.request.owner.pid,)).runs
    _leave(stage, middle)
    assert _inner(stage, outer, 2500).waits
    assert _inner(stage, outer, 2000).runs


def test_a_nested_job_keeps_the_outer_lease() -> None:
    """The lease of a job that left a nested one in the background is free when that has ended."""
    stage = Stage(10000)
    outer = _outer(stage)
    inner = _inner(stage, outer, 1000)
    stage.finish(stage.by_lease[outer.id])
    assert outer.state is LeaseState.DRAINING
    stage.look()
    assert stage.free() == 6000
    _leave(stage, inner)
    assert stage.free() == 10000


def test_what_waits_inside_a_lease_that_ends_waits_as_all_do() -> None:
    """It gets a lease of its own, or is refused if no device could ever do."""
    stage = Stage(10000)
    outer = _outer(stage)
    assert _inner(stage, outer, 4000).runs
    waits = _inner(stage, outer, 3000)
    stage.finish(stage.by_lease[outer.id])
    assert waits.lease is not None
    assert waits.lease is not outer


def test_a_withdrawn_nested_request_is_answered_once() -> None:
    """It is told so, and never granted later."""
    stage = Stage(10000)
    outer = _outer(stage)
    first = _inner(stage, outer, 4000)
    second = _inner(stage, outer, 4000)
    stage.cancel(second)
    assert second.refused is not None
    _leave(stage, first)
    assert second.lease is None


def test_a_nested_job_of_another_brokers_client_is_counted() -> None:
    """What runs on under a successor takes its size there, too, until it leaves."""
    stage = Stage(10000)
    outer = _outer(stage)
    stage.step(ev.Reentered(stage.now, 777, outer.id, Owner(5, 5), 3000))
    stage.step(ev.Reentered(stage.now, 778, "unknown", Owner(5, 5), 3000))
    waits = _inner(stage, outer, 2000)
    assert waits.waits
    stage.step(ev.Left(stage.now, 777))
    stage.settle()
    assert waits.runs


def test_what_was_promised_inside_a_probe_stays_booked() -> None:
    """A first run whose memory seems settled is not booked less while a nested job loads its data."""
    stage = Stage(16000, provisional_after_s=60.0)
    outer = stage.ask("unknown")
    assert outer.lease is not None
    stage.run_until(0.0)
    first, second = _inner(stage, outer.lease, 10000), _inner(stage, outer.lease, 10000)
    assert (first.runs, second.waits) == (True, True)
    stage.hold(outer, 1000)
    for at in range(1, 80):
        stage.now = float(at)
        stage.look()
    assert stage.free() == 0
    _leave(stage, first)
    assert second.runs
    _leave(stage, second)
    for at in range(80, 160):
        stage.now = float(at)
        stage.look()
    assert stage.free() > 0
