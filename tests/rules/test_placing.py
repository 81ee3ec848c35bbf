"""What can never be met, what a request takes where, and what is kept for the head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grn.rules import events as ev
from grn.rules.model import DeviceState, End, LeaseState, Policy
from tests.rules.acting import Job, Stage, devices

OOM = End(exit_code=1, said_oom=True)


def _refusal(job: Job) -> str:
    assert job.refused is not None
    assert job.refused.code == "impossible"
    return job.refused.message


# -- what can never be met --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "numbers"),
    [
        ({"gpus": 3}, ["3 devices asked", "2"]),
        ({"memory_mib": 8001}, ["8001 MiB", "8000 MiB"]),
        ({"gpus": 2, "memory_mib": 5000}, ["2 devices with 5000 MiB", "1 of that size"]),
        ({"cpus": 9}, ["9 CPUs asked", "8"]),
        ({"ram_mib": 1001}, ["1001 MiB of RAM asked", "1000 MiB"]),
        ({"gpus": 2, "allowed": frozenset({"GPU-0000"})}, ["2 devices asked", "leaves 1 of 2"]),
        ({"allowed": frozenset()}, ["1 device asked", "CUDA_VISIBLE_DEVICES", "leaves 0 of 2"]),
    ],
)
def test_the_impossible_is_refused_with_wish_and_limit(
    wish: dict[str, Any], numbers: list[str]
) -> None:
    """A request that this machine can never meet never queues, and is told both numbers."""
    stage = Stage(8000, 4000, ram_mib=1000)
    message = _refusal(stage.ask(**wish))
    for number in numbers:
        assert number in message


def test_a_machine_without_devices_refuses_those_who_want_one() -> None:
    """No device is managed: a wish for one is refused, a wish for none is met."""
    stage = Stage()
    assert "1 device asked" in _refusal(stage.ask())
    assert stage.ask(gpus=0).runs
    assert stage.ask(gpus=None).runs


def test_what_is_possible_on_an_idle_machine_waits_on_a_busy_one() -> None:
    """Only sizes and counts that never change make a request impossible, not today's use."""
    stage = Stage(8000, ram_mib=1000)
    stage.others(0, 7999)
    assert stage.ask(memory_mib=8000).waits
    stage.states["GPU-0000"] = DeviceState.LOST
    stage.look()
    assert stage.ask(memory_mib=100).waits


def test_unknown_ram_refuses_nobody() -> None:
    """Where the RAM is not known no wish for it can be too large."""
    assert Stage(8000, ram_mib=None).ask(memory_mib=1, ram_mib=1 << 30).runs


@pytest.mark.parametrize("wish", [{}, {"whole": True}, {"memory_mib": 100}, {"gpus": 2}])
def test_devices_that_are_kept_back_as_a_whole_refuse_everybody(wish: dict[str, Any]) -> None:
    """With a headroom as large as the devices nobody would ever be granted anything."""
    stage = Stage()
    kept_back = [replace(device, headroom_mib=8000) for device in devices([8000, 8000])]
    stage.machine.step(ev.Found(0.0, tuple(kept_back), ""))
    assert "take all of the 8000 MiB" in _refusal(stage.ask(**wish))
    assert stage.ask(gpus=0).runs


def test_a_mask_narrows_the_choice() -> None:
    """A request is placed only on devices that its client may see."""
    stage = Stage(8000, 8000, 8000)
    assert stage.ask(memory_mib=100, allowed=frozenset({"GPU-0002"})).at == (2,)


# -- what it takes ----------------------------------------------------------------------------------


def test_a_declared_size_needs_no_first_run_alone() -> None:
    """Whoever says what it needs shares a device from its first run on."""
    stage = Stage(8000)
    first, second = stage.ask("new", memory_mib=3000), stage.ask("new", memory_mib=3000)
    assert first.runs
    assert second.runs
    assert first.lease is not None
    assert first.lease.state is LeaseState.RUNNING


def test_a_declared_size_below_what_was_seen_is_raised() -> None:
    """A type that is known to take more than it declares books what it takes."""
    stage = Stage(8000)
    stage.know("job", 5000)
    assert stage.ask(memory_mib=3000).booked_mib == 5000
    assert stage.ask("other", memory_mib=3000).booked_mib == 3000


def test_whole_takes_all_and_stays_alone() -> None:
    """A whole-device lease books all that is free and lets nobody beside it."""
    stage = Stage(8000)
    job = stage.ask(whole=True)
    assert job.booked_mib == 8000
    assert stage.ask(memory_mib=0).waits


def test_whole_beside_little_memory_of_others_takes_the_rest() -> None:
    """A desktop session on the device does not stop a whole-device lease; half of it does."""
    stage = Stage(8000)
    stage.others(0, 500)
    job = stage.ask(whole=True)
    assert job.booked_mib == 7500
    stage.finish(job)
    stage.others(0, 4001)
    assert stage.ask(whole=True).waits


def test_another_model_counts_with_a_tenth_on_top() -> None:
    """What one model taught is booked with a margin on another, without a new first run."""
    stage = Stage(8000, 8000, models=["A", "B"])
    stage.know("job", 1000, "A")
    job = stage.ask(allowed=frozenset({"GPU-0001"}))
    assert job.booked_mib == 1100


def test_a_run_without_figures_does_not_hold_up_its_siblings() -> None:
    """A type that cannot be measured runs one per device, on all devices at once."""
    stage = Stage(8000, 8000)
    stage.finish(stage.ask("quick"))
    jobs = [stage.ask("quick") for _ in range(3)]
    assert [job.runs for job in jobs] == [True, True, False]


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("declared", [6000, None])
def test_a_device_too_small_for_the_job_is_never_chosen(
    policy: Policy, declared: int | None
) -> None:
    """On mixed cards a job waits for a card that is large enough instead of dying on a small one."""
    stage = Stage(4000, 10000)
    stage.know("job", 6000)
    stage.ask("there", memory_mib=5000, allowed=frozenset({"GPU-0001"}))
    job = stage.ask(memory_mib=declared, policy=policy)
    assert job.waits
    stage.finish(next(iter(stage.running())))
    assert job.at == (1,)


def test_learnt_beyond_every_device_gets_the_largest_alone() -> None:
    """A type that took more elsewhere than any device here has gets all of the largest one."""
    stage = Stage(4000, 6000)
    stage.know("job", 9000)
    job = stage.ask(policy=Policy.PACK)
    assert job.at == (1,)
    assert job.booked_mib == 6000
    assert stage.ask("small", memory_mib=1000, policy=Policy.SPREAD).at == (0,)


def test_several_devices_of_several_models_book_the_same_on_each() -> None:
    """The larger need of two models is set aside on both devices, or the request waits."""
    stage = Stage(8000, 8000, models=["A", "B"])
    stage.know("job", 5000, "A")
    stage.know("job", 3000, "B")
    there = stage.ask("there", memory_mib=4000, allowed=frozenset({"GPU-0001"}))
    pair = stage.ask(gpus=2)
    assert pair.waits
    stage.finish(there)
    assert pair.booked_mib == 5000


def test_alone_on_one_device_is_alone_on_all() -> None:
    """Two devices of which one is too small for sharing wait until both are empty."""
    stage = Stage(4000, 10000)
    stage.know("job", 6000)
    there = stage.ask("there", memory_mib=1000, allowed=frozenset({"GPU-0001"}))
    pair = stage.ask(gpus=2)
    assert pair.waits
    stage.finish(there)
    assert pair.at == (0, 1)
    assert stage.ask("late", memory_mib=1).waits


def test_a_pair_uses_the_two_that_are_large_enough() -> None:
    """A small third device does not make two large ones whole-device leases."""
    stage = Stage(4000, 10000, 10000)
    stage.know("job", 6000)
    pair = stage.ask(gpus=2, policy=Policy.PACK)
    assert pair.at == (1, 2)
    assert pair.booked_mib == 6000


# -- what is kept for the head ----------------------------------------------------------------------


def test_the_reservation_stays_where_it_is() -> None:
    """Another device that empties in the meantime serves the head, or others; none is kept twice."""
    stage = Stage(8000, 8000)
    first, second = stage.ask(whole=True), stage.ask(whole=True)
    head = stage.ask("head", whole=True)
    kept = stage.machine.reservation
    assert kept is not None
    assert list(kept.needs_mib) == ["GPU-0000"]
    stage.finish(second)
    assert head.at == (1,)
    assert stage.machine.reservation is None
    assert first.runs


def test_what_is_kept_does_not_move() -> None:
    """Once a device drains for the head it goes on draining, also if another one looks better."""
    stage = Stage(8000, 8000)
    for index, count in ((0, 2), (1, 3)):
        for _ in range(count):
            stage.ask(memory_mib=2000, allowed=frozenset({f"GPU-{index:04d}"}))
    assert stage.ask("head", whole=True).waits
    for job in [job for job in stage.running() if job.at == (1,)][:2]:
        stage.finish(job)
    assert stage.ask(memory_mib=1000, policy=Policy.PACK).at == (1,)


def test_the_head_reserves_where_the_fewest_must_end() -> None:
    """The device that needs fewer ends is the one that is kept."""
    stage = Stage(8000, 8000)
    for mib in (2000, 2000, 2000):
        stage.ask(memory_mib=mib, allowed=frozenset({"GPU-0000"}))
    stage.ask(memory_mib=6000, allowed=frozenset({"GPU-0001"}))
    stage.ask("head", memory_mib=8000)
    kept = stage.machine.reservation
    assert kept is not None
    assert list(kept.needs_mib) == ["GPU-0001"]


@pytest.mark.parametrize("late", [{"whole": True}, {"type": "unknown"}, {"memory_mib": 5000}])
def test_an_empty_device_is_kept_for_a_head_that_waits_for_a_second(late: dict[str, Any]) -> None:
    """What a request for two devices holds back stays free of whole-device jobs and first runs."""
    stage = Stage(8000, 8000)
    there = stage.ask(whole=True)
    head = stage.ask(gpus=2, memory_mib=4000)
    assert head.waits
    assert stage.ask(late.pop("type", "job"), **late).waits
    stage.finish(there)
    assert head.at == (0, 1)


def test_a_head_that_must_be_alone_is_delayed_by_anything() -> None:
    """Not even a job of no size is put on the device that a whole-device head waits for."""
    stage = Stage(8000)
    stage.ask(memory_mib=1000)
    assert stage.ask(whole=True).waits
    assert stage.ask(memory_mib=0).waits


def test_a_head_that_cannot_run_yet_keeps_nothing() -> None:
    """A request that waits for others' memory to go does not hold up those behind it."""
    stage = Stage(8000)
    stage.others(0, 4000)
    assert stage.ask(memory_mib=6000).waits
    assert stage.ask(memory_mib=4000).runs


def test_a_reason_names_the_head_as_the_cause() -> None:
    """Who would fit but for the head is told so."""
    stage = Stage(8000)
    stage.ask(memory_mib=4000)
    stage.ask(whole=True)
    late = stage.ask(memory_mib=1000)
    assert "kept for the request at the head of the queue" in late.told


def test_cpus_are_kept_for_a_head_that_lacks_them_only() -> None:
    """A job without devices passes a head that waits for a device, not one that waits for CPUs."""
    stage = Stage(8000, cpus=4)
    there = stage.ask(whole=True, cpus=2)
    head = stage.ask(whole=True, cpus=2)
    assert head.waits
    busy = stage.ask("cpu", gpus=0, cpus=2)
    assert busy.runs
    stage.finish(there)
    assert head.runs
    last = stage.ask(gpus=0, cpus=4)
    behind = stage.ask(gpus=0, cpus=1)
    stage.finish(busy)
    assert last.waits
    assert behind.waits
    assert "kept for the request at the head" in stage.reason(behind)


def test_a_type_that_keeps_dying_of_memory_ends_up_alone() -> None:
    """The third out-of-memory in a row gives the next run a device for itself."""
    stage = Stage(100000)
    stage.know("job", 1000)
    for _ in range(3):
        stage.finish(stage.ask(), OOM)
    stage.ask()
    assert stage.ask("late", memory_mib=1).waits


def test_long_reasons_stay_short() -> None:
    """With many devices a reason names some and counts the rest."""
    stage = Stage(*[1000] * 30)
    for _ in range(30):
        stage.ask(whole=True)
    told = stage.ask(whole=True).told
    assert "more" in told
    assert len(told) < 1000


def test_only_the_largest_device_will_do() -> None:
    """What asks for the largest waits for it while a smaller one is free; two take the two largest."""
    stage = Stage(4000, 8000, 6000)
    first = stage.ask(memory_mib=7000)
    assert first.at == (1,)
    alone = stage.ask(whole=True, largest=True)
    assert alone.waits
    stage.finish(first)
    assert alone.at == (1,)
    pair = stage.ask(whole=True, largest=True, gpus=2)
    stage.finish(alone)
    assert sorted(pair.at) == [1, 2]


def test_the_largest_of_what_is_allowed() -> None:
    """A caller's mask narrows what counts as largest."""
    stage = Stage(4000, 8000, 6000)
    allowed = frozenset({"GPU-0000", "GPU-0002"})
    assert stage.ask(whole=True, largest=True, allowed=allowed).at == (2,)
