"""What measurements and ends teach, and what is said about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.errors import UsageError
from grn.rules import events as ev
from grn.rules.model import DeviceState, End, LeaseState
from grn.rules.peaks import Peak
from tests.rules.acting import MODEL, Job, Stage

if TYPE_CHECKING:
    from grn.rules.estimate import Profile
    from grn.rules.model import Lease

OOM = End(exit_code=1, said_oom=True)


def _report(job: Job) -> ev.Reported:
    assert job.report is not None
    return job.report


def _run(stage: Stage, mib: int, end: End | None = None, **wish: object) -> Job:
    job = stage.ask("job", **wish)
    stage.run_until(stage.now)
    stage.hold(job, mib)
    stage.finish(job, end)
    return job


def _known(stage: Stage) -> bool:
    profile = stage.profiles.find("job", MODEL)
    return profile is not None and profile.known


def _profile(stage: Stage) -> Profile:
    profile = stage.profiles.find("job", MODEL)
    assert profile is not None
    return profile


def _lease(job: Job) -> Lease:
    assert job.lease is not None
    return job.lease


def test_a_report_tells_peak_and_outcome() -> None:
    """The client hears how its run ended in the books' view, and how much it took."""
    report = _report(_run(Stage(8000), 3000))
    assert (report.outcome, report.peak_mib, report.source) == ("ok", 3000, "sampled")


def test_a_run_over_before_the_first_look_is_unmeasured() -> None:
    """A job that was never seen has no peak, which is not a peak of 0."""
    stage = Stage(8000)
    job = stage.ask("job")
    stage.finish(job)
    assert _report(job).peak_mib is None
    profile = stage.profiles.find("job", MODEL)
    assert profile is not None
    assert (profile.peaks, profile.unmeasured) == ([], 1)


def test_the_peak_of_several_devices_is_that_of_the_fullest() -> None:
    """A booking is the same on each device, so it follows the one that needs most."""
    stage = Stage(8000, 8000)
    job = stage.ask("job", gpus=2)
    stage.hold(job, 1000, index=0)
    stage.hold(job, 4000, index=1)
    stage.finish(job)
    assert stage.estimate("job") == 4000


def test_a_declared_job_is_learnt_too() -> None:
    """What a run took counts for later runs that declare nothing."""
    stage = Stage(8000)
    _run(stage, 1500, memory_mib=4000)
    assert stage.ask("job").booked_mib == 1500


@pytest.mark.parametrize("end", [End(exit_code=3), End(signal=9), End(signal=2, stopped=True)])
def test_only_success_makes_a_profile(end: End) -> None:
    """A failed, killed or stopped run leaves the type unknown."""
    stage = Stage(8000)
    _run(stage, 3000, end)
    assert not _known(stage)


@pytest.mark.parametrize("end", [End(exit_code=3), End(signal=9), OOM, End(stopped=True)])
def test_a_bad_end_takes_nothing_away(end: End) -> None:
    """What was learnt before stays learnt."""
    stage = Stage(8000)
    stage.know("job", 3000)
    _run(stage, 100, end)
    assert (stage.estimate("job") or 0) >= 3000


def test_a_lost_owner_is_no_failure_of_the_type() -> None:
    """An end that nobody saw neither counts as a failure nor makes a profile."""
    stage = Stage(8000)
    job = stage.ask("job")
    stage.hold(job, 3000)
    job.held.clear()
    stage.look()
    assert job.lease is not None
    stage.step(ev.OwnerGone(0.0, job.lease.id, main_alive=False))
    profile = stage.profiles.find("job", MODEL)
    assert profile is not None
    assert (profile.known, profile.failures) == (False, 0)


def test_a_provisional_profile_goes_with_its_probe() -> None:
    """A first run that fails in the end takes back what it suggested."""
    stage = Stage(8000)
    probe = stage.ask("job")
    stage.hold(probe, 2000)
    stage.run_until(60)
    stage.look()
    assert _known(stage)
    stage.finish(probe, End(exit_code=1))
    assert not _known(stage)


def test_a_provisional_profile_survives_a_failed_sibling() -> None:
    """Only the run that suggested it takes it back."""
    stage = Stage(16000)
    probe, sibling = stage.ask("job"), stage.ask("job")
    stage.hold(probe, 2000)
    stage.run_until(60)
    stage.look()
    assert sibling.runs
    stage.finish(sibling, End(exit_code=1))
    assert _known(stage)


def test_a_full_device_is_remembered_after_the_end() -> None:
    """How full it was while the job held memory counts, not how empty it is once it is gone."""
    stage = Stage(8000)
    job = stage.ask("job", memory_mib=8000)
    stage.hold(job, 7900)
    assert job.lease is not None
    stage.hold(job, 0)
    stage.finish(job, End(exit_code=1))
    report = _report(job)
    assert (report.outcome, report.remedy) == ("oom-suspected", "more")


def test_cycles_end_a_probe_early() -> None:
    """Memory that rises and falls three times has shown what it will do."""
    stage = Stage(8000)
    probe = stage.ask("job")
    sibling = stage.ask("job")
    for mib in (2000, 500, 2000, 500):
        stage.run_until(stage.now + 1)
        stage.hold(probe, mib)
    assert sibling.waits
    stage.hold(probe, 2000)
    assert sibling.runs
    assert probe.lease is not None
    assert probe.lease.state is LeaseState.RUNNING


def test_a_new_maximum_starts_the_minute_anew() -> None:
    """A first run that still grows is measured on."""
    stage = Stage(8000)
    probe = stage.ask("job")
    sibling = stage.ask("job")
    for second in range(0, 300, 10):
        stage.run_until(second)
        stage.hold(probe, 100 + second)
    assert sibling.waits


def test_a_provisional_booking_never_exceeds_the_grant() -> None:
    """The wide margin of a provisional profile ends at what the probe has."""
    stage = Stage(8000)
    probe = stage.ask("job")
    stage.hold(probe, 7000)
    stage.run_until(60)
    stage.look()
    assert probe.booked_mib == 8000
    assert stage.free() == 0


def test_a_probe_that_is_no_longer_alone_is_recorded() -> None:
    """A new broker restores the smaller booking, with the siblings beside it."""
    stage = Stage(8000)
    probe = stage.ask("job")
    sibling = stage.ask("job")
    stage.hold(probe, 2000)
    stage.run_until(60)
    stage.look()
    assert sibling.runs
    for records in (stage.journal, stage.machine.snapshot()):
        other = Stage(8000)
        other.machine.restore(records, 0.0)
        other.machine.check_invariants()
        assert other.free() == 2000
        assert other.machine.leases["t-1"].state is LeaseState.RUNNING


def test_a_long_probe_keeps_few_readings() -> None:
    """Hours of readings take no more memory than minutes, and the maximum stays among them."""
    stage = Stage(8000, provisional_after_s=1e9)
    probe = stage.ask("job")
    stage.hold(probe, 5000)
    for second in range(5000):
        stage.run_until(second / 10)
        stage.hold(probe, 1000 + second % 7)
    assert probe.lease is not None
    assert len(probe.lease.history) <= 600
    assert max(mib for _, mib in probe.lease.history) == 5000


def test_preallocation_is_pointed_out_once() -> None:
    """A type that takes most of the device at once and keeps it is flagged, and told so one time."""
    stage = Stage(10000)
    told = []
    for _ in range(2):
        stage.profiles.of("job", MODEL).window.clear()
        probe = stage.ask("job")
        for _ in range(3):
            stage.hold(probe, 7500)
        stage.finish(probe)
        told.append([note for note in _report(probe).notes if "7500 MiB of 10000" in note])
    assert [len(notes) for notes in told] == [1, 0]
    assert "preallocation" in told[0][0]
    assert _profile(stage).preallocated
    _run(stage, 1000, memory_mib=2000)
    assert not _profile(stage).preallocated


def test_an_oom_says_what_a_retry_should_ask() -> None:
    """After an out-of-memory the client is told a larger size, as long as a device has it."""
    stage = Stage(8000)
    assert _report(_run(stage, 3000, OOM, memory_mib=3000)).next_mib == 3900
    assert _report(_run(stage, 7000, OOM, memory_mib=7000)).next_mib is None
    assert _report(_run(stage, 100, End(exit_code=1), memory_mib=3000)).next_mib is None


@pytest.mark.parametrize("wish", [{}, {"whole": True}], ids=["probe", "whole"])
def test_what_had_the_largest_device_alone_is_not_tried_again(wish: dict[str, bool]) -> None:
    """The same run with the same device would die the same death, hours later."""
    stage = Stage(8000, 8000)
    report = _report(_run(stage, 7900, OOM, **wish))
    assert (report.remedy, report.next_mib) == ("", None)
    assert "with 8000 MiB for itself, and no device here has more" in report.notes[0]
    stage = Stage(4000, 8000)
    stage.ask("other", whole=True, allowed=frozenset({"GPU-0001"}))
    report = _report(_run(stage, 3900, OOM, **wish))
    assert (report.remedy, report.next_mib) == ("more", 5200)


def test_failures_near_the_booking_do_not_raise_it() -> None:
    """A type that fails for its own reasons while using what it booked is not given more."""
    stage = Stage(8000)
    stage.know("job", 3000)
    for _ in range(5):
        job = _run(stage, 3000, End(exit_code=1))
        assert _report(job).outcome == "oom-suspected"
    assert stage.estimate("job") == 3000


def test_a_type_that_once_succeeded_is_not_called_broken() -> None:
    """Three failures are only spoken of where nothing ever worked."""
    stage = Stage(8000)
    _run(stage, 1000)
    for _ in range(4):
        assert not _report(_run(stage, 100, End(exit_code=1))).notes
    assert not [text for text in stage.said if "never-succeeded" in text]


# -- where a peak comes from ------------------------------------------------------------------------


def test_a_rise_of_the_total_is_learnt_under_its_name() -> None:
    """What stands in for figures by process counts like them, and can be told from them."""
    stage = Stage(8000)
    job = stage.ask("job")
    stage.hold(job, 3000)
    _lease(job).by_delta = True
    stage.machine.learning.ended(_lease(job), "ok", 1.0)
    assert _profile(stage).window == [Peak(3000, "device-delta")]
    assert stage.estimate("job") == 3000


def test_what_the_driver_recorded_is_learnt() -> None:
    """A spike between two looks is in the driver's accounting, and so in the profile."""
    stage = Stage(8000)
    job = stage.ask("job")
    stage.hold(job, 3000)
    _lease(job).accounted_mib = 3500
    stage.finish(job)
    assert _profile(stage).window == [Peak(3500, "accounting")]


def test_a_report_from_within_makes_a_profile() -> None:
    """A job that is over before the first look is measured if it says what it took."""
    stage = Stage(8000)
    job = stage.ask("job")
    stage.machine.learning.reported(_lease(job), 3000)
    stage.machine.learning.reported(_lease(job), 2000)
    stage.finish(job)
    assert _profile(stage).window == [Peak(3000, "in-process")]


def test_a_report_above_the_booking_counts_at_once() -> None:
    """A larger peak raises what later runs book while its job still runs."""
    stage = Stage(8000)
    stage.know("job", 3000)
    job = stage.ask("job")
    effects = stage.machine.learning.reported(_lease(job), 4000)
    assert ev.Learnt("job", MODEL) in effects
    assert stage.estimate("job") == 4000
    assert _profile(stage).source == "in-process"


def test_a_report_of_more_than_the_device_has_is_refused() -> None:
    """Bytes given as MiB change nothing; the message says both numbers."""
    stage = Stage(8000)
    job = stage.ask("job")
    with pytest.raises(UsageError, match=r"9000 MiB was reported .* has 8000 MiB"):
        stage.machine.learning.reported(_lease(job), 9000)
    assert _lease(job).reported_mib == 0


def test_a_peak_has_the_date_of_its_end() -> None:
    """When a run ended is kept with what it took."""
    stage = Stage(8000)
    job = stage.ask("job")
    stage.hold(job, 3000)
    stage.machine.learning.ended(_lease(job), "ok", 1.0, at=1.7e9)
    assert _profile(stage).window == [Peak(3000, "sampled", 1.7e9)]
    assert _profile(stage).last_at == 1.7e9


def test_a_run_that_survived_an_oom_is_censored() -> None:
    """A job that caught the error and went on with less shows a lower bound."""
    stage = Stage(8000)
    stage.know("job", 3000)
    for mib in (1000, 4000):
        job = stage.ask("job")
        stage.hold(job, mib)
        stage.machine.learning.ended(_lease(job), "ok", 1.0, said_oom=True)
    assert _profile(stage).window == [Peak(3000), Peak(4000, censored=True)]


# -- devices that were not given --------------------------------------------------------------------


@pytest.mark.parametrize("own_mib", [0, 1000])
def test_a_run_on_a_device_that_it_was_not_given_is_not_learnt(own_mib: int) -> None:
    """Neither 0 nor a part of its need becomes a profile; the client hears which devices they are."""
    stage = Stage(8000, 8000)
    job = stage.ask("job")
    stage.hold(job, own_mib)
    stage.hold(job, 3000, index=1)
    stage.finish(job)
    assert not _known(stage)
    (note,) = _report(job).notes
    assert "was given device 0 (GPU-0000) and used device 1 (GPU-0001)" in note


def test_an_oom_on_a_device_that_was_not_given_raises_nothing() -> None:
    """More of its own device would not have helped; the client hears where it was instead."""
    stage = Stage(8000, 8000)
    stage.know("job", 3000)
    job = stage.ask("job")
    stage.hold(job, 8000, index=1)
    stage.finish(job, OOM)
    assert stage.estimate("job") == 3000
    assert not _report(job).remedy
    assert any("used device 1" in note for note in _report(job).notes)


def test_what_a_run_foretold_before_it_went_astray_is_withdrawn() -> None:
    """A provisional profile that rests on a part of the need goes with the run."""
    stage = Stage(8000, 8000)
    probe = stage.ask("job")
    stage.hold(probe, 1000)
    stage.run_until(100)
    stage.look()
    assert _known(stage)
    stage.hold(probe, 3000, index=1)
    stage.finish(probe)
    assert not _known(stage)


def test_a_run_that_went_astray_foretells_nothing() -> None:
    """However long it rests, it makes no provisional profile and raises no estimate."""
    stage = Stage(8000, 8000)
    probe = stage.ask("job")
    stage.hold(probe, 3000, index=1)
    stage.run_until(100)
    stage.hold(probe, 1000, index=0)
    stage.run_until(300)
    stage.look()
    assert not _known(stage)


# -- the curve of a run -----------------------------------------------------------------------------


@pytest.mark.parametrize("wish", [{}, {"memory_mib": 5000}], ids=["probe", "declared"])
def test_the_curve_of_the_last_run_is_kept_as_quantiles(wish: dict[str, int]) -> None:
    """Eleven numbers tell how long a run held how much, up to its maximum."""
    stage = Stage(8000)
    job = stage.ask("job", **wish)
    stage.hold(job, 1000)
    for second, mib in ((45, 4000), (50, 2000)):
        stage.run_until(second)
        stage.hold(job, mib)
    stage.run_until(100)
    stage.finish(job)
    assert _profile(stage).quantiles_mib == [*[1000] * 5, *[2000] * 5, 4000]


def test_an_unfollowed_run_keeps_the_curve_of_the_one_before() -> None:
    """A run that only reported its peak has no curve to show."""
    stage = Stage(8000)
    _run(stage, 3000)
    before = _profile(stage).quantiles_mib
    job = stage.ask("job")
    stage.machine.learning.reported(_lease(job), 2000)
    stage.finish(job)
    assert _profile(stage).quantiles_mib == before == [3000] * 11


def test_a_long_run_of_a_known_type_keeps_few_readings() -> None:
    """Many leases may run for long: of each only changes are kept, and not many."""
    stage = Stage(8000)
    job = stage.ask("job", memory_mib=5000)
    for second in range(3000):
        stage.run_until(float(second))
        stage.hold(job, 1000 + second % 7)
    assert len(_lease(job).history) <= 120


def test_a_device_that_strangers_filled_teaches_nothing_about_the_need() -> None:
    """A job whose room others took is to run again with the same; the estimate stays."""
    stage = Stage(8000)
    stage.know("job", 3000)
    job = stage.ask("job")
    stage.others(0, 6000)
    stage.finish(job, End(exit_code=1, said_oom=True, said="memory"))
    assert (_report(job).remedy, _report(job).next_mib) == ("same", None)
    assert stage.estimate("job") == 3000


def test_a_job_that_outgrew_its_room_gets_more_whoever_is_beside_it() -> None:
    """Others that leave room for the booking are not to blame."""
    stage = Stage(8000)
    job = stage.ask("job", memory_mib=3000)
    stage.others(0, 4000)
    stage.hold(job, 3900)
    stage.finish(job, End(exit_code=1, said_oom=True, said="memory"))
    assert (_report(job).remedy, _report(job).next_mib) == ("more", 3900)


def test_what_a_run_reached_while_nobody_could_look_is_not_made_up() -> None:
    """A device that was silent for a while leaves no peak; a short silence does."""
    for silent_s, known in ((1.0, 1000), (5.0, None)):
        stage = Stage(8000)
        job = stage.ask("job")
        stage.hold(job, 1000)
        stage.states["GPU-0000"] = DeviceState.STALE
        stage.look()
        stage.run_until(stage.now + silent_s)
        stage.states.clear()
        stage.look()
        stage.finish(job)
        assert stage.estimate("job") == known
    stage = Stage(8000)
    job = stage.ask("job")
    stage.hold(job, 1000)
    stage.states["GPU-0000"] = DeviceState.STALE
    stage.look()
    stage.finish(job)
    assert stage.estimate("job") is None
