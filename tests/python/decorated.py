"""Functions under `@grn.job`, in a module that a fresh process can import."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

import grn
from grn.testing.cuda import OutOfMemory
from tests.python.bodies import hold, holders, told

SEEN: list[object] = []


@grn.job
def train(rate: float, *, epochs: int = 1) -> dict[str, Any]:
    """Return what was given, and where this runs."""
    SEEN.append(rate)
    return {"loss": rate * epochs, "pid": os.getpid(), **told()}


@grn.job()
def with_brackets() -> int:
    """Return the process."""
    return os.getpid()


@grn.job(isolate=False)
def in_place(value: object) -> dict[str, Any]:
    """Change a global variable."""
    SEEN.append(value)
    return {"pid": os.getpid(), **told()}


@grn.job(isolate=False)
def in_place_until(go_on: threading.Event, inside: threading.Event) -> str:
    """Stay until told."""
    inside.set()
    assert go_on.wait(60)
    return os.environ["GRN_LEASE"]


@grn.job(memory=4000)
def outer() -> dict[str, Any]:
    """Call another job, directly and in threads."""
    found: list[dict[str, Any]] = [inner()]
    crew = [threading.Thread(target=lambda: found.append(inner())) for _ in range(3)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return {"pid": os.getpid(), "lease": os.environ["GRN_LEASE"], "inner": found}


@grn.job
def inner() -> dict[str, Any]:
    """Say where it runs."""
    return {"pid": os.getpid(), "lease": os.environ["GRN_LEASE"]}


@grn.job(isolate=True)
def inner_apart() -> dict[str, Any]:
    """Say where it runs."""
    return {"pid": os.getpid(), "lease": os.environ["GRN_LEASE"]}


@grn.job
def outer_of_apart() -> dict[str, Any]:
    """Call a job that wants a process of its own."""
    return {"pid": os.getpid(), "lease": os.environ["GRN_LEASE"], "inner": inner_apart()}


@grn.job
def factorial(number: int) -> int:
    """Call itself."""
    return number * factorial(number - 1) if number else 1


class BoomError(Exception):
    """An error with a payload."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@grn.job
def fail(code: int) -> None:
    """Raise."""
    raise BoomError(code)


@grn.job
def run_out(mib: int) -> None:
    """Run out of device memory."""
    hold(mib)
    raise OutOfMemory("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.")


@grn.job
def be_killed(number: int) -> None:
    """Die of a signal."""
    os.kill(os.getpid(), number)
    signal.pause()


@grn.job
def hold_memory(mib: int) -> dict[str, str]:
    """Hold device memory until the broker has seen it."""
    hold(mib).release()
    return told()


@grn.job(type="{function} batch={batch}")
def by_batch(batch: int, folder: str, together: int) -> int:
    """Hold what a batch needs, beside others."""
    cuda = hold(batch)
    seen = holders(folder, together)
    cuda.release()
    return seen


@grn.job
def seeded(seed: int, folder: str, together: int) -> int:
    """Hold 2000 MiB, whatever the seed, beside others."""
    del seed
    cuda = hold(2000)
    seen = holders(folder, together)
    cuda.release()
    return seen


CALLS = "CALLS"


def note(word: str) -> None:
    """Write a word down where the test finds it."""
    with open(os.environ[CALLS], "a", encoding="ascii") as file:
        file.write(f"{word}\n")


@grn.job
def heavy(size: int, *, epochs: int) -> str:
    """Be the real thing."""
    note(f"real {size} {epochs} {os.environ['GRN_MEM_MIB']}")
    hold(size).release()
    return "real"


@heavy.profile
def light(size: int, *, epochs: int) -> str:
    """Be measured in its place."""
    note(f"light {size} {epochs}")
    hold(size).release()
    return "light"


@grn.job(memory=1000)
async def fetch(number: int) -> tuple[int, int, str]:
    """Be asynchronous."""
    await asyncio.sleep(0)
    return number, os.getpid(), os.environ["GRN_LEASE"]


@grn.job(isolate=False)
async def fetch_in_place(number: int) -> tuple[int, int, str]:
    """Be asynchronous in the caller's loop."""
    await asyncio.sleep(0.05)
    return number, os.getpid(), os.environ["GRN_LEASE"]


def _say_who(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(str(os.getpid()))


@grn.job
async def stay_async(path: str) -> None:
    """Stay until it is cancelled."""
    _say_who(path)
    await asyncio.sleep(600)


@grn.job
def stay(path: str) -> None:
    """Stay until it is stopped."""
    _say_who(path)
    time.sleep(600)


class Trainer:
    """Has methods that are jobs."""

    def __init__(self, size: int) -> None:
        self.size = size

    @grn.job
    def fit(self, times: int) -> tuple[int, int]:
        """Be a method."""
        return self.size * times, os.getpid()

    @staticmethod
    @grn.job
    def check(number: int) -> tuple[int, int]:
        """Be a static method."""
        return number, os.getpid()

    @grn.job
    @staticmethod
    def check_too(number: int) -> tuple[int, int]:
        """Be a static method, decorated the other way round."""
        return number, os.getpid()

    @classmethod
    @grn.job
    def make(cls, size: int) -> tuple[str, int, int]:
        """Be a class method."""
        return cls.__name__, size, os.getpid()


@grn.job
def knobs() -> dict[str, str | None]:
    """Read what JAX and TensorFlow would read when they are imported."""
    names = ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH")
    return {name: os.environ.get(name) for name in names} | {"loaded": str("torch" in sys.modules)}


@grn.job(affinity=True, cpus=1)
def bound() -> tuple[list[int], list[int]]:
    """Return the cores of this thread, and those of the lease."""
    return cores_here()


@grn.job(affinity=True, cpus=1, isolate=False)
def bound_in_place() -> tuple[list[int], list[int]]:
    """Do the same in the caller's process."""
    return cores_here()


def cores_here() -> tuple[list[int], list[int]]:
    """Return the cores of this thread, and those of the lease that it runs in."""
    with grn.Client() as client:
        leases = client.status()["leases"]
    (booked,) = [x["cores"] for x in leases if x["id"] == os.environ["GRN_LEASE"]]
    return sorted(os.sched_getaffinity(0)), booked
