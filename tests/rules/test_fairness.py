"""Turns between submitters, aging, and how many of a kind may run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.errors import UsageError
from grn.rules.fairness import Limits, parse_limits
from grn.rules.foresight import answered_at_once
from grn.rules.model import Owner, Request
from grn.rules.waiting import WaitingLine
from tests.rules.acting import Job, Stage

ALICE, BOB = Owner(100, 1, uid=1000), Owner(200, 1, uid=1001)


def in_order(jobs: list[Job]) -> list[Job]:
    """Sort jobs by when they were granted."""
    return sorted(jobs, key=lambda job: (job.granted_s or 0.0, job.request.ticket))


@pytest.mark.parametrize(("share", "before_bob"), [("off", 50), ("user", 2), ("client", 2)])
def test_a_sweep_does_not_bury_a_colleagues_single_job(share: str, before_bob: int) -> None:
    """With fair shares it is next but one, whatever the length of the sweep."""
    stage = Stage(1000, line=WaitingLine(share))
    sweep = [stage.ask(owner=ALICE, memory_mib=1000, runs_s=1) for _ in range(50)]
    single = stage.ask(owner=BOB, memory_mib=1000, runs_s=1)
    stage.run_all()
    assert in_order([*sweep, single]).index(single) == before_bob
    assert all(job.ended_s for job in sweep)


def test_two_sweeps_take_turns_and_nothing_is_gained_by_having_waited_for_nothing() -> None:
    """Who comes later gets every second device from then on, and no more."""
    stage = Stage(1000, line=WaitingLine("user"))
    early = [stage.ask(owner=ALICE, memory_mib=1000, runs_s=1) for _ in range(20)]
    late: list[Job] = []
    for _ in range(5):
        stage.at(10.5, lambda: late.append(stage.ask(owner=BOB, memory_mib=1000, runs_s=1)))
    stage.run_all()
    after = [job for job in in_order([*early, *late]) if (job.granted_s or 0) > 10.5]
    owners = [job.request.owner.uid for job in after[:10]]
    assert owners in ([1000, 1001] * 5, [1001, 1000] * 5)


def test_shares_of_clients_are_of_one_process_each() -> None:
    """Two workflows of one user take turns; by user they are one submitter."""
    for share, second in (("client", 2), ("user", 5)):
        stage = Stage(1000, line=WaitingLine(share))
        one, other = Owner(1, 1, uid=7), Owner(2, 1, uid=7)
        jobs = [stage.ask(owner=one, memory_mib=1000, runs_s=1) for _ in range(5)]
        last = stage.ask(owner=other, memory_mib=1000, runs_s=1)
        stage.run_all()
        assert in_order([*jobs, last]).index(last) == second


def test_a_higher_priority_goes_before_all_turns() -> None:
    """Turns are taken among equals."""
    stage = Stage(1000, line=WaitingLine("user"))
    jobs = [stage.ask(owner=ALICE, memory_mib=1000, runs_s=1) for _ in range(3)]
    stage.ask(owner=BOB, memory_mib=1000, runs_s=1)
    urgent = stage.ask(owner=ALICE, memory_mib=1000, runs_s=1, priority=1)
    stage.run_all()
    assert urgent.granted_s == jobs[0].ended_s


@given(
    st.lists(
        st.tuples(st.sampled_from([ALICE, BOB]), st.integers(0, 2), st.booleans()), max_size=40
    )
)
def test_the_line_keeps_all_that_wait(steps: list[tuple[Owner, int, bool]]) -> None:
    """Whatever joins and leaves, turns reorder: none is lost, and each submitter keeps its order."""
    line = WaitingLine("user")
    waiting: list[Request] = []
    for ticket, (owner, priority, leave) in enumerate(steps):
        if leave and waiting:
            gone = waiting.pop(0)
            assert line.remove(gone.ticket, granted=bool(priority)) is gone
        else:
            waiting.append(Request(ticket, "t", owner, priority=priority, arrived_s=float(ticket)))
            line.add(waiting[-1])
        order = list(line)
        assert sorted(order, key=lambda r: r.ticket) == waiting
        for who in (ALICE, BOB):
            own = [r for r in order if r.owner == who]
            assert own == sorted(own, key=lambda r: (-r.priority, r.arrived_s))


def test_waiting_is_worth_priority_where_aging_is_asked_for() -> None:
    """What has waited a step longer than the other's lead goes first."""
    line = WaitingLine(aging_s=60)
    line.add(Request(1, "t", ALICE, priority=0, arrived_s=0))
    line.add(Request(2, "t", ALICE, priority=1, arrived_s=59))
    line.add(Request(3, "t", ALICE, priority=1, arrived_s=61))
    assert [request.ticket for request in line] == [2, 1, 3]


def test_a_limit_holds_back_its_own_kind_only() -> None:
    """The others go on, the reason has numbers, and the next starts when one has ended."""
    stage = Stage(8000, limits=Limits(parse_limits("train*=2, label:night*=1")))
    first, second, third = (
        stage.ask("train.py", memory_mib=100, runs_s=n, label="day") for n in (5, 9, 1)
    )
    other = stage.ask("eval.py", memory_mib=100, runs_s=1, label="night 1")
    late = stage.ask("eval.py", memory_mib=100, runs_s=1, label="night 2")
    assert (first.runs, second.runs, other.runs) == (True, True, True)
    assert stage.reason(third) == "2 of at most 2 jobs of type train* run already"
    assert stage.reason(late) == "1 of at most 1 jobs of label night* run already"
    assert stage.ask("eval.py", memory_mib=100).runs
    wishes = [Request(-n, "train.py", ALICE, memory_mib=100) for n in (1, 2)]
    assert answered_at_once(stage.machine, wishes, stage.now) == [False, False]
    stage.run_all()
    assert third.granted_s == first.ended_s == 5
    assert late.granted_s == other.ended_s == 1


def test_each_user_counts_by_themselves() -> None:
    """`user:*` is each of them; a name is looked up, and the text that is kept has its number."""
    limits = parse_limits("user:*=2, user:carol=1", {"carol": 7}.__getitem__)
    assert ", ".join(map(str, limits)) == "user:*=2, user:7=1"
    held = Limits(limits)
    carol = Owner(3, 3, 7)
    for owner in (ALICE, ALICE, BOB, carol):
        held.add(Request(1, "t", owner))
    assert held.reached(Request(2, "t", ALICE)) == "2 of at most 2 jobs of user 1000 run already"
    assert held.reached(Request(2, "t", BOB)) == ""
    assert held.reached(Request(2, "t", carol)) == "1 of at most 1 jobs of user 7 run already"
    held.count([])
    assert held.reached(Request(2, "t", ALICE)) == ""


@pytest.mark.parametrize(
    "text",
    ["train", "train=", "train=0", "=2", "label:=2", "a=1,b=x", "user:=1", "user:x=1", "user:a*=1"],
)
def test_a_limit_that_says_nothing_is_refused(text: str) -> None:
    """It is named."""
    with pytest.raises(UsageError, match="limit"):
        parse_limits(text)
