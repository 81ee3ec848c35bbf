"""What jobs were seen to hold is neither given away while they may want it again, nor forgotten."""

from __future__ import annotations

import pytest

from grn.rules import events as ev
from grn.rules.estimate import Profile
from grn.rules.model import End, LeaseState
from grn.rules.profiles import from_record, to_record
from tests.rules.acting import MODEL, Job, Stage


def _lease_id(job: Job) -> str:
    assert job.lease is not None
    return job.lease.id


def _profile(stage: Stage) -> Profile:
    profile = stage.profiles.find("job", MODEL)
    assert profile is not None
    return profile


def _leave(stage: Stage, job: Job) -> None:
    """Let a job end well at a time of day; processes of it live on."""
    stage.jobs[99] = job
    stage.step(ev.Released(stage.now, _lease_id(job), job.end, 99, main_alive=True, at=50.0))


# -- while it runs ----------------------------------------------------------------------------------


def test_a_dip_of_a_job_that_outgrew_its_booking_is_nobodys() -> None:
    """Its next step wants the memory again: a neighbour in there would be its out-of-memory."""
    stage = Stage(10000)
    stage.know("job", 3000)
    job = stage.ask("job")
    stage.hold(job, 6000)
    stage.hold(job, 1000)
    neighbour = stage.ask("other", memory_mib=7500)
    assert (neighbour.waits, stage.free()) == (True, 4000)
    stage.finish(job, holds_on=True)
    assert neighbour.waits  # something of it is held on; the rest is not wanted any more
    assert stage.free() == 7000
    job.held.clear()
    stage.look()
    assert neighbour.runs


def test_what_a_running_job_reports_is_kept_for_it() -> None:
    """Its word counts in the books at once, not only for later runs of its type."""
    stage = Stage(10000)
    stage.know("job", 3000)
    job = stage.ask("job")
    stage.step(ev.PeakTold(stage.now, _lease_id(job), 8000))
    assert stage.free() == 2000
    stage.finish(job)
    assert stage.free() == 10000


def test_a_declared_size_below_what_a_sibling_holds_right_now_is_not_believed() -> None:
    """A peak that was seen counts, also while the run that reached it goes on."""
    stage = Stage(16000)
    stage.know("job", 3000)
    first = stage.ask("job")
    stage.hold(first, 5000)
    assert stage.ask("job", memory_mib=3000).booked_mib == 5000
    stage = Stage(16000, provisional_after_s=10)
    probe = stage.ask("job")
    stage.hold(probe, 3000)
    stage.run_until(20)
    stage.look()
    assert _profile(stage).state == "provisional"
    assert stage.ask("job", memory_mib=1000).booked_mib == 3000


# -- after its end ----------------------------------------------------------------------------------


def test_what_a_job_left_behind_makes_its_peak() -> None:
    """A script that puts its work into the background ends early; its work is the peak."""
    stage = Stage(16000)
    job = stage.ask("job")
    stage.hold(job, 300)
    _leave(stage, job)
    assert stage.estimate("job") == 300
    stage.hold(job, 6000)
    stage.hold(job, 4000)
    assert (stage.estimate("job"), _profile(stage).peaks) == (6000, [6000])
    job.held.clear()
    stage.look()
    assert not stage.machine.leases
    assert _profile(stage).runs == 1


def test_what_was_only_seen_after_the_end_is_measured_all_the_same() -> None:
    """Nothing was held before the main process ended: the run counts as one that was measured."""
    stage = Stage(16000)
    job = stage.ask("job")
    _leave(stage, job)
    assert stage.estimate("job") is None
    stage.hold(job, 2000)
    profile = _profile(stage)
    assert (profile.peaks, profile.runs, profile.unmeasured) == ([2000], 1, 0)
    assert profile.last_at == 50.0


def test_of_a_failed_job_what_is_left_behind_makes_no_profile() -> None:
    """Only successful jobs do; a known type is raised by what it holds beyond its booking."""
    stage = Stage(16000)
    job = stage.ask("job")
    stage.hold(job, 300)
    stage.finish(job, End(exit_code=1), holds_on=True)
    stage.hold(job, 6000)
    assert stage.estimate("job") is None
    stage = Stage(16000)
    stage.know("job", 3000)
    job = stage.ask("job")
    stage.hold(job, 300)
    stage.finish(job, End(exit_code=1), holds_on=True)
    stage.hold(job, 6000)
    assert stage.estimate("job") == 6000


def test_a_run_that_ended_meanwhile_keeps_its_own_peak() -> None:
    """Two leases of a type, the older one grows in the background: the type's estimate does, too."""
    profile = Profile("job", MODEL)
    profile.succeeded(300, 1.0, "sampled", at=10.0)
    profile.succeeded(400, 1.0, "sampled", at=20.0)
    assert profile.held_on(6000, "sampled", 10.0)
    assert (profile.peaks, profile.raised_mib) == ([300, 400], 6000)
    assert not profile.held_on(350, "sampled", 20.0)
    assert profile.held_on(500, "sampled", 20.0)
    assert profile.peaks == [300, 500]


# -- what was not seen ------------------------------------------------------------------------------


@pytest.mark.parametrize("censored", [False, True])
def test_a_success_that_nobody_measured_ends_no_raise(*, censored: bool) -> None:
    """It went well with the larger share; with the old one every second run would fail."""
    profile = Profile("job", MODEL)
    profile.succeeded(1000, 1.0, "sampled")
    profile.failed("oom", 1.0, oom_at_mib=1000)
    profile.succeeded(None, 0.1, "", censored=censored)
    assert (profile.bump_mib, profile.ooms, profile.failures) == (1512, 0, 0)
    profile.succeeded(1200, 1.0, "sampled")
    assert profile.bump_mib is None


def test_a_broker_that_stood_still_has_measured_nothing() -> None:
    """What a job held while nobody looked may have been much more than before and after."""
    for late, known in ((False, 1000), (True, None)):
        stage = Stage(8000)
        job = stage.ask("job")
        stage.hold(job, 1000)
        stage.run_until(10)
        stage.step(ev.Sampled(stage.now, (stage._reading(stage.devices[0]),), {}, late=late))
        stage.finish(job)
        assert stage.estimate("job") == known


def test_a_lease_that_came_after_the_standstill_is_measured() -> None:
    """It was granted when the broker ran again."""
    stage = Stage(8000)
    stage.run_until(10)
    job = stage.ask("job")
    stage.step(ev.Sampled(stage.now, (), {}, late=True))
    stage.hold(job, 1000)
    stage.finish(job)
    assert stage.estimate("job") == 1000


# -- a successor ------------------------------------------------------------------------------------


def _foretelling() -> tuple[Stage, Job]:
    stage = Stage(16000, provisional_after_s=10)
    probe = stage.ask("job")
    stage.hold(probe, 2000)
    stage.run_until(20)
    stage.look()
    return stage, probe


@pytest.mark.parametrize("compacted", [False, True])
def test_a_provisional_profile_stands_as_long_as_its_lease(*, compacted: bool) -> None:
    """A successor has it again with the lease, and takes it back when the job fails."""
    first, probe = _foretelling()
    kept = to_record(_profile(first))
    assert "provisional_mib" not in kept
    stage = Stage(16000)
    records = first.machine.snapshot() if compacted else first.journal
    stage.profiles.load([from_record("job", MODEL, kept)])
    assert stage.machine.restore(records, 30.0) == []
    assert stage.estimate("job") == first.estimate("job") == 3000
    lease = stage.machine.leases[_lease_id(probe)]
    assert lease.state is LeaseState.RUNNING
    stage.jobs[99] = probe
    stage.step(ev.Released(31.0, lease.id, End(exit_code=1), 99))
    assert stage.estimate("job") is None


def test_without_its_lease_it_is_gone() -> None:
    """The machine went down with the job: nothing of it was ever seen to the end."""
    first, _ = _foretelling()
    assert not from_record("job", MODEL, {**to_record(_profile(first)), "provisional_mib": 9}).known
