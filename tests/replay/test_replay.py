"""The replay: the same figures each time, the broker's own decisions, and nothing lost on the way."""

from __future__ import annotations

import pytest

from grn.replay.policies import POLICIES, Run, names_from, run
from grn.replay.world import WorldOptions
from grn.rules.waiting import STRETCH
from tests.replay.made import DEVICE_MIB, Overseer, assert_all_ended_once, job, made_jobs

WORLD = WorldOptions(devices=4, device_mib=DEVICE_MIB)
OURS = ("spread", "pack", "spread/declared", "spread/run-time", "oracle", "oracle/run-time")


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_ends_once_and_no_device_overflows(name: str) -> None:
    """Whatever decides, each job has its runs, and memory that is not there is not held."""
    overseer = Overseer()
    jobs = made_jobs(3, jobs=80 if name == "grn0" else 300, jitter=0.3, single=name == "grn0")
    figures = run(name, jobs, Run(WORLD, check=overseer))
    assert_all_ended_once(jobs, overseer)
    assert figures.jobs == len(jobs)
    assert 0 < overseer.most_held_mib <= DEVICE_MIB


@pytest.mark.parametrize("name", ["grn0", "fgd", "spread", "pack/run-time"])
def test_the_same_seed_gives_the_same_figures(name: str) -> None:
    """A figure can be checked by whoever has the trace."""
    first, second = (run(name, made_jobs(5, jobs=80, single=True), Run(WORLD)) for _ in range(2))
    assert first == second
    assert first != run(name, made_jobs(6, jobs=80, single=True), Run(WORLD))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("jitter", [0.03, 0.4])
def test_the_parts_decide_as_the_whole_machine(name: str, jitter: float) -> None:
    """The replay drives parts of the broker's mind; all of it, with its promises checked, agrees."""
    parts, whole = (made_jobs(7, jobs=160, jitter=jitter) for _ in range(2))
    figures = run(name, parts, Run(WORLD))
    assert figures == run(name, whole, Run(WORLD, whole=True))
    assert [(each.started_s, each.ended_s) for each in parts] == [
        (each.started_s, each.ended_s) for each in whole
    ]


def test_who_dies_of_memory_is_charged() -> None:
    """A job that is given up waits to the end of the trace: failing fast does not look fast."""
    jobs = made_jobs(2, jobs=80, single=True, jitter=0.3)
    figures = run("grn0", jobs, Run(WorldOptions(devices=4, device_mib=DEVICE_MIB, tries=1)))
    last = max(each.ended_s for each in jobs)
    failed = [each for each in jobs if each.failed]
    assert figures.failed == len(failed) > 0
    assert figures.ooms == len(failed)
    assert figures.jct_charged_s > figures.jct_mean_s
    assert figures.wait_max_s == max(last - each.arrival_s for each in failed)


def test_nobody_starves_by_the_order_of_run_times() -> None:
    """A long job is overtaken by a stream of short ones, but only for its own length times `STRETCH`."""
    whole = {"compute": 1.0, "peak_mib": 9000}
    taught = [
        job(0, 0, 200, 9000, **whole, type="long"),
        job(1, 0, 10, 9000, **whole, type="short"),
    ]
    first = job(2, 300, 10, 9000, **whole, type="short")
    long = job(3, 301, 200, 9000, **whole, type="long")
    stream = [job(4 + n, 302 + 9.0 * n, 10, 9000, **whole, type="short") for n in range(1000)]
    jobs = [*taught, first, long, *stream]
    run("spread/run-time", jobs, Run(WorldOptions(devices=1, device_mib=DEVICE_MIB)))
    overtaken_by = [each for each in stream if each.started_s < long.started_s]
    assert len(overtaken_by) > 100
    assert all(each.arrival_s <= long.arrival_s + STRETCH * 200 for each in overtaken_by)
    assert long.started_s <= long.arrival_s + STRETCH * 200 * 10 / 9 + 20


def test_probes_are_counted() -> None:
    """A first run keeps others away for a while, which costs, if little."""
    assert 0 < run("spread", made_jobs(1), Run(WORLD)).probes < 0.2
    assert run("oracle", made_jobs(1), Run(WORLD)).probes == 0


def test_what_cannot_run_is_left_out_or_refused() -> None:
    """The original system knows no jobs of several devices."""
    from grn.errors import UsageError

    assert "grn0" not in names_from("all", made_jobs(1))
    assert "grn0" in names_from("all", made_jobs(1, single=True))
    with pytest.raises(UsageError, match="--single"):
        names_from("grn0", made_jobs(1))
    with pytest.raises(UsageError, match="best-fit"):
        names_from("bestfit", made_jobs(1))
