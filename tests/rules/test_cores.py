"""Which cores a lease is bound to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grn.rules.cores import Core, choose_cores
from grn.rules.model import LeaseState
from tests.rules.acting import Job, Stage

PLAIN = [Core(number, number) for number in range(8)]
THREADED = [Core(number, number % 4) for number in range(8)]
"""Four physical cores of two threads: 0 and 4 are one, 1 and 5 another."""


def stage(**machine: Any) -> Stage:
    """Make a machine of one device and four physical cores of two threads."""
    return Stage(8000, cpus=8, core_map=THREADED, **machine)


def bound(job: Job) -> tuple[int, ...]:
    """Return the cores of a job."""
    assert job.lease is not None
    return job.lease.cores


# -- the choice -------------------------------------------------------------------------------------


def test_unused_cores_come_first() -> None:
    """Two leases share no core while there are others."""
    assert choose_cores(PLAIN, 2, held=[(0, 1), (4,)]) == (2, 3)


def test_whole_physical_cores_come_first() -> None:
    """Two threads of one lease share a physical core, so that others need not."""
    assert choose_cores(THREADED, 2, held=[]) == (0, 4)
    assert choose_cores(THREADED, 3, held=[(0, 4)]) == (1, 2, 5)


def test_single_threads_are_spread_over_physical_cores() -> None:
    """A job of one thread gets a physical core to itself while there is one."""
    assert choose_cores(THREADED, 1, held=[(0,)]) == (1,)
    assert choose_cores(THREADED, 1, held=[(0,), (1,), (2,), (3,)]) == (4,)


def test_when_all_are_taken_the_least_used_are_shared() -> None:
    """Nobody waits for a core of his own."""
    held = [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 4, 5, 6)]
    assert choose_cores(PLAIN, 2, held=held) == (3, 7)


def test_only_cores_that_the_client_may_use_are_chosen() -> None:
    """Under `taskset` or Slurm a job stays where it was put; there may be fewer than wanted."""
    assert choose_cores(PLAIN, 3, held=[(6,)], allowed={6, 7, 99}) == (6, 7)
    assert choose_cores(PLAIN, 3, held=[], allowed={99}) == ()


@given(
    st.lists(st.integers(1, 8), max_size=6),
    st.sampled_from([PLAIN, THREADED]),
)
def test_cores_are_distinct_as_long_as_there_are_enough(
    wishes: list[int], cores: list[Core]
) -> None:
    """However many ask, no core is used twice before all are used once."""
    held: list[tuple[int, ...]] = []
    for wanted in wishes:
        chosen = choose_cores(cores, wanted, held=held)
        assert len(set(chosen)) == wanted
        held.append(chosen)
        uses = [sum(core.id in lease for lease in held) for core in cores]
        assert max(uses) - min(uses) <= 1


# -- in the life of a lease -------------------------------------------------------------------------


def test_a_lease_is_only_bound_if_it_asks() -> None:
    """Whoever does not ask runs anywhere, and takes no core from those that do."""
    here = stage()
    assert bound(here.ask(gpus=None, cpus=4)) == ()
    assert bound(here.ask(gpus=None, cpus=4, affinity=True)) == (0, 1, 4, 5)


def test_declared_cpus_are_as_many_cores() -> None:
    """Two leases that fill the machine have nothing in common."""
    here = stage()
    first, second = (here.ask(gpus=None, cpus=4, affinity=True) for _ in range(2))
    assert set(bound(first)) | set(bound(second)) == set(range(8))


def test_the_fair_share_is_as_many_cores_for_who_declares_none() -> None:
    """Four at once on eight cores have two each, all different."""
    here = stage()
    wish = {"gpus": None, "affinity": True}
    jobs = here.ask_together(*[wish] * 4)
    assert [len(bound(job)) for job in jobs] == [2] * 4
    assert sorted(core for job in jobs for core in bound(job)) == list(range(8))


def test_threads_are_never_more_than_cores() -> None:
    """A job that may only use two cores starts two threads, whatever it booked."""
    job = stage().ask(gpus=None, cpus=4, affinity=True, core_ids=frozenset({2, 6}))
    assert job.lease is not None
    assert (job.lease.cores, job.lease.threads) == ((2, 6), 2)


def test_cores_that_cannot_be_given_are_not_claimed() -> None:
    """A client in another world of cores runs unbound, with its share of threads."""
    job = stage().ask(gpus=None, cpus=4, affinity=True, core_ids=frozenset({77}))
    assert job.lease is not None
    assert (job.lease.cores, job.lease.threads) == ((), 4)


def test_cores_are_free_again_when_the_lease_ends() -> None:
    """The next one gets what the last one had."""
    here = stage()
    first = here.ask(gpus=None, cpus=2, affinity=True)
    cores = bound(first)
    here.run_until(0)
    here.finish(first)
    assert bound(here.ask(gpus=None, cpus=2, affinity=True)) == cores


def test_a_lease_that_drains_keeps_no_cores() -> None:
    """Its main process is over; what is left holds device memory only."""
    here = stage()
    here.know("job", 1000)
    first = here.ask(cpus=2, affinity=True)
    here.run_until(0)
    here.hold(first, 500)
    here.finish(first, holds_on=True)
    assert first.lease is not None
    assert first.lease.state is LeaseState.DRAINING
    assert bound(here.ask(cpus=2, affinity=True)) == bound(first)


def test_a_successor_knows_who_has_which_cores() -> None:
    """After the death of a broker, the next one gives out what is really unused."""
    before, after = stage(), stage()
    held = before.ask(gpus=None, cpus=4, affinity=True)
    after.machine.restore(before.journal, 0.0)
    assert held.lease is not None
    assert after.machine.leases[held.lease.id].cores == bound(held)
    assert not set(bound(after.ask(gpus=None, cpus=4, affinity=True))) & set(bound(held))
