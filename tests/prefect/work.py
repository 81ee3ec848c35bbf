"""Tasks that tests submit. Their bodies run in processes of their own and find this module by name."""
# ruff: noqa: D103, T201 - the names say what they do, and one prints

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import prefect.runtime
from prefect import get_run_logger, task
from prefect.assets import Asset, materialize
from prefect.cache_policies import INPUTS
from prefect.events import emit_event
from prefect.settings import PREFECT_TASKS_REFRESH_CACHE
from prefect.states import Completed, Failed

from grn_plugins.prefect import gpu

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_WITHIN_S = 60.0


def until(path: str) -> None:
    """Wait until there is a file; the test that would make it may have failed."""
    end = time.monotonic() + _WITHIN_S
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.01)


def touch(path: str) -> None:
    """Make a file."""
    with open(path, "a", encoding="ascii"):
        pass


def here() -> dict[str, Any]:
    """Tell where a body runs."""
    return {
        "pid": os.getpid(),
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "lease": os.environ.get("GRN_LEASE"),
        "mib": int(os.environ.get("GRN_MEM_MIB", "0")),
    }


class OutOfMemoryError(RuntimeError):
    """Named as a framework names it."""


@task
def tell(value: Any = None) -> dict[str, Any]:
    return {"value": value, **here()}


@task
def add(one: Any, other: Any = 1) -> Any:
    return one + other


@task
async def tell_async(value: Any = None) -> dict[str, Any]:
    return {"value": value, **here()}


@task
def count(to: int) -> Iterator[int]:
    yield from range(to)


@task
async def count_async(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number


@task
def meet(folder: str, number: int, of: int) -> dict[str, Any]:
    """Return when all are there."""
    touch(f"{folder}/{number}")
    for other in range(of):
        until(f"{folder}/{other}")
    return here()


@task
def fail(text: str = "it fails") -> None:
    raise ValueError(text)


@task
def die(number: int = signal.SIGKILL) -> None:
    os.kill(os.getpid(), number)


@task
def leave() -> None:
    sys.exit(3)


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task(timeout_seconds=0.5)
def sleep_too_long() -> None:
    time.sleep(_WITHIN_S)


@task
def setting() -> bool:
    return bool(PREFECT_TASKS_REFRESH_CACHE.value())


@task
def give_lock() -> Any:
    return threading.Lock()


class Odd(Exception):  # noqa: N818
    """Cannot be pickled as exceptions are."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__("odd")
        self.both = (one, other)
        self.lock = threading.Lock()


@task
def raise_odd() -> None:
    raise Odd(1, 2)


def _try(path: str) -> int:
    """Count the tries; each notes where it ran."""
    with open(path, "a", encoding="ascii") as file:
        file.write("{pid} {lease} {mib}\n".format(**here()))
    with open(path, encoding="ascii") as file:
        return len(file.readlines())


@task(retries=2)
def third_time(path: str) -> int:
    tries = _try(path)
    if tries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if tries == 2:
        raise ValueError("not yet")
    return tries


@task(retries=1)
@gpu(memory=1000)
def too_big_at_first(path: str) -> int:
    if _try(path) == 1:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return here()["mib"]


@task
@gpu(memory=1000)
def run_out(_: Any = None) -> None:
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@task(persist_result=True, cache_policy=INPUTS)
def kept(value: str) -> dict[str, Any]:
    return {"value": value, **here()}


@task(persist_result=True, cache_policy=INPUTS)
def kept_crash(path: str) -> str:
    if _try(path) == 1:
        sys.exit(1)
    return "came back"


@task
def hold(path: str) -> str:
    """Run until a file is there."""
    touch(f"{path}.holds")
    until(f"{path}.end")
    return "held"


@task
def uses(*ends: str) -> Any:
    """Hold device memory for a moment, and return a state, or several, instead of a value."""
    words = [sys.executable, "-m", "grn.testing.job", "--memory=2000MiB", "--seconds=0.5"]
    subprocess.run(words, check=True)
    states = [Completed(data=1) if end == "ok" else Failed(message="gave up") for end in ends]
    return states if states[1:] else states[0]


@task(log_prints=True)
def talk(word: str) -> dict[str, Any]:
    get_run_logger().info("logged %s", word)
    print("printed", word)
    emit_event("grn.test.spoken", {"prefect.resource.id": f"grn.test.{word}"})
    return {
        "task": str(prefect.runtime.task_run.id),
        "flow": prefect.runtime.flow_run.name,
        "parameters": prefect.runtime.flow_run.parameters,
    }


@task
def log_much(size: int) -> None:
    get_run_logger().info("x" * size)


@task
@gpu(0)
def on_cpu() -> dict[str, Any]:
    return here()


@task
@gpu(None)
def in_thread() -> int:
    return os.getpid()


@task
@gpu(memory=1000)
def inner(value: int) -> dict[str, Any]:
    return {"value": value, **here()}


@task
@gpu(memory="whole")
def wants_all(value: int) -> dict[str, Any]:
    return {"value": value, **here()}


@task
@gpu(2)
def wants_two() -> dict[str, Any]:
    return here()


@task
@gpu(0)
def outer_on_cpu(value: int) -> int:
    return int(inner.submit(value).result()["value"])


@task
@gpu(memory="whole")
def outer(value: int) -> list[dict[str, Any]]:
    both = [inner.submit(value), wants_all.submit(value)]
    return [here(), *(each.result() for each in both)]


@task
@gpu(memory=1000)
def outer_of_more() -> None:
    wants_two.submit().result()


@task
def note(path: str, number: int) -> None:
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{number}\n")


@task
def same(value: Any) -> Any:
    return value


@materialize("grn://test/model")
def make_asset() -> int:
    Asset(key="grn://test/model").add_metadata({"loss": 0.5})
    return 1


@task
def talk_twice() -> str:
    """Log by way of a nested task, too."""
    get_run_logger().info("outer logs")
    return str(talk.submit("nested").result()["task"])
