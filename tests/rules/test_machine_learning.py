"""Types are measured once, share what was learnt, and a bad end locks nothing."""

from __future__ import annotations

import pytest

from grn.rules import events as ev
from grn.rules.model import DeviceState, End, LeaseState
from tests.rules.acting import Job, Stage

FAILS = End(exit_code=1)


def _starts(jobs: list[Job]) -> list[float | None]:
    return [job.granted_s for job in jobs]


def test_large_runs_of_one_script_do_not_overlap() -> None:
    """Two batch sizes are two types: big runs go one by one, small ones together."""
    stage = Stage(16384)
    small, big = "train --maxbatchsize 1", "train"
    stage.ask(small, runs_s=1, peak_mib=2599)
    bigs = [stage.ask(big, runs_s=3, peak_mib=13293) for _ in range(3)]
    stage.run_all()
    assert _starts(bigs) == [1, 4, 7]
    smalls = [stage.ask(small, runs_s=1, peak_mib=2599) for _ in range(6)]
    assert all(job.runs for job in smalls)
    stage.run_all()
    assert not stage.overruns


def test_a_sweep_of_one_type_is_measured_once() -> None:
    """Eight runs of one type: one is measured alone, then the other seven start together."""
    stage = Stage(10000, 10000)
    jobs = [stage.ask("sweep", runs_s=3, peak_mib=2000) for _ in range(8)]
    stage.run_all()
    assert _starts(jobs) == [0] + [3] * 7
    assert len(stage.profiles) == 1
    assert not stage.overruns


def test_only_one_run_of_a_type_is_measured_at_a_time() -> None:
    """While a first run is measured its siblings wait for it, also where a device is idle."""
    stage = Stage(10000, 10000)
    stage.ask("sweep")
    second = stage.ask("sweep")
    assert second.waits
    assert "first run of this type is being measured" in second.told


def test_failed_first_runs_free_their_devices() -> None:
    """Four types whose first run fails leave four free devices and no profile."""
    stage = Stage(*[10000] * 4)
    for name in "abcd":
        stage.ask(name, runs_s=0.5, end=FAILS)
    fifth = stage.ask("fifth")
    stage.run_until(0.5)
    assert fifth.granted_s == 0.5
    assert all(stage.estimate(name) is None for name in "abcd")


@pytest.mark.parametrize(
    "end",
    [
        FAILS,
        End(signal=9),
        End(),
        End(exit_code=1, said_oom=True),
        End(signal=15, stopped=True),
    ],
    ids=["exit", "kill", "unseen", "oom", "stopped"],
)
def test_no_bad_end_of_a_first_run_makes_a_profile(end: End) -> None:
    """However a probe ends badly, its device is free and the next run is measured anew."""
    stage = Stage(10000)
    probe = stage.ask("job")
    stage.hold(probe, 4000)
    stage.finish(probe, end)
    assert stage.free() == 10000
    assert stage.estimate("job") is None
    again = stage.ask("job")
    assert again.lease is not None
    assert again.lease.state is LeaseState.PROBE


def test_a_type_that_always_fails_goes_on_one_at_a_time_and_says_so() -> None:
    """Twenty failures take twenty turns; after three the log says that the type never succeeded."""
    stage = Stage(*[10000] * 4)
    jobs = [stage.ask("broken", runs_s=0.5, end=FAILS) for _ in range(20)]
    stage.run_until(1.6)
    assert [text for text in stage.said if "never-succeeded" in text]
    stage.run_all()
    assert stage.now == 10.0
    assert all(job.report and job.report.outcome == "failed" for job in jobs)
    noted = [note for job in jobs if job.report for note in job.report.notes]
    assert len(noted) == 1
    assert not stage.machine.leases
    assert not len(stage.machine.line)
    assert not stage.profiles.find("broken", "Simulated").known  # type: ignore[union-attr]


def test_growth_beyond_the_profile_counts_at_once() -> None:
    """A job above its booking takes that room, raises what later runs book, and is logged once."""
    stage = Stage(10000)
    stage.know("job", 3000)
    first, second = stage.ask(), stage.ask()
    stage.hold(first, 3000)
    stage.hold(second, 5000)
    assert stage.free() == 2000
    assert stage.estimate("job") == 5000
    third = stage.ask()
    assert third.waits
    stage.hold(second, 5100)
    stage.hold(second, 5000)
    lines = [text for text in stage.said if "outgrown" in text]
    assert len(lines) == 1
    assert "holds_mib=5000 booked_mib=3000" in lines[0]
    stage.finish(first)
    stage.finish(second)
    assert third.booked_mib == 5100


def test_the_peak_is_of_one_moment_not_of_many() -> None:
    """A probe's profile is the most that it held at once."""
    stage = Stage(16384)
    probe = stage.ask("job")
    for mib in (300, 792, 396, 700):
        stage.hold(probe, mib)
    stage.finish(probe)
    assert stage.estimate("job") == 792


def test_a_long_first_run_lets_its_siblings_start() -> None:
    """Once a probe's memory rests for a minute, siblings start beside it with a wide margin."""
    stage = Stage(10000)
    probe = stage.ask("long")
    sibling = stage.ask("long")
    stage.hold(probe, 2000)
    stage.run_until(59)
    stage.look()
    assert sibling.waits
    stage.run_until(60)
    stage.look()
    assert sibling.booked_mib == 3000
    assert probe.booked_mib == 3000
    stage.finish(probe)
    assert stage.estimate("long") == 2000


def test_a_run_that_died_of_memory_gets_more_next_time() -> None:
    """After an out-of-memory the next booking is larger; after three the type runs alone."""
    stage = Stage(100000)
    stage.know("job", 3000)
    booked = []
    for _ in range(3):
        job = stage.ask()
        booked.append(job.booked_mib)
        stage.finish(job, End(exit_code=1, said_oom=True))
    assert booked == [3000, 3900, 5070]
    assert stage.ask().booked_mib == 100000


def test_a_job_without_a_device_teaches_nothing() -> None:
    """A run with no use of its device is told once, frees it, and leaves no profile of 0."""
    stage = Stage(10000)
    told = []
    for _ in range(3):
        job = stage.ask("cpu-only")
        stage.look()
        stage.finish(job)
        assert job.report is not None
        told.append(len(job.report.notes))
    assert told == [1, 0, 0]
    assert stage.estimate("cpu-only") is None
    assert stage.free() == 10000


def test_a_restored_probe_that_holds_less_than_its_peak_is_measured_on() -> None:
    """A new broker that finds a probe below its recorded peak keeps that peak and goes on."""
    stage = Stage(10000)
    probe = stage.ask("job")
    stage.hold(probe, 5000)
    other = Stage(10000)
    other.machine.restore(stage.machine.snapshot(), 0.0)
    assert probe.lease is not None
    lease = other.machine.leases[probe.lease.id]
    held = {lease.id: 100}
    for now in (1.0, 70.0):
        reading = ev.Reading("GPU-0000", DeviceState.OK, "", 100, 0, held, {})
        other.step(ev.Sampled(now, (reading,), {}))
    assert lease.peak_mib == 5000
    assert other.estimate("job") == 7500
