"""A job that calls a job that calls a job: nobody waits for himself, and nobody takes more than there is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

JOBS = """
import asyncio, grn, json, os, sys, threading

@grn.job(memory=4000)
def outer(work):
    return work(), os.environ["GRN_LEASE"]

@grn.job(memory=3000)
def middle(mib):
    with grn.lease(memory=mib) as lease:
        return lease.id

@grn.job(memory=3000)
def again(depth):
    return 0 if depth == 0 else 1 + again(depth - 1)

def blocks():
    with grn.lease(memory=3000) as one, grn.lease(memory=3000) as two:
        return one.id == two.id

@grn.job(memory=3000)
async def several():
    return await asyncio.gather(*(part(number) for number in range(3)))

@grn.job(memory=2000)
async def part(number):
    await asyncio.sleep(0)
    return number

def beside():
    # Each waits for room that the other has, not for itself.
    met = []
    def work():
        met.append(middle(2000))
    threads = [threading.Thread(target=work) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return len(met)

def asks_too_much():
    try:
        middle(3001)
    except grn.GrnError as error:
        return str(error)

WORK = {
    "calls": lambda: middle(2000), "recursion": lambda: again(3), "blocks": blocks,
    "tasks": lambda: asyncio.run(several()), "threads": beside, "too much": asks_too_much,
}
if __name__ == "__main__":
    print(json.dumps(outer(WORK[sys.argv[1]])))
"""


@pytest.fixture
def call(scripts: Callable[..., Scripts]) -> Callable[[str], Any]:
    """Return a function that runs one of the jobs above; nothing may be left of it."""
    made = scripts("sim:1x8000MiB")

    def run(work: str) -> Any:
        done = made.run(JOBS, work, PYTHONWARNINGS="ignore")
        status = made.env.status()
        assert not status["leases"]
        assert not status["waiters"]
        return json.loads(done.stdout)

    return run


def test_a_call_within_a_call_is_a_part_of_it(call: Callable[[str], Any]) -> None:
    """Sizes that together are more than the outermost lease has do not hang: they are nested."""
    inner, lease = call("calls")
    assert inner == lease


def test_a_job_may_call_itself(call: Callable[[str], Any]) -> None:
    """Each level has the size that it declares, inside that of the level above."""
    assert call("recursion")[0] == 3


def test_blocks_in_blocks_are_parts_too(call: Callable[[str], Any]) -> None:
    """The inner `with` does not wait for the end of the outer one."""
    assert call("blocks")[0] is True


def test_tasks_of_a_call_are_within_it(call: Callable[[str], Any]) -> None:
    """Of three tasks of 2000 MiB in a call of 3000 one runs at a time, and all get their turn."""
    assert call("tasks")[0] == [0, 1, 2]


def test_threads_beside_each_other_are_added_up(call: Callable[[str], Any]) -> None:
    """Two calls of 3000 MiB in a lease of 4000 follow each other."""
    assert call("threads")[0] == 2


def test_more_than_the_call_above_has_is_refused(call: Callable[[str], Any]) -> None:
    """With its numbers, and at once."""
    assert "3000 MiB each: 1 with 3001 MiB cannot be added" in call("too much")[0]
