"""Who gets a device, which one, and how much of it; what is booked beside it; what faults do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from grn.rules import events as ev
from grn.rules.model import DeviceState, End, Policy
from tests.rules.acting import Job, Stage

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


# -- which device ---------------------------------------------------------------------------------


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


# -- how much -------------------------------------------------------------------------------------


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


# -- CPUs, RAM, threads ---------------------------------------------------------------------------


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


# -- inside a lease -------------------------------------------------------------------------------


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


# -- faults ---------------------------------------------------------------------------------------


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
