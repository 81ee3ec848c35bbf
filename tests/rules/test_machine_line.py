"""The line: bounded waits, harmless overtaking, all or nothing, reasons."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from grn.rules.model import End, Policy
from tests.rules.acting import Job, Stage

FAILS = End(exit_code=1)


def _starts(jobs: list[Job]) -> list[float | None]:
    return [job.granted_s for job in jobs]


def test_freed_memory_goes_to_the_first_in_line_at_once() -> None:
    """A release grants in the same instant."""
    stage = Stage(10000)
    first = stage.ask(whole=True, runs_s=7)
    second, third = stage.ask(whole=True), stage.ask(whole=True)
    stage.run_all()
    assert first.ended_s == second.granted_s == 7
    assert third.waits


def test_a_stream_of_small_jobs_does_not_starve_a_big_one() -> None:
    """A whole-device job starts when what runs before it has ended, not when the stream dries up."""
    stage = Stage(8192)
    stage.ask("sand", memory_mib=1024, runs_s=10)
    bigs: list[Job] = []
    stage.at(1, lambda: bigs.append(stage.ask("couch", whole=True, runs_s=5)))
    for second in range(2, 61):
        stage.at(second, lambda: stage.ask("sand", memory_mib=2048, runs_s=4))
    stage.run_all()
    assert bigs[0].granted_s is not None
    assert bigs[0].granted_s <= 15
    assert all(job.ended_s for job in stage.jobs.values())


def test_known_jobs_of_any_size_are_not_starved() -> None:
    """A job of 12 GB gets its turn while jobs of 6 GB arrive faster than they end."""
    stage = Stage(16384)
    stage.know("small", 6144)
    stage.know("big", 12288)
    bigs: list[Job] = []
    for n in range(40):
        stage.at(n * 1.5, partial(stage.ask, "small", runs_s=3, peak_mib=6144))
    stage.at(4, lambda: bigs.append(stage.ask("big", runs_s=3, peak_mib=12288)))
    stage.run_all()
    assert bigs[0].granted_s is not None
    assert bigs[0].granted_s <= 7
    assert not stage.overruns


def test_overtaking_is_allowed_where_it_delays_nobody() -> None:
    """A small job goes ahead beside the head's place if the head fits there all the same."""
    stage = Stage(10000)
    stage.ask("there", memory_mib=8000)
    head = stage.ask(memory_mib=7000)
    assert head.waits
    assert stage.ask(memory_mib=2000).runs
    late = stage.ask(memory_mib=1)
    assert late.waits
    assert stage.ask(memory_mib=0).runs


def test_other_devices_are_open_while_one_is_kept_for_the_head() -> None:
    """Only the device that the head will get is kept; the others go on working."""
    stage = Stage(8000, 8000)
    first = stage.ask(memory_mib=8000)
    stage.ask(memory_mib=3000)
    head = stage.ask(whole=True)
    assert head.waits
    small = stage.ask(memory_mib=5000)
    assert small.at in {(0,), (1,)} or small.waits
    stage.finish(first)
    assert head.at == (0,)


def test_two_that_each_want_both_devices_take_turns() -> None:
    """All or nothing: one holds both devices, the other none, and both get done."""
    for _ in range(100):
        stage = Stage(8000, 8000)
        pair = stage.ask_together(*[{"gpus": 2, "whole": True, "runs_s": 3}] * 2)
        assert [len(job.at) for job in pair] == [2, 0]
        stage.run_all()
        assert _starts(pair) == [0, 3]
        assert stage.now == 6


def test_the_third_device_is_usable_beside_a_pair() -> None:
    """Three that want two of three devices go one by one; a one-device job uses what is left."""
    stage = Stage(8000, 8000, 8000)
    pairs = stage.ask_together(*[{"gpus": 2, "whole": True, "runs_s": 3}] * 3)
    assert [job.runs for job in pairs] == [True, False, False]
    stage.run_all()
    assert _starts(pairs) == [0, 3, 6]
    stage.ask(gpus=2, whole=True)
    assert stage.ask(whole=True).at == (2,)


def test_a_job_without_devices_does_not_wait_behind_those_that_want_some() -> None:
    """A request for zero devices runs at once on a full machine, and holds none."""
    stage = Stage(*[8000] * 4)
    jobs = [stage.ask(whole=True, runs_s=20) for _ in range(10)]
    free = [stage.ask("cpu", gpus=0), stage.ask("cpu", gpus=None)]
    assert all(job.runs and job.at == () for job in free)
    stage.run_all()
    assert _starts(jobs) == [0] * 4 + [20] * 4 + [40] * 2


def test_priority_goes_first() -> None:
    """A more urgent request is served before those that came earlier."""
    stage = Stage(8000)
    first = stage.ask(whole=True)
    normal, urgent = stage.ask(whole=True), stage.ask(whole=True, priority=1)
    stage.finish(first)
    assert urgent.runs
    assert normal.waits


def test_a_withdrawn_request_changes_nothing_for_others() -> None:
    """Withdrawing one of two waiting first runs leaves the one that is measured as it was."""
    stage = Stage(8000, 8000)
    first, second = stage.ask("x"), stage.ask("x")
    stage.cancel(second)
    assert second.refused is not None
    assert second.refused.code == "cancelled"
    third = stage.ask("x")
    assert third.waits
    stage.finish(first, FAILS)
    assert third.runs
    stage.finish(third, FAILS)
    assert stage.ask("x").runs


def test_a_withdrawn_head_lets_the_others_go() -> None:
    """What was kept for a request that is no longer there is free again."""
    stage = Stage(8000)
    stage.ask(memory_mib=4000)
    head, small = stage.ask(whole=True), stage.ask(memory_mib=2000)
    assert small.waits
    stage.cancel(head)
    assert small.runs


def test_every_waiter_has_a_reason_with_numbers() -> None:
    """Whoever waits can be told why at any time."""
    stage = Stage(8000, 8000)
    stage.ask("a", whole=True)
    stage.ask("b", memory_mib=6000)
    waiters = [stage.ask("w", memory_mib=3000 + n) for n in range(5)]
    for job in waiters:
        assert "device 0: leased whole by lease t-1" in stage.reason(job)
        assert "device 1: 2000 MiB free of 8000" in stage.reason(job)


def test_a_head_that_waits_for_cpus_is_not_starved() -> None:
    """Small jobs cannot keep taking the CPUs or the device that the head needs together."""
    stage = Stage(8000, cpus=4)
    bigs: list[Job] = []
    for second in range(60):
        stage.at(second, lambda: stage.ask("cpu", gpus=0, cpus=2, runs_s=3))
        stage.at(second, lambda: stage.ask("gpu", memory_mib=4000, runs_s=3))
    stage.at(5.5, lambda: bigs.append(stage.ask("big", whole=True, cpus=4, runs_s=1)))
    stage.run_all()
    assert bigs[0].granted_s is not None
    assert bigs[0].granted_s <= 15


@settings(parent=settings.default, max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([4000, 8000]), min_size=1, max_size=3),
    wishes=st.lists(
        st.tuples(
            st.integers(0, 30),  # arrival
            st.integers(1, 9),  # run time
            st.sampled_from([500, 1000, 2000, 3500, 4000, None]),
            st.sampled_from([1, 1, 1, 2]),
            st.sampled_from(list(Policy)),
        ),
        max_size=40,
    ),
)
def test_nobody_waits_longer_than_for_those_who_run_already(
    sizes: list[int], wishes: list[tuple[int, int, int | None, int, Policy]]
) -> None:
    """Once first in line, a request starts at the latest when all that run then have ended.

    Each type runs as long as it always does: one that does not may delay the head, see `backfill`.
    """
    stage = Stage(*sizes)
    for arrival_s, runs_s, mib, gpus, policy in wishes:
        ask = partial(
            stage.ask,
            f"runs {runs_s} s",
            runs_s=runs_s,
            memory_mib=mib,
            whole=mib is None,
            gpus=min(gpus, len(sizes)),
            policy=policy,
        )
        stage.at(arrival_s, ask)
    stage.run_all()
    served = sorted(stage.jobs.values(), key=lambda job: job.request.ticket)
    for place, job in enumerate(served):
        last = max((_number(other) for other in served[:place]), default=0)
        ran_already = [
            other.ended_s or 0.0
            for other in served
            if _number(other) < last or other.request.ticket < job.request.ticket
        ]
        first_s = max(
            [job.request.arrived_s, *(other.granted_s or 0.0 for other in served[:place])]
        )
        assert job.granted_s is not None
        assert job.granted_s <= max([first_s, *ran_already])


def _number(job: Job) -> int:
    """Return which grant it was, counted over all jobs."""
    assert job.lease is not None
    return job.lease.number


def test_fair_shares_divide_all_cores() -> None:
    """What is kept back from bookings is not kept back from jobs that book no CPUs."""
    stage = Stage(8000, cpus=6, cores=8)
    jobs = stage.ask_together(*[{"gpus": 0} for _ in range(4)])
    assert [job.lease.threads for job in jobs if job.lease is not None] == [2, 2, 2, 2]
