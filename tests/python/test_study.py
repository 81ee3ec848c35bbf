"""Studies: many trials on a few workers, some of which raise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

WORKERS = """
import grn, json, os, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import multiprocessing as mp
from tests.python.bodies import told

class Pruned(Exception): ...

@grn.job(memory=5000)
def trial(number):
    if number % {every} == {fails}:
        raise Pruned(number)
    return number, told()["CUDA_VISIBLE_DEVICES"]

def in_block(number):
    with grn.lease(memory=5000, type="trial") as lease:
        lease.apply()
        if number % {every} == {fails}:
            raise Pruned(number)
        return number, os.environ["CUDA_VISIBLE_DEVICES"]

def run(pool, work):
    with pool:
        calls = [pool.submit(work, number) for number in range({trials})]
        ends = [(type(call.exception()).__name__, call) for call in calls]
        good = [call.result() for kind, call in ends if kind == "NoneType"]
        return {{"failed": sum(kind == "Pruned" for kind, _ in ends), "good": good}}

if __name__ == "__main__":
    pools = {{
        "threads": lambda: ThreadPoolExecutor(4),
        "fork": lambda: ProcessPoolExecutor(4, mp.get_context("fork")),
        "spawn": lambda: ProcessPoolExecutor(4, mp.get_context("spawn")),
    }}
    kind, work = sys.argv[1:]
    print(json.dumps(run(pools[kind](), {{"job": trial, "block": in_block}}[work])))
"""


def study(made: Scripts, kind: str, work: str, **numbers: int) -> dict[str, Any]:
    """Run a study; return how many trials failed, and what the others returned."""
    done = made.run(WORKERS.format(**numbers), kind, work, PYTHONWARNINGS="ignore")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_nothing_is_left(made: Scripts) -> None:
    """All devices are free, nobody waits."""
    status = made.env.status()
    assert not status["leases"]
    assert not status["waiters"]
    assert all(x["free_mib"] == x["total_mib"] for x in status["devices"])


@pytest.mark.parametrize("kind", ["fork", "spawn", "threads"])
def test_fifty_trials_on_four_workers(scripts: Callable[..., Scripts], kind: str) -> None:
    """Every trial runs, those that raise are the caller's to see, and nothing leaks."""
    made = scripts("sim:4x8000MiB")
    result = study(made, kind, "job", trials=50, every=5, fails=1)
    assert result["failed"] == 10
    assert [number for number, _ in result["good"]] == [n for n in range(50) if n % 5 != 1]
    assert {mask for _, mask in result["good"]} <= {"0", "1", "2", "3"}
    check_nothing_is_left(made)


@pytest.mark.parametrize("work", ["job", "block"])
def test_failing_trials_keep_no_device(scripts: Callable[..., Scripts], work: str) -> None:
    """As many trials as there are devices raise first; the others run all the same."""
    made = scripts("sim:4x8000MiB")
    result = study(made, "fork", work, trials=8, every=2, fails=0)
    assert result["failed"] == 4
    assert sorted(number for number, _ in result["good"]) == [1, 3, 5, 7]
    check_nothing_is_left(made)


def test_workers_that_are_killed_keep_no_device(scripts: Callable[..., Scripts]) -> None:
    """A pool whose worker dies in a trial leaves every device free."""
    made = scripts("sim:2x8000MiB")
    script = made.write(
        "import grn, os, signal\n"
        "with grn.lease(memory='whole') as lease:\n"
        "    lease.apply()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for _ in range(4):
        made.python(script, status=-9)
    eventually(lambda: not made.env.status()["leases"], PATIENCE_S)
    check_nothing_is_left(made)
