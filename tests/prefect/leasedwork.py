"""What the tests of `@leased` have called. Light, as each process may import it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any, NamedTuple

from prefect.logging import get_run_logger
from prefect.runtime import task_run

from grn_plugins.prefect import leased

__all__ = [
    "Place",
    "counts",
    "fails_first",
    "gone",
    "leaves",
    "lists",
    "says",
    "sleeps",
    "sleeps_async",
    "wants_more",
    "where",
    "where_async",
]


class Place(NamedTuple):
    """Where a call ran."""

    mask: str
    pid: int
    lease: str
    booked: str


def _place() -> Place:
    env = os.environ
    return Place(env["CUDA_VISIBLE_DEVICES"], os.getpid(), env["GRN_LEASE"], env["GRN_MEM_MIB"])


def _touch(mark: str) -> None:
    with open(f"{mark}.{os.getpid()}", "w", encoding="ascii"):
        pass


@leased(memory="whole")
def where(until: int = 0, mark: str = "") -> Place:
    """Tell; first wait until so many have come as far."""
    if mark:
        _touch(mark)
        folder = os.path.dirname(mark)
        while len(os.listdir(folder)) < until:
            time.sleep(0.01)
    return _place()


@leased(memory="whole")
async def where_async() -> Place:
    """Do the same, in an event loop."""
    await asyncio.sleep(0)
    return _place()


@leased(memory="whole")
def sleeps(mark: str) -> None:
    """Be there for long."""
    _touch(mark)
    time.sleep(3600)


@leased(memory="whole")
async def sleeps_async(mark: str) -> None:
    """Do the same, in an event loop."""
    _touch(mark)
    await asyncio.sleep(3600)


@leased()
def gone() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


@leased(gpus=1)
def lists(count: int) -> Any:
    """Yield numbers."""
    yield from range(count)


@leased(type="{function} {size}", memory="1GiB")
def counts(size: int) -> int:
    """Return what it was given."""
    return size


@leased(memory="1000MiB")
def fails_first(mark: str) -> Place:
    """Be killed at the first try."""
    tries = len([name for name in os.listdir(os.path.dirname(mark)) if "." in name])
    _touch(mark)
    if not tries:
        os.kill(os.getpid(), signal.SIGKILL)
    return _place()


@leased(memory="1000MiB")
def wants_more(mark: str) -> Place:
    """Run out of the device's memory at the first try."""
    tries = len([name for name in os.listdir(os.path.dirname(mark)) if "." in name])
    _touch(mark)
    if not tries:
        raise RuntimeError("CUDA error: out of memory")
    return _place()


@leased()
def says(word: str) -> str:
    """Log, print, and tell in which task run."""
    get_run_logger().warning("logged %s", word)
    print("printed", word)  # noqa: T201
    return str(task_run.id)


@leased()
def leaves() -> None:
    """Leave as a program does."""
    raise SystemExit(3)
