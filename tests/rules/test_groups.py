"""Requests that start together: all members of a group are granted in one step, or none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules import events as ev
from grn.rules.fairness import Limits, parse_limits
from grn.rules.groups import GROUP_WAIT_S
from grn.rules.model import DeviceState, End, Owner
from tests.rules.acting import Job, Stage

UID = 1000


def _member(stage: Stage, name: str = "g", size: int = 2, **wish: Any) -> Job:
    usual = {"memory_mib": 6000, "owner": Owner(500 + len(stage.jobs), 1, UID)}
    return stage.ask(group=name, group_size=size, **{**usual, **wish})


def test_members_hold_nothing_until_all_are_there() -> None:
    """The first one waits, whatever is free; others take what it does not hold."""
    stage = Stage(8000, 8000)
    first = _member(stage)
    assert first.waits
    assert stage.reason(first) == "group 'g' starts together: 1 of 2 members are here"
    assert first.told == stage.reason(first)
    assert stage.ask(memory_mib=8000).runs
    stage.finish(next(job for job in stage.jobs.values() if job.runs))
    second = _member(stage)
    assert first.runs
    assert second.runs
    assert {first.at, second.at} == {(0,), (1,)}


def test_all_or_none() -> None:
    """With room for one of two nobody starts; when there is room for both, both do."""
    stage = Stage(8000, 8000)
    busy = stage.ask(memory_mib=8000)
    first, second = _member(stage), _member(stage)
    assert first.waits
    assert second.waits
    assert stage.reason(first) == "group 'g' starts together: there is room for 1 of its 2 members"
    assert stage.free(1) == 8000
    stage.finish(busy)
    assert first.granted_s == second.granted_s == stage.now
    assert first.runs
    assert second.runs


def test_members_may_share_a_device() -> None:
    """Together they fit like any leases do."""
    stage = Stage(8000)
    members = [_member(stage, size=3, memory_mib=2500) for _ in range(3)]
    assert [job.at for job in members] == [(0,)] * 3


def test_two_groups_do_not_lock_each_other_out() -> None:
    """Both want all there is, and their members arrive in turns: the one that is complete first runs."""
    stage = Stage(8000, 8000)
    a, b = _member(stage, "a"), _member(stage, "b")
    b2, a2 = _member(stage, "b"), _member(stage, "a")
    assert b.runs
    assert b2.runs
    assert a.waits
    assert a2.waits
    stage.finish(b)
    assert a.waits
    stage.finish(b2)
    assert a.runs
    assert a2.runs


def test_a_complete_group_is_not_starved_by_small_jobs() -> None:
    """At the head of the queue its devices are kept for it, as for any request."""
    stage = Stage(8000, 8000)
    small = [stage.ask(memory_mib=4000) for _ in range(4)]
    group = [_member(stage), _member(stage)]
    late = [stage.ask(memory_mib=4000) for _ in range(4)]
    for job in small:
        assert not any(job.runs for job in late)
        stage.finish(job)
    assert all(job.runs for job in group)


def test_a_group_waits_in_the_place_of_its_first_member() -> None:
    """Who came before it is served before it, who came after it is not."""
    stage = Stage(8000, 8000)
    busy = [stage.ask(memory_mib=8000) for _ in range(2)]
    before = stage.ask(memory_mib=8000)
    group = [_member(stage), _member(stage)]
    after = stage.ask(memory_mib=8000)
    stage.finish(busy[0])
    assert before.runs
    stage.finish(busy[1])
    stage.finish(before)
    assert all(job.runs for job in group)
    assert after.waits


def test_a_member_that_gives_up_leaves_its_place_to_another() -> None:
    """Its group is incomplete again, and nothing is kept for it."""
    stage = Stage(8000, 8000)
    busy = stage.ask(memory_mib=8000)
    first, second = _member(stage), _member(stage)
    stage.cancel(second)
    stage.finish(busy)
    assert first.waits
    assert stage.machine.reservation is None
    third = _member(stage)
    assert first.runs
    assert third.runs
    assert second.refused is not None


def test_a_group_that_can_never_run_is_refused_whole() -> None:
    """Each member alone would find room, all of them never do: said as soon as that is known."""
    stage = Stage(8000, 8000)
    members = [_member(stage, size=3) for _ in range(3)]
    for job in members:
        assert job.refused is not None
        assert job.refused.code == "impossible"
        assert "3 members" in job.refused.message
        assert "room for 2 of them" in job.refused.message
    assert stage.ask(memory_mib=8000).runs


@pytest.mark.parametrize(
    ("size", "words"), [(3, "has 2 members by its first one, this one says 3")]
)
def test_members_agree_on_the_size(size: int, words: str) -> None:
    """A mistake in one of them is told to it; the others wait on."""
    stage = Stage(8000, 8000)
    first = _member(stage)
    wrong = _member(stage, size=size)
    assert wrong.refused is not None
    assert words in wrong.refused.message
    assert first.waits
    assert _member(stage).runs


def test_one_too_many_is_told_so() -> None:
    """While the group still waits its name is taken; once it runs the name is free again."""
    stage = Stage(8000, 8000)
    busy = stage.ask(memory_mib=8000)
    group = [_member(stage), _member(stage)]
    extra = _member(stage)
    assert extra.refused is not None
    assert "complete with its 2 members" in extra.refused.message
    stage.finish(busy)
    assert all(job.runs for job in group)
    assert _member(stage).waits


def test_groups_of_two_users_do_not_mix() -> None:
    """A name is a user's own."""
    stage = Stage(8000, 8000)
    mine = _member(stage)
    theirs = _member(stage, owner=Owner(1, 1, UID + 1))
    assert mine.waits
    assert theirs.waits


def test_what_stays_incomplete_is_refused_in_time() -> None:
    """Its members are told how many came, at the time that was allowed for it."""
    stage = Stage(8000, 8000)
    first = _member(stage, size=3)
    stage.now += 100
    second = _member(stage, size=3)
    assert stage.machine.groups.due_s == GROUP_WAIT_S
    stage.now = GROUP_WAIT_S
    stage.machine.dirty = True
    stage.settle()
    for job in (first, second):
        assert job.refused is not None
        assert f"2 of 3 members came within {GROUP_WAIT_S:g} s" in job.refused.message
    assert stage.machine.groups.due_s is None


def test_the_first_runs_of_an_unknown_type_start_together() -> None:
    """All of them are measured, each alone on its device: none may wait for the first one's end."""
    stage = Stage(8000, 8000)
    members = [_member(stage, memory_mib=None) for _ in range(2)]
    assert all(job.runs for job in members)
    assert {job.at for job in members} == {(0,), (1,)}
    for job, mib in zip(members, (3000, 4000), strict=True):
        stage.hold(job, mib)
    for job in members:
        stage.finish(job)
    assert stage.estimate("job") == 4000


def test_ranks_of_several_devices_each() -> None:
    """Two nodes' worth of one machine: two members with two devices each."""
    stage = Stage(8000, 8000, 8000, 8000)
    members = [_member(stage, gpus=2) for _ in range(2)]
    assert sorted(job.at for job in members) == [(0, 1), (2, 3)]


def test_a_member_inside_a_lease_is_decided_there() -> None:
    """Nested jobs share what their outer lease has: nobody waits for a group there."""
    stage = Stage(8000)
    outer = stage.ask(memory_mib=8000)
    assert outer.lease is not None
    inner = _member(stage, outer=outer.lease.id, memory_mib=1000)
    assert inner.runs


def test_everybody_who_waits_is_shown() -> None:
    """Members stand beside each other in the place of the first; incomplete ones come last."""
    stage = Stage(8000)
    stage.ask(memory_mib=8000)
    a = _member(stage, "half")
    b = _member(stage, "g", memory_mib=4000)
    c = stage.ask(memory_mib=8000)
    d = _member(stage, "g", memory_mib=4000)
    shown = [request.ticket for request in stage.machine.groups.everybody()]
    assert shown == [job.request.ticket for job in (b, d, c, a)]
    assert all(stage.machine.reason(ticket) for ticket in shown)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("ask", "ask", "ask", "single", "cancel", "finish", "time")),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_no_group_ever_runs_in_part(steps: list[tuple[str, int]]) -> None:
    """Whatever happens, members start in one step, and in the end everybody is served or told."""
    stage = Stage(8000, 8000)
    sizes = {"a": 2, "b": 3, "c": 1}
    jobs: list[Job] = []
    for what, number in steps:
        waits, runs = [x for x in jobs if x.waits], [x for x in jobs if x.runs]
        if what == "ask":
            name = "abc"[number % 3]
            jobs.append(_member(stage, name, sizes[name], memory_mib=1500 + 1000 * number))
        elif what == "single":
            jobs.append(stage.ask(memory_mib=1000 + 1000 * number))
        elif what == "cancel" and waits:
            stage.cancel(waits[number % len(waits)])
        elif what == "finish" and runs:
            stage.finish(runs[number % len(runs)], End(exit_code=0))
        elif what == "time":
            stage.now += number
    stage.now += 2 * GROUP_WAIT_S
    stage.step(ev.Settle(stage.now))
    while running := stage.running():
        stage.now += 1
        stage.machine.dirty = True
        stage.finish(running[0])
    stage.machine.dirty = True
    stage.settle()
    assert not any(job.waits for job in jobs)
    started: dict[tuple[str, float], int] = {}
    for job in jobs:
        if job.request.group and job.granted_s is not None:
            key = (job.request.group, job.granted_s)
            started[key] = started.get(key, 0) + 1
    assert all(count % sizes[name] == 0 for (name, _), count in started.items())


def test_a_group_that_another_broker_knew_has_its_time_again() -> None:
    """Its members come back one after the other, however long they have waited before."""
    stage = Stage(8000, 8000)
    stage.now = 5000.0
    first = _member(stage, arrived_s=1000.0)
    assert first.waits
    second = _member(stage, arrived_s=1000.0)
    assert first.runs
    assert second.runs


def test_who_gives_up_late_leaves_time_for_another() -> None:
    """A complete group has waited for room, not for members: the time for those begins with the loss."""
    stage = Stage(8000, 8000)
    stage.ask(memory_mib=8000)
    first, second = _member(stage), _member(stage)
    stage.now += GROUP_WAIT_S + 1
    stage.cancel(second)
    assert first.waits
    stage.now += GROUP_WAIT_S - 1
    stage.step(ev.Settle(stage.now))
    assert first.waits
    stage.now += 1
    stage.machine.dirty = True
    stage.settle()
    assert first.refused is not None
    assert "1 of 2 members came within 600 s" in first.refused.message


def test_a_limit_counts_each_member() -> None:
    """Of two places one is taken: both members wait, and say so."""
    stage = Stage(8000, 8000, 8000, limits=Limits(parse_limits("job=2")))
    busy = stage.ask("job", memory_mib=1000)
    first, second = _member(stage), _member(stage)
    assert first.waits
    assert second.waits
    for job in (first, second):
        assert "1 of at most 2 jobs of type job run already, and the 2 members" in stage.reason(job)
    stage.finish(busy)
    assert first.runs
    assert second.runs


def test_a_group_larger_than_its_limit_is_refused() -> None:
    """It could never start."""
    stage = Stage(8000, 8000, 8000, 8000, limits=Limits(parse_limits("user:*=2")))
    members = [_member(stage, size=3) for _ in range(3)]
    text = (
        "group 'g' wants its 3 members to run at once, and at most 2 jobs of user 1000 may (limits)"
    )
    assert [job.refused.message for job in members if job.refused is not None] == [text] * 3


def test_what_is_kept_for_a_group_leaves_a_lost_device() -> None:
    """Small jobs that come and go on the third device do not keep it out for ever."""
    stage = Stage(8000, 8000, 8000)
    small = [stage.ask("s", memory_mib=2000) for _ in range(3)]
    ranks = [_member(stage, memory_mib=8000) for _ in range(2)]
    assert stage.machine.reservation is not None
    kept = set(stage.machine.reservation.needs_mib)
    gone = min(kept)
    stage.states[gone] = DeviceState.LOST
    stage.look()
    stage.settle()
    kept = set(stage.machine.reservation.needs_mib)
    assert kept == {"GPU-0000", "GPU-0001", "GPU-0002"} - {gone}
    for job in small:
        assert job.lease is not None
        if job.lease.uuids != (gone,):
            stage.finish(job)
    assert all(job.runs for job in ranks)


def test_a_member_that_waits_inside_a_lease_that_ends_joins_its_group() -> None:
    """It holds up nobody, and starts with the member that comes after it."""
    stage = Stage(10000)
    outer = stage.ask("outer", memory_mib=4000)
    assert outer.lease is not None
    stage.ask(memory_mib=3000, outer=outer.lease.id)
    first = _member(stage, outer=outer.lease.id, memory_mib=2000)
    assert first.waits
    stage.finish(outer)
    assert stage.reason(first) == "group 'g' starts together: 1 of 2 members are here"
    assert stage.ask(memory_mib=1000).runs
    second = _member(stage, memory_mib=2000)
    assert first.runs
    assert second.runs
