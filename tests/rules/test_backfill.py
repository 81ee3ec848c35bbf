"""Learnt run times let short jobs use what is kept for the head, until it can start."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grn.rules.backfill import ENOUGH_RUNS, room_at
from grn.rules.foresight import answered_at_once
from grn.rules.model import Owner, Request
from tests.rules.acting import MODEL, Job, Stage


def learn(stage: Stage, job_type: str, mib: int, *ran_s: float) -> None:
    """Let a type be known by measured runs of these lengths."""
    for ran in ran_s:
        stage.profiles.of(job_type, MODEL).succeeded(mib, ran, "sampled")


def behind_a_head(*, there_s: tuple[float, ...], short_s: tuple[float, ...]) -> tuple[Stage, Job]:
    """Let one job run, one wait for the whole device, and a type of small ones be known."""
    stage = Stage(10000)
    learn(stage, "there", 6000, *there_s)
    learn(stage, "short", 2000, *short_s)
    there = stage.ask("there", peak_mib=6000, runs_s=there_s[0])
    assert there.runs
    head = stage.ask("whole", whole=True, runs_s=5)
    assert head.waits
    return stage, head


def test_a_job_that_is_over_in_time_uses_what_is_kept_for_the_head() -> None:
    """The head starts exactly when it would have started without it."""
    stage, head = behind_a_head(there_s=(100, 110, 105), short_s=(20, 30, 25))
    short = stage.ask("short", runs_s=30, peak_mib=2000)
    assert short.runs
    stage.run_all()
    assert (short.ended_s, head.granted_s) == (30, 100)
    assert not stage.overruns


@pytest.mark.parametrize(
    ("there_s", "short_s"),
    [
        ((100, 20, 20), (20, 30, 25)),  # it is likely to end before the newcomer
        ((100, 110, 105), (20, 106, 25)),  # one in four of the newcomers takes longer
        ((100,) * (ENOUGH_RUNS - 1), (1, 1, 1)),  # too few runs of the one
        ((100,) * ENOUGH_RUNS, (1,) * (ENOUGH_RUNS - 1)),  # or of the other
    ],
)
def test_what_might_be_late_waits(there_s: tuple[float, ...], short_s: tuple[float, ...]) -> None:
    """Run times count only once there are some."""
    stage, head = behind_a_head(there_s=there_s, short_s=short_s)
    short = stage.ask("short", runs_s=1, peak_mib=2000)
    assert short.waits
    assert "kept for the request at the head" in stage.reason(short)
    stage.run_all()
    assert head.granted_s == 100


def test_time_that_has_passed_counts() -> None:
    """What is too long shortly before the head starts was short enough before."""
    stage, head = behind_a_head(there_s=(100, 100, 100), short_s=(30, 30, 30))
    early: list[Job] = []
    late: list[Job] = []
    stage.at(70, lambda: early.append(stage.ask("short", runs_s=30, peak_mib=2000)))
    stage.at(71, lambda: late.append(stage.ask("short", runs_s=30, peak_mib=2000)))
    stage.run_all()
    assert early[0].granted_s == 70
    assert head.granted_s == 100
    assert late[0].granted_s == 105


@pytest.mark.parametrize(("now", "at_once"), [(70, True), (71, False)])
def test_what_is_foreseen_is_of_that_moment(now: float, *, at_once: bool) -> None:
    """Not of the last decision: nothing may have happened since."""
    stage, _ = behind_a_head(there_s=(100, 100, 100), short_s=(30, 30, 30))
    short = Request(-1, "short", Owner(1, 1))
    assert answered_at_once(stage.machine, [short], now) == [at_once]


def test_a_job_that_outlasts_all_is_late_for_as_long_again() -> None:
    """The head is then expected later; but what is kept for it is its own after twice that wait."""
    stage = Stage(10000)
    learn(stage, "there", 6000, 100, 100, 100)
    learn(stage, "short", 2000, 4, 4, 4)
    stage.ask("there", peak_mib=6000, runs_s=1000)
    head = stage.ask("whole", whole=True, runs_s=5)
    asked: dict[int, Job] = {}

    def ask(second: int) -> None:
        asked[second] = stage.ask("short", runs_s=4, peak_mib=2000)

    for second in (50, 97, 150, 196, 201, 500):
        stage.at(second, lambda second=second: ask(second))
    stage.run_all()
    granted = {second: job.granted_s for second, job in asked.items()}
    assert granted == {50: 50, 97: 150, 150: 150, 196: 196, 201: 1005, 500: 1005}
    assert head.granted_s == 1000


def test_an_unmeasured_job_that_runs_may_end_at_any_moment() -> None:
    """Beside one of which nothing is known, nobody goes first."""
    stage = Stage(10000)
    learn(stage, "short", 2000, 1, 1, 1)
    stage.ask("never seen", memory_mib=6000)
    stage.ask("whole", whole=True)
    assert stage.ask("short").waits


def test_a_stream_of_short_jobs_does_not_starve_the_head() -> None:
    """Each is over before the head can start, so the last one that is not must wait."""
    stage, head = behind_a_head(there_s=(100, 100, 100), short_s=(4, 4, 4))
    for second in range(2, 200):
        stage.at(second, lambda: stage.ask("short", runs_s=4, peak_mib=2000))
    stage.run_all()
    assert head.granted_s == 100


@settings(deadline=None)
@given(
    missing=st.integers(-5, 60),
    ends=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 20)), max_size=8),
)
def test_room_is_there_when_enough_has_ended(missing: int, ends: list[tuple[float, int]]) -> None:
    """The answer is the first moment at which the ends until then give what is missing."""
    now = 10.0
    when = room_at(missing, ends, now)
    assert when >= now
    given_back = sum(units for end, units in ends if end <= when)
    assert missing <= 0 or given_back >= missing or given_back == sum(units for _, units in ends)
    if when > now:
        assert sum(units for end, units in ends if end < when) < missing
