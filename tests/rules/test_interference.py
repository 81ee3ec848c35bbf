"""How busy a type keeps a device is learnt, and is a hint where there is a choice, never a booking."""

from __future__ import annotations

import pytest

from grn.rules.model import End, Policy
from tests.rules.acting import MODEL, Job, Stage

LOOKS = 5


def _run_alone(stage: Stage, job_type: str, percent: int | None, *, index: int = 0) -> Job:
    """Let a job of this type run alone on a device that its driver calls so busy."""
    job = stage.ask(job_type, memory_mib=1000, allowed=frozenset({f"GPU-{index:04d}"}))
    if percent is not None:
        stage.utilisation[f"GPU-{index:04d}"] = percent
    for _ in range(LOOKS):
        stage.now += 1.0
        stage.hold(job, 900)
    stage.finish(job)
    stage.utilisation.clear()
    return job


def _learnt(stage: Stage, job_type: str) -> int | None:
    return stage.profiles.busy_percent(job_type)


def test_a_run_that_was_alone_teaches_how_busy_its_type_is() -> None:
    """What the driver told while it held memory, as a mean."""
    stage = Stage(16000)
    _run_alone(stage, "busy", 90)
    assert _learnt(stage, "busy") == 90
    assert stage.profiles.of("busy", MODEL).busy_percent == [90]


def test_a_driver_that_does_not_tell_teaches_nothing() -> None:
    """Unknown is not idle."""
    stage = Stage(16000)
    _run_alone(stage, "quiet", None)
    assert _learnt(stage, "quiet") is None


def test_nothing_is_learnt_beside_others() -> None:
    """What a device does for two leases, or for somebody else's program, is not one job's use."""
    stage = Stage(16000)
    beside = stage.ask("other", memory_mib=1000)
    stage.hold(beside, 900)
    _run_alone(stage, "busy", 90)
    assert _learnt(stage, "busy") is None
    stage.finish(beside)
    stage.others(0, 4000)
    _run_alone(stage, "busy", 90)
    assert _learnt(stage, "busy") is None


def test_a_failed_run_teaches_nothing() -> None:
    """Only a successful job makes a profile."""
    stage = Stage(16000)
    job = stage.ask("busy", memory_mib=1000)
    stage.utilisation["GPU-0000"] = 90
    for _ in range(LOOKS):
        stage.hold(job, 900)
    stage.finish(job, End(exit_code=1))
    assert _learnt(stage, "busy") is None


@pytest.mark.parametrize("policy", list(Policy))
def test_two_busy_jobs_prefer_different_devices(policy: Policy) -> None:
    """At 90 % each they would run at half their speed beside each other, whatever the policy."""
    stage = Stage(16000, 16000)
    _run_alone(stage, "busy", 90)
    first = stage.ask("busy", memory_mib=1000, policy=policy)
    second = stage.ask("busy", memory_mib=1000, policy=policy)
    assert {*first.at, *second.at} == {0, 1}


def test_jobs_that_leave_a_device_time_share_it() -> None:
    """Twice 40 % is less than one device can do: pack packs."""
    stage = Stage(16000, 16000)
    _run_alone(stage, "light", 40)
    jobs = [stage.ask("light", memory_mib=1000, policy=Policy.PACK) for _ in range(3)]
    assert [job.at for job in jobs] == [(0,), (0,), (1,)]


def test_the_hint_never_makes_a_job_wait() -> None:
    """With no quiet device left a busy one is taken: memory alone decides whether there is room."""
    stage = Stage(16000, 16000)
    _run_alone(stage, "busy", 90)
    jobs = [stage.ask("busy", memory_mib=1000) for _ in range(6)]
    assert all(job.runs for job in jobs)
    assert sorted(job.at for job in jobs) == [(0,)] * 3 + [(1,)] * 3


def test_a_job_of_unknown_use_goes_where_its_policy_says() -> None:
    """What was learnt of others does not move a job of which nothing is known."""
    stage = Stage(16000, 16000)
    _run_alone(stage, "busy", 90)
    busy = stage.ask("busy", memory_mib=1000, policy=Policy.PACK)
    other = stage.ask("unknown", memory_mib=1000, policy=Policy.PACK)
    assert busy.at == other.at == (0,)
