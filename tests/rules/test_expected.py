"""When requests that wait would start, if jobs run as long as jobs of their types did."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grn.rules import events as ev
from grn.rules import expected
from grn.rules.expected import Expectations, Forecast, expected_starts, forecasts, typical_s
from grn.rules.fairness import Limits, parse_limits
from grn.rules.model import DeviceState, End, Owner, Policy, Request
from grn.rules.waiting import WaitingLine
from tests.rules.acting import MODEL, Job, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grn.rules.machine import Machine

ENOUGH = 3
"""So many runs that the placer counts on their length, too."""


def learn(stage: Stage, job_type: str, mib: int, *ran_s: float, model: str = MODEL) -> None:
    """Let a type be known by measured runs of these lengths."""
    for ran in ran_s:
        stage.profiles.of(job_type, model).succeeded(mib, ran, "sampled")


def expected_of(stage: Stage, *jobs: Job) -> list[float | None]:
    """Ask, and see that nothing has changed."""
    before = told_of(stage.machine)
    starts = expected_starts(stage.machine, stage.now)
    stage.machine.check_invariants()
    assert told_of(stage.machine) == before
    assert set(starts) == {request.ticket for request in stage.machine.line}
    return [starts[job.request.ticket] for job in jobs]


def told_of(machine: Machine) -> object:
    """All that a look ahead could spoil."""
    ledger = machine.ledger
    return deepcopy(
        (
            [(book.free_mib, book.bookings, book.alone) for book in ledger.books],
            (ledger.cpus, ledger.ram, list(machine.leases), list(machine.line)),
            (machine.reservation, machine.placer.now, machine.dirty, machine.profiles.all()),
        )
    )


# -- one thing at a time --------------------------------------------------------------------------


def test_who_waits_starts_when_what_runs_has_ended() -> None:
    """The typical run time counts from the start of the job, not from the question."""
    stage = Stage(10000)
    learn(stage, "long", 8000, 100)
    learn(stage, "next", 8000, 30)
    stage.ask("long")
    first, second = stage.ask("next"), stage.ask("next")
    stage.run_until(40)
    assert expected_of(stage, first, second) == [100, 130]


def test_several_share_what_becomes_free() -> None:
    """As many start at one moment as the placer lets."""
    stage = Stage(10000)
    learn(stage, "long", 8000, 100)
    learn(stage, "small", 3000, 20)
    stage.ask("long")
    jobs = [stage.ask("small") for _ in range(7)]
    assert expected_of(stage, *jobs) == [100, 100, 100, 120, 120, 120, 140]


def test_what_has_no_known_end_is_waited_for_without_a_time() -> None:
    """And whoever finds room elsewhere has one."""
    stage = Stage(10000, 10000)
    learn(stage, "known", 8000, 50)
    stage.ask("mystery", memory_mib=8000)
    stage.ask("known")
    first, second = stage.ask("known"), stage.ask("known")
    assert expected_of(stage, first, second) == [50, 100]
    both = stage.ask("known", gpus=2)
    assert expected_of(stage, both) == [None]


def test_a_run_time_on_the_way_that_is_not_known() -> None:
    """What would start before, and for nobody knows how long, hides all that comes after it."""
    stage = Stage(10000)
    learn(stage, "known", 8000, 50)
    stage.ask("known")
    mystery, after = stage.ask("mystery", memory_mib=8000), stage.ask("known")
    assert expected_of(stage, mystery, after) == [50, None]


def test_a_probe_has_no_known_end() -> None:
    """Nor do those start that wait for what it teaches; a probe that has to wait starts itself."""
    stage = Stage(10000)
    learn(stage, "known", 8000, 50)
    stage.ask("known")
    probe, sibling = stage.ask("new"), stage.ask("new")
    assert expected_of(stage, probe, sibling) == [50, None]
    stage.run_until(50)
    stage.finish(next(job for job in stage.jobs.values() if job.runs))
    assert probe.runs
    assert expected_of(stage, sibling) == [None]


def test_a_type_that_cannot_be_measured_has_run_times_all_the_same() -> None:
    """Its runs are alone, one after the other on one device."""
    stage = Stage(10000)
    stage.profiles.of("cpu only", MODEL).succeeded(None, 10, "")
    stage.ask("cpu only")
    jobs = [stage.ask("cpu only") for _ in range(2)]
    assert expected_of(stage, *jobs) == [10, 20]


def test_what_is_overdue_is_about_to_end() -> None:
    """It has run longer than any of its type did."""
    stage = Stage(10000)
    learn(stage, "late", 8000, 10, 20, 30)
    stage.ask("late")
    job = stage.ask("late")
    assert expected_of(stage, job) == [20]
    stage.run_until(25)
    assert expected_of(stage, job) == [30]
    stage.run_until(31)
    assert expected_of(stage, job) == [31]


def test_run_times_of_another_model_tell_nothing() -> None:
    """Its memory does; how fast the device is nobody has seen."""
    stage = Stage(10000, models=["slow"])
    learn(stage, "job", 8000, 10, model="fast")
    stage.ask("job")
    assert expected_of(stage, stage.ask("job")) == [None]


@pytest.mark.parametrize(("passed_s", "start"), [(5, 5), (15, None)])
def test_memory_that_outlives_its_job(passed_s: float, start: float | None) -> None:
    """It goes within moments, or nobody knows when."""
    stage = Stage(10000)
    learn(stage, "job", 8000, 10)
    first = stage.ask("job")
    stage.hold(first, 8000)
    waits = stage.ask("job")
    stage.finish(first, holds_on=True)
    assert waits.waits
    stage.run_until(passed_s)
    assert expected_of(stage, waits) == [start]


def test_a_device_that_is_not_well_is_not_counted_on() -> None:
    """Nobody knows when it will be."""
    stage = Stage(10000)
    learn(stage, "job", 8000, 10)
    stage.states["GPU-0000"] = DeviceState.LOST
    stage.look()
    assert expected_of(stage, stage.ask("job")) == [None]


def test_nothing_is_expected_while_nothing_is_granted() -> None:
    """A full disk keeps all waiting, for nobody knows how long."""
    stage = Stage(10000)
    learn(stage, "job", 8000, 10)
    stage.ask("job")
    job = stage.ask("job")
    stage.step(ev.DiskFailed(0.0, (), "no space left"))
    assert expected_of(stage, job) == [None]


def test_jobs_without_a_device_wait_for_cpus_of_which_no_end_is_known() -> None:
    """Nothing is learnt of the run times of what uses no device."""
    stage = Stage(10000, cpus=4)
    stage.ask("host", gpus=None, cpus=3)
    assert expected_of(stage, stage.ask("host", gpus=None, cpus=3)) == [None]


def test_submitters_take_turns() -> None:
    """Those who had fewer turns are expected first, and the turns of the copy are its own."""
    stage = Stage(10000, line=WaitingLine("user"))
    learn(stage, "job", 8000, 10)
    many, one = Owner(1, 1, 1), Owner(2, 2, 2)
    stage.ask("job", owner=many)
    first, second, third = (stage.ask("job", owner=many) for _ in range(3))
    late, later = (stage.ask("job", owner=one) for _ in range(2))
    assert expected_of(stage, first, second, third, late, later) == [10, 30, 50, 20, 40]
    assert expected_of(stage, first, second, third, late, later) == [10, 30, 50, 20, 40]


def test_a_part_of_the_multiprocessors_is_booked() -> None:
    """Memory alone would let them run side by side."""
    stage = Stage(10000)
    learn(stage, "job", 1000, 10)
    stage.ask("job", compute=60)
    first, second = stage.ask("job", compute=60), stage.ask("job", compute=60)
    assert expected_of(stage, first, second) == [10, 20]


def test_an_exact_fit_behind_a_head() -> None:
    """The last MiB of another device may be used."""
    stage = Stage(10000, 10000)
    learn(stage, "job", 6000, 10)
    stage.ask_together({"job_type": "job"}, {"job_type": "job"})
    head = stage.ask("whole", whole=True)
    exact = stage.ask("rest", memory_mib=4000)
    assert exact.runs
    again = stage.ask("rest", memory_mib=4000)
    assert expected_of(stage, head, again) == [10, 10]


@pytest.mark.parametrize("bound", ["MOST_WAITERS", "MOST_ENDS", "MOST_DECISIONS"])
def test_the_look_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Beyond the bound nothing is said."""
    stage = Stage(10000)
    learn(stage, "job", 8000, 10)
    stage.ask("job")
    jobs = [stage.ask("job") for _ in range(10)]
    assert expected_of(stage, *jobs) == list(range(10, 101, 10))
    monkeypatch.setattr(expected, bound, 4)
    starts = expected_of(stage, *jobs)
    known = [start for start in starts if start is not None]
    assert 1 <= len(known) <= 4
    assert starts == [*range(10, 10 * len(known) + 1, 10), *[None] * (10 - len(known))]


def test_the_answer_is_kept_for_a_second() -> None:
    """However many ask; then it is worked out anew, if anything happened."""
    stage = Stage(10000)
    learn(stage, "job", 8000, 10)
    stage.ask("job")
    told = Expectations()
    assert told.at(stage.machine, 0.0) == {}
    job = stage.ask("job")
    assert told.at(stage.machine, 0.9) == {}
    assert told.at(stage.machine, 1.0) == {
        job.request.ticket: Forecast(10, ("GPU-0000",), probe=False)
    }
    learn(stage, "job", 8000, 20)
    assert told.at(stage.machine, 5.9) == {
        job.request.ticket: Forecast(10, ("GPU-0000",), probe=False)
    }
    assert told.at(stage.machine, 6.0) == {
        job.request.ticket: Forecast(15, ("GPU-0000",), probe=False)
    }


def test_what_is_only_thought_of_waits_with_the_others() -> None:
    """It is foretold where and when it would start; nobody who waits is held up by it."""
    stage = Stage(10000, 4000)
    learn(stage, "job", 8000, 10)
    stage.ask("job")
    job = stage.ask("job")
    thought = Request(1 << 60, "job", Owner(1, 1), arrived_s=stage.now)
    known = forecasts(stage.machine, stage.now, thought)
    assert known == {
        job.request.ticket: Forecast(10, ("GPU-0000",), probe=False),
        thought.ticket: Forecast(20, ("GPU-0000",), probe=False),
    }
    new = Request(1 << 60, "new", Owner(1, 1), arrived_s=stage.now)
    known = forecasts(stage.machine, stage.now, new)
    assert known[new.ticket] == Forecast(0, ("GPU-0001",), probe=True)
    assert [request.ticket for request in stage.machine.line] == [job.request.ticket]


@pytest.mark.parametrize(
    ("durations", "ran_s", "typical"),
    [
        ([], 0, None),
        ([], 5, None),
        ([10], 0, 10),
        ([30, 10, 20], 0, 20),
        ([10, 20, 30, 50], 0, 25),
        ([10, 20, 30, 50], 15, 30),
        ([10, 20], 20, 20),
        ([10, 20], 21, 21),
    ],
)
def test_typical(durations: list[float], ran_s: float, typical: float | None) -> None:
    """The median of the runs that lasted at least as long."""
    assert typical_s(durations, ran_s) == typical


# -- against the machine itself -------------------------------------------------------------------

MIB = {"small": 1500, "middle": 3000, "large": 6000, "whole": 10000}
RAN_S = {"small": 3, "middle": 10, "large": 17}
"""How long they run each time; the others never end."""

WISHES = st.fixed_dictionaries(
    {"job_type": st.sampled_from(["small", "small", "middle", "large", "whole", "new"])},
    optional={
        "gpus": st.sampled_from([None, 0, 1, 2]),
        "memory_mib": st.sampled_from([500, 4000, 8000]),
        "cpus": st.integers(1, 4),
        "compute": st.sampled_from([30, 60]),
        "priority": st.integers(-1, 1),
        "policy": st.sampled_from(list(Policy)),
        "largest": st.booleans(),
        "allowed": st.sampled_from([frozenset({"GPU-0000"}), frozenset({"GPU-0000", "GPU-0001"})]),
        "owner": st.builds(Owner, st.integers(1, 2), st.just(1), st.integers(1, 3)),
    },
)
ARRIVALS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 4]), WISHES), min_size=1, max_size=14)
MACHINES = st.fixed_dictionaries(
    {"cpus": st.just(6)},
    optional={
        "line": st.builds(
            WaitingLine, st.sampled_from(["off", "user", "client"]), st.sampled_from([None, 5.0])
        ),
        "limits": st.sampled_from(["small=2", "*=3"]).map(lambda text: Limits(parse_limits(text))),
    },
)


def go_on(stage: Stage, until_s: float = float("inf")) -> None:
    """Let jobs run exactly as learnt; what happens at one moment is decided together."""
    while True:
        ends = {
            job.request.ticket: job.granted_s + RAN_S[job.request.type]
            for job in stage.jobs.values()
            if job.runs and job.at and job.request.type in RAN_S and job.granted_s is not None
        }
        if not ends or min(ends.values()) > until_s:
            break
        stage.now = min(ends.values())
        for ticket in [ticket for ticket, end in ends.items() if end == stage.now]:
            stage.finish(stage.jobs[ticket], End(exit_code=0), settle=False)
        stage.settle()
    stage.now = min(until_s, stage.now) if until_s == float("inf") else until_s


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([4000, 10000, 10000, 16000]), min_size=2, max_size=4),
    mixed=st.booleans(),
    machine=MACHINES,
    arrivals=ARRIVALS,
    asked_s=st.integers(0, 20),
)
def test_what_is_expected_comes_true(
    sizes: list[int],
    machine: dict[str, Any],
    arrivals: list[tuple[int, Mapping[str, Any]]],
    asked_s: int,
    *,
    mixed: bool,
) -> None:
    """Jobs that run as long as they did start when it was said, and the others never do."""
    machine = deepcopy(machine)
    stage = Stage(
        *sizes, models=[MODEL + "ab"[mixed and i % 2] for i in range(len(sizes))], **machine
    )
    for kind, ran in {**RAN_S, "whole": 0}.items():
        for model in {device.model for device in stage.devices}:
            learn(stage, kind, MIB[kind], *[ran] * (ENOUGH if ran else 1), model=model)
            if not ran:
                stage.profiles.of(kind, model).durations_s.clear()
    for after_s, wish in arrivals:
        go_on(stage, stage.now + after_s)
        stage.ask(**wish)
    go_on(stage, stage.now + asked_s)
    waiting = [job for job in stage.jobs.values() if job.waits]
    starts = expected_of(stage, *waiting)
    go_on(stage)
    assert [job.granted_s for job in waiting] == starts


def test_the_answer_for_many_is_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs more, and most of them wait for long."""
    monkeypatch.setattr(expected, "_LONG_LINE", 1)
    stage = Stage(10000)
    learn(stage, "job", 8000, 10)
    told = Expectations()
    stage.ask("job")
    assert not told.at(stage.machine, 0.0)
    stage.ask("job")
    assert len(told.at(stage.machine, 1.5)) == 1
    stage.ask("job")
    assert len(told.at(stage.machine, 4.0)) == 1
    assert len(told.at(stage.machine, 4.5)) == 2
