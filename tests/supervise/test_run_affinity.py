"""Cores of one's own: what a command is bound to, from its first instruction to its end."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from grn.affinity import bind, request_fields
from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

MINE = sorted(os.sched_getaffinity(0))
CORES = "import os; print(*sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
SHOW = ("--", sys.executable, "-c", CORES)
needs_two = pytest.mark.skipif(len(MINE) < 2, reason="needs two cores")


@pytest.fixture
def run(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[GrnRun]:
    """Return a `GrnRun` whose broker gives out all cores that this test may use."""
    runner = GrnRun(new_env("sim:1x8000MiB", cpu_reserve=0), tmp_path)
    yield runner
    runner.close()


def shown(run: GrnRun, *args: str) -> list[int]:
    """Run a command that tells its cores, and the threads that it was told, and return them."""
    done = run("-q", "--gpus=0", *args, *SHOW)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@needs_two
def test_a_command_is_bound_to_as_many_cores_as_it_booked(run: GrnRun) -> None:
    """It starts bound, and its threads are as many; who does not ask runs anywhere."""
    assert shown(run, "--affinity", "--cpus=1") == [MINE[0], 1]
    assert shown(run, "--cpus=1") == [*MINE, 1]


@needs_two
def test_commands_at_the_same_time_have_different_cores(run: GrnRun) -> None:
    """While one holds its core, another gets another; afterwards the first is free again."""
    code = f"{CORES}; import sys; sys.stdout.flush(); sys.stdin.read()"
    words = ("--affinity", "--cpus=1", "-q", "--gpus=0", "--", sys.executable, "-c", code)
    holder = run.start(*words, stdin=-1)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline().split()[0] == str(MINE[0]).encode()
    (lease,) = run.env.status()["leases"]
    assert lease["cores"] == [MINE[0]]
    core, threads = shown(run, "--affinity", "--cpus=1")
    assert (core in MINE[1:], threads) == (True, 1)
    holder.stdin.close()
    assert holder.wait(60) == 0
    assert shown(run, "--affinity", "--cpus=1") == [MINE[0], 1]


@needs_two
def test_cores_outlive_the_broker_that_gave_them(run: GrnRun) -> None:
    """The next broker knows which ones are in use."""
    words = ("--affinity", "--cpus=1", "-q", "--gpus=0", "--", "sh", "-c", "echo up; cat")
    holder = run.start(*words, stdin=-1)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"up\n"
    run.env.restart()
    (lease,) = run.env.status()["leases"]
    assert lease["cores"] == [MINE[0]]
    core, threads = shown(run, "--affinity", "--cpus=1")
    assert (core in MINE[1:], threads) == (True, 1)
    holder.stdin.close()
    assert holder.wait(60) == 0


@needs_two
def test_a_command_stays_on_the_cores_that_it_was_started_on(run: GrnRun) -> None:
    """Under `taskset` it gets cores of those, and no more threads than them."""
    last = MINE[-1]
    bound = {"preexec_fn": lambda: os.sched_setaffinity(0, {last})}
    done = run("-q", "--gpus=0", "--affinity", "--cpus=2", *SHOW, **bound)
    assert done.stdout.split() == [str(last).encode(), b"1"]


def test_a_fair_share_is_bound_as_well(run: GrnRun) -> None:
    """Commands that run together and declare nothing are bound to their parts of the cores."""
    job = f'{sys.executable} -c "{CORES}"'
    done = run("-q", "--gpus=0", "--affinity", *[job] * len(MINE))
    numbers = [line.split()[-2:] for line in done.stdout.decode().splitlines()]
    assert all(threads == "1" for _, threads in numbers), done.stdout
    assert {int(core) for core, _ in numbers} <= set(MINE)


def test_an_inner_command_runs_where_the_outer_one_does(run: GrnRun) -> None:
    """Inside a lease there are the outer command's cores."""
    inner = [sys.executable, "-m", "grn", "run", "-q", "--gpus=none", "--affinity", *SHOW]
    done = run("-q", "--gpus=0", "--affinity", "--cpus=1", "--", *inner)
    assert [int(word) for word in done.stdout.split()] == [MINE[0], 1], done.stderr


def test_cores_that_cannot_be_had_are_not_claimed(run: GrnRun) -> None:
    """Whoever asks inside a command that is not bound runs, and is told."""
    inner = [sys.executable, "-m", "grn", "run", "--gpus=none", "--affinity", *SHOW]
    done = run("-q", "--gpus=0", "--cpus=1", "--", *inner)
    assert [int(word) for word in done.stdout.split()] == [*MINE, 1]
    assert b"not bound to cores" in done.stderr


def test_a_command_that_cannot_be_bound_runs_all_the_same() -> None:
    """Cores of another world are an error of the kernel's, and are told."""
    pid = os.fork()
    if not pid:
        os._exit(0 if bind([60_000]) and not bind(request_fields()["core_ids"]) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert bind([]) == "the broker gave it no cores"
