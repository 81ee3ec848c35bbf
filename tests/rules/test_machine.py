"""Whole scenarios on the machine with a fake clock: who runs when, where, and with how much."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from grn.rules import events as ev
from grn.rules.model import DeviceState, End, LeaseState, Owner, Policy
from tests.rules.acting import EXACT, Job, Stage

SPREAD, PACK = Policy.SPREAD, Policy.PACK
FAILS = End(exit_code=1)
BOTH = pytest.mark.parametrize("policy", list(Policy))


def _with_booked(*mib: int, sizes: tuple[int, ...] | None = None, **options: Any) -> Stage:
    """Make a stage with this much set aside on each device."""
    stage = Stage(*(sizes or (10000,) * len(mib)), **options)
    for index, amount in enumerate(mib):
        if amount:
            allowed = frozenset({f"GPU-{index:04d}"})
            assert stage.ask("there", memory_mib=amount, allowed=allowed).runs
    return stage


def _starts(jobs: list[Job]) -> list[float | None]:
    return [job.granted_s for job in jobs]


# -- which device -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mib", "policy", "index"),
    [
        (4000, SPREAD, 2),
        (4000, PACK, 1),
        (5000, PACK, 1),
        (6000, SPREAD, 2),
        (6000, PACK, 0),
        (9000, SPREAD, 2),
        (9000, PACK, 2),
    ],
)
def test_policy_chooses_among_all_that_fit(mib: int, policy: Policy, index: int) -> None:
    """Spread takes the most room, pack the least that still fits, an exact fit included."""
    stage = _with_booked(2000, 5000, 0)
    assert stage.ask(memory_mib=mib, policy=policy).at == (index,)


@BOTH
@pytest.mark.parametrize(
    ("order", "taken"),
    [([0, 1, 2, 3], [0]), ([3, 1, 0], [3]), ([0, 1, 2, 3, 7, 6, 5, 4], [0, 1, 2, 3, 7])],
)
def test_ties_go_in_mask_order(order: list[int], taken: list[int], policy: Policy) -> None:
    """Of equal, empty devices the first in the broker's mask is taken."""
    stage = Stage(*[10000] * 8, order=order)
    assert [stage.ask(whole=True, policy=policy).at[0] for _ in taken] == taken


@BOTH
def test_one_device_is_enough_for_either_policy(policy: Policy) -> None:
    """On a machine with one idle device a known type starts at once, by either policy."""
    stage = Stage(16384)
    stage.know("job", 1024)
    assert stage.ask(policy=policy).runs


@BOTH
def test_an_exact_fit_is_a_fit(policy: Policy) -> None:
    """A job that needs precisely what is free gets it."""
    stage = _with_booked(4000)
    assert stage.ask(memory_mib=6000, policy=policy).runs
    assert stage.free() == 0


def test_pack_uses_the_emptiest_device_where_no_other_fits() -> None:
    """Pack goes on to emptier devices instead of waiting for a full one."""
    stage = _with_booked(14336, 0, sizes=(16384, 16384))
    assert stage.ask(memory_mib=4096, policy=PACK).at == (1,)


def test_spread_looks_at_every_device() -> None:
    """The device with most room decides, not the one with least in use."""
    stage = _with_booked(0, 5120, sizes=(8192, 81920))
    assert stage.ask(memory_mib=10240, policy=SPREAD).at == (1,)


@BOTH
def test_a_device_under_measurement_takes_nobody_else(policy: Policy) -> None:
    """Where a first run is measured alone, no policy places anything."""
    stage = _with_booked(9000, 0)
    probe = stage.ask("unknown")
    assert probe.at == (1,)
    late = stage.ask(memory_mib=2000, policy=policy)
    assert late.waits
    assert "measured alone" in late.told


def test_a_first_run_needs_an_empty_device() -> None:
    """A probe is not put beside a job that is there already: its figures would be spoilt."""
    stage = _with_booked(1000)
    probe = stage.ask("unknown")
    assert probe.waits
    assert "alone (first run of this type)" in probe.told


def test_pack_jobs_gather_and_spread_jobs_scatter() -> None:
    """Many small jobs: packed ones share a device while it has room, spread ones level it out."""
    stage = Stage(*[8000] * 4)
    packed = [stage.ask("p", memory_mib=100, policy=PACK) for _ in range(64)]
    assert {job.at for job in packed} == {(0,)}
    spread = [stage.ask("s", memory_mib=100, policy=SPREAD) for _ in range(64)]
    assert all(job.runs for job in spread)
    assert {job.at[0] for job in spread} == {1, 2, 3}


# -- how much ---------------------------------------------------------------------------------------


def test_only_one_of_two_that_ask_in_the_same_instant() -> None:
    """Check and booking are one step: two jobs of 6000 never share 10000, however often."""
    stage = Stage(10000)
    stage.know("job", 6000)
    for _ in range(500):
        pair = stage.ask_together({}, {})
        assert [job.runs for job in pair] == [True, False]
        stage.cancel(pair[1])
        stage.finish(pair[0])


def test_whole_devices_are_never_given_twice() -> None:
    """Four that ask in the same instant get four different devices, round after round."""
    stage = Stage(*[8000] * 4)
    for _ in range(200):
        jobs = stage.ask_together(*[{"whole": True}] * 4)
        assert sorted(job.at[0] for job in jobs) == [0, 1, 2, 3]
        for job in jobs:
            stage.finish(job)


def test_a_reservation_survives_every_reading() -> None:
    """A job that has not allocated yet keeps its room, whatever the driver reads."""
    stage = Stage(10000)
    stage.know("job", 6000)
    first = stage.ask(runs_s=10, boots_s=3, peak_mib=6000)
    seconds: list[Job] = []
    stage.at(1, lambda: seconds.append(stage.ask(runs_s=1)))
    for tenth in range(1, 100):
        stage.at(tenth / 10, stage.look)
        stage.at(tenth / 10, lambda: frees.append(stage.free()))
    frees: list[int] = []
    stage.run_all()
    assert set(frees) == {4000}
    assert first.granted_s == 0
    assert _starts(seconds) == [10]


def test_eight_slow_starters_never_fill_a_device_twice() -> None:
    """Jobs of more than half a device that allocate late run one per device, and none dies."""
    for boots_s in (0, 0.5, 2, 5):
        stage = Stage(16384, 16384)
        stage.know("job", 9000)
        for arrival in range(8):
            ask = partial(stage.ask, runs_s=boots_s + 2, boots_s=boots_s, peak_mib=9000)
            stage.at(arrival * 0.3, ask)
        stage.run_all()
        assert not stage.overruns
        assert len([job for job in stage.jobs.values() if job.ended_s]) == 8


def test_shares_do_not_add_up_across_devices() -> None:
    """Each device holds whole shares only: six of 1500 in 10000, not fifty-three in eight."""
    stage = Stage(*[10000] * 8)
    stage.know("job", 1500)
    jobs = [stage.ask(runs_s=5, peak_mib=1500) for _ in range(100)]
    running = [job.at for job in stage.running()]
    assert len(running) == 48
    assert all(running.count((index,)) == 6 for index in range(8))
    stage.run_all()
    assert not stage.overruns
    assert all(job.ended_s for job in jobs)


def test_a_request_beyond_every_device_is_refused_at_once() -> None:
    """What can never fit is refused with the wish and the largest device in numbers."""
    stage = Stage(49152, 49152)
    stage.others(1, 18432)
    job = stage.ask(memory_mib=83968)
    assert job.refused is not None
    assert job.refused.code == "impossible"
    assert "83968" in job.refused.message
    assert "49152" in job.refused.message


def test_memory_of_others_makes_it_wait_with_numbers() -> None:
    """A job kept out by somebody else's memory waits, says so, and starts when that is gone."""
    stage = Stage(49152, 49152)
    stage.others(1, 18432)
    assert stage.ask(memory_mib=40960).at == (0,)
    late = stage.ask(memory_mib=40960)
    assert "device 1: 30720 MiB free of 49152, 18432 used by others" in late.told
    assert "1 leased" in late.told
    stage.others(1, 0)
    assert late.at == (1,)


def test_memory_on_a_device_that_was_not_leased_is_no_room() -> None:
    """A job that uses another device than its own takes room there too."""
    stage = Stage(8192, 8192)
    stage.know("stray", 3000)
    stray = stage.ask("stray", allowed=frozenset({"GPU-0001"}))
    stage.hold(stray, 3000, index=0)
    assert (stage.free(0), stage.free(1)) == (5192, 5192)
    large = stage.ask(memory_mib=6000)
    assert large.waits
    stage.cancel(large)
    assert stage.ask(memory_mib=5000).runs
    stage.finish(stray)
    assert stage.estimate("stray") == 3000
    assert stage.free(0) + stage.free(1) == 2 * 8192 - 5000


def test_exclusive_devices_are_not_shared() -> None:
    """A device that takes one process takes one lease, however small."""
    stage = Stage(*[8000] * 4, one_process=True)
    stage.know("job", 100)
    jobs = [stage.ask(runs_s=2, peak_mib=100) for _ in range(8)]
    assert sorted(job.at for job in stage.running()) == [(0,), (1,), (2,), (3,)]
    stage.run_all()
    assert _starts(jobs) == [0] * 4 + [2] * 4


# -- learning ---------------------------------------------------------------------------------------


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


# -- the line ---------------------------------------------------------------------------------------


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


# -- CPUs, RAM, threads -----------------------------------------------------------------------------


def test_four_jobs_at_once_share_the_cores() -> None:
    """Jobs that declare nothing get equal parts of the cores, counted with those that wait."""
    stage = Stage(8000, cpus=8)
    jobs = stage.ask_together(*[{"memory_mib": 10}] * 4)
    assert [job.lease.threads for job in jobs if job.lease] == [2, 2, 2, 2]


def test_a_share_is_at_least_one_thread() -> None:
    """More jobs than cores: one thread each."""
    stage = Stage(8000, cpus=2)
    jobs = stage.ask_together(*[{"memory_mib": 10}] * 5)
    assert {job.lease.threads for job in jobs if job.lease} == {1}


def test_declared_cpus_are_the_threads() -> None:
    """Whoever books CPUs gets that many threads."""
    job = Stage(8000, cpus=8).ask(memory_mib=10, cpus=5)
    assert job.lease is not None
    assert job.lease.threads == 5


def test_cpus_are_booked_and_awaited() -> None:
    """A wish for more CPUs than are free waits with numbers, one for more than exist is refused."""
    stage = Stage(8000, cpus=4)
    first = stage.ask(memory_mib=10, cpus=3)
    second = stage.ask(memory_mib=10, cpus=2)
    assert second.told == "2 CPUs asked, 1 of 4 free"
    never = stage.ask(memory_mib=10, cpus=5)
    assert never.refused is not None
    assert "5 CPUs asked, this machine offers 4" in never.refused.message
    assert stage.ask(memory_mib=10).runs
    stage.finish(first)
    assert second.runs


# -- a lease's life ---------------------------------------------------------------------------------


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


# -- inside a lease ---------------------------------------------------------------------------------


def test_a_client_inside_a_lease_gets_that_lease() -> None:
    """Asking again from inside a lease cannot wait for itself: the outer lease is given."""
    stage = Stage(8000)
    outer = stage.ask(whole=True)
    assert outer.lease is not None
    inner = stage.ask("inner", memory_mib=1000, outer=outer.lease.id)
    assert inner.lease is outer.lease


@pytest.mark.parametrize("wish", [{"gpus": 2}, {"memory_mib": 5000}])
def test_more_than_the_outer_lease_has_is_refused(wish: dict[str, int]) -> None:
    """From inside a lease nothing can be added to it, and the error says how much it has."""
    stage = Stage(8000, 8000)
    outer = stage.ask(memory_mib=4000)
    assert outer.lease is not None
    inner = stage.ask("inner", outer=outer.lease.id, **wish)
    assert inner.refused is not None
    assert inner.refused.code == "nested"
    assert "4000 MiB" in inner.refused.message


def test_a_marker_of_a_lease_that_is_gone_is_ignored() -> None:
    """An old marker in the environment makes an ordinary request."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=1000, outer="t-77")
    assert job.lease is not None
    assert job.lease.id != "t-77"


# -- faults -----------------------------------------------------------------------------------------


def test_a_lost_device_is_left_out_and_comes_back() -> None:
    """A device that cannot be read takes nobody; the others go on; it returns by itself."""
    stage = Stage(8000, 8000)
    stage.states["GPU-0000"] = DeviceState.LOST
    stage.look()
    assert stage.ask(whole=True).at == (1,)
    late = stage.ask(whole=True)
    assert "device 0: lost (as told)" in late.told
    stage.states.clear()
    stage.look()
    assert late.at == (0,)


def test_what_was_seen_on_a_device_stays_while_it_cannot_be_read() -> None:
    """Unknown is not nothing: memory last seen still counts."""
    stage = Stage(10000)
    stage.know("job", 3000)
    job = stage.ask()
    stage.hold(job, 5000)
    stage.states["GPU-0000"] = DeviceState.STALE
    job.held.clear()
    stage.look()
    assert stage.free() == 5000


def test_a_device_of_unknown_use_is_leased_whole() -> None:
    """Where the driver tells nothing of the memory in use, one lease has the device alone."""
    stage = Stage(8000)
    stage.know("job", 100)
    reading = ev.Reading("GPU-0000", DeviceState.OK, "", None, None, None, {})
    stage.step(ev.Sampled(0.0, (reading,), {}))
    assert stage.ask().runs
    assert stage.ask().waits


def test_a_grant_that_no_journal_keeps_is_taken_back() -> None:
    """A failing disk refuses what was just granted and what is asked, and heals by itself."""
    stage = Stage(8000)
    stage.ask(memory_mib=1000)
    waiter = stage.ask(whole=True)
    job = stage.ask(memory_mib=2000, priority=1)
    assert job.lease is not None
    stage.step(ev.DiskFailed(0.0, (job.lease.id,), "disk full"))
    assert job.refused is not None
    assert job.refused.code == "disk"
    assert stage.free() == 7000
    refused = stage.ask(memory_mib=1).refused
    assert refused is not None
    assert "disk full" in refused.message
    assert stage.reason(waiter) == "disk full"
    stage.step(ev.DiskHealed(0.0))
    stage.settle()
    assert stage.ask(memory_mib=1000, priority=1).runs


def test_a_broker_that_leaves_grants_nothing_new() -> None:
    """While it shuts down, requests are refused and running jobs left alone."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=1000)
    stage.machine.closing = True
    refused = stage.ask(memory_mib=1000).refused
    assert refused is not None
    assert refused.code == "shutting-down"
    assert job.runs


# -- a new broker -----------------------------------------------------------------------------------


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


def _returns(stage: Stage, job: Job, *, claimed: set[str], alive: set[str]) -> None:
    event = ev.Returned(
        stage.now, job.request.owner, "s", frozenset(claimed), frozenset(alive)
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
