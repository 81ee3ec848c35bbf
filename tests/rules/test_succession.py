"""What a lease that outlived its broker still teaches: how long it ran, and no peak that was half seen."""

from __future__ import annotations

import pytest

from grn.rules import events as ev
from grn.rules.happenings import ran_s
from grn.rules.model import LONGEST_GAP_S, DeviceState, LeaseState
from grn.rules.succession import restore
from tests.rules.acting import MODEL, Job, Stage

_BY_JOURNAL = pytest.mark.parametrize("replay", [True, False], ids=["journal", "snapshot"])


def _next_broker(stage: Stage, after_s: float, *, replay: bool) -> None:
    """Let the broker die and another one take over, this much later."""
    records = stage.journal if replay else stage.machine.snapshot()
    later = Stage(*(device.total_mib for device in stage.devices))
    stage.machine, stage.profiles = later.machine, later.profiles
    stage.now += after_s
    assert restore(stage.machine, records, stage.now) == []
    for job in stage.by_lease.values():
        if job.runs:
            assert job.lease is not None
            job.lease = stage.machine.leases[job.lease.id]
    stage.look()


def _running(stage: Stage, mib: int, **wish: object) -> Job:
    """Let a job start at 10 s and hold memory since then."""
    stage.run_until(10.0)
    job = stage.ask(**wish)  # type: ignore[arg-type]
    stage.run_until(10.0)
    stage.hold(job, mib)
    return job


@_BY_JOURNAL
def test_a_run_is_as_long_as_it_was(replay: bool) -> None:  # noqa: FBT001
    """Its start is known to the next broker: a run time learnt too short would mislead backfill."""
    stage = Stage(8000)
    job = _running(stage, 3000)
    stage.run_until(100.0)
    _next_broker(stage, 5.0, replay=replay)
    assert job.lease is not None
    assert (job.lease.granted_s, job.lease.started_s) == (10.0, 10.0)
    stage.run_until(130.0)
    assert ran_s(job.lease, stage.now) == 120.0
    stage.finish(job)
    profile = stage.profiles.find("job", MODEL)
    assert profile is not None
    assert list(profile.durations_s) == [120.0]


def test_a_start_that_is_told_again_is_no_new_one() -> None:
    """A client that comes back says once more which process its job is."""
    stage = Stage(8000)
    job = _running(stage, 3000)
    assert job.lease is not None
    main = job.lease.main
    assert main is not None
    stage.run_until(100.0)
    _next_broker(stage, 5.0, replay=True)
    stage.step(ev.Started(stage.now, job.lease.id, main))
    assert job.lease.started_s == 10.0
    stage.step(ev.Started(stage.now, job.lease.id, main._replace(pid=main.pid + 1)))
    assert job.lease.started_s == stage.now


@_BY_JOURNAL
def test_a_peak_that_was_seen_in_part_is_not_learnt(replay: bool) -> None:  # noqa: FBT001
    """The first broker saw 6000 MiB and died; what the next one sees, 2000, is not the need."""
    stage = Stage(8000)
    job = _running(stage, 6000)
    stage.run_until(60.0)
    stage.hold(job, 2000)
    stage.run_until(100.0)
    _next_broker(stage, LONGEST_GAP_S + 0.1 if replay else 50.0, replay=replay)
    stage.finish(job)
    assert job.report is not None
    assert job.report.outcome == "ok"
    assert job.report.peak_mib is None
    assert "its broker died as it ran: nothing learnt" in " ".join(job.report.notes)
    assert stage.estimate("job") is None
    following = stage.ask()
    assert following.lease is not None
    assert following.lease.state is LeaseState.PROBE


def test_a_quick_restart_loses_no_peak() -> None:
    """A broker that left in order wrote down what it had seen."""
    stage = Stage(8000)
    job = _running(stage, 6000)
    stage.run_until(60.0)
    stage.hold(job, 2000)
    _next_broker(stage, LONGEST_GAP_S, replay=False)
    stage.finish(job)
    assert stage.estimate("job") == 6000


def test_a_lease_stays_unwatched_under_a_third_broker() -> None:
    """What the first one saw is lost, however quick the next restart is."""
    stage = Stage(8000)
    job = _running(stage, 2000)
    stage.run_until(100.0)
    _next_broker(stage, 0.5, replay=True)
    _next_broker(stage, 0.5, replay=False)
    stage.finish(job)
    assert stage.estimate("job") is None


def test_an_unread_device_is_unread_since_before_the_restart() -> None:
    """A device that could not be read when the broker left had its last look earlier."""
    stage = Stage(8000)
    job = _running(stage, 2000)
    uuid = stage.devices[0].uuid
    stage.states[uuid] = DeviceState.STALE
    stage.look()
    stage.run_until(20.0)
    stage.look()
    stage.states.clear()
    _next_broker(stage, 0.5, replay=False)
    stage.finish(job)
    assert stage.estimate("job") is None


@_BY_JOURNAL
def test_what_it_outgrows_is_counted_all_the_same(replay: bool) -> None:  # noqa: FBT001
    """Half seen or not: a run that holds more than was booked needs more than was thought."""
    stage = Stage(8000)
    stage.know("job", 3000)
    job = _running(stage, 3000)
    stage.run_until(100.0)
    _next_broker(stage, 10.0, replay=replay)
    stage.know("job", 3000)
    stage.hold(job, 5000)
    assert stage.estimate("job") == 5000
    assert any("outgrown" in said for said in stage.said)


def test_its_own_report_counts() -> None:
    """A job that tells its peak has watched itself."""
    stage = Stage(8000)
    job = _running(stage, 2000)
    stage.run_until(100.0)
    _next_broker(stage, 10.0, replay=True)
    assert job.lease is not None
    stage.step(ev.PeakTold(stage.now, job.lease.id, 4000))
    stage.finish(job)
    assert stage.estimate("job") == 4000


def test_siblings_are_not_let_in_beside_a_first_run_that_was_seen_in_part() -> None:
    """It settles at 2000 MiB before the eyes of the second broker; before, it held 6000."""
    stage = Stage(8000)
    job = _running(stage, 6000)
    stage.run_until(20.0)
    _next_broker(stage, 10.0, replay=True)
    stage.hold(job, 2000)
    stage.run_until(10_000.0)
    stage.look()
    assert job.lease is not None
    assert job.lease.state is LeaseState.PROBE
    assert stage.ask().waits
