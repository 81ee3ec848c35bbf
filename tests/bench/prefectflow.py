"""One measure of a Prefect flow, in a process of its own: prints one JSON object.

    python -m tests.bench.prefectflow tasks grn 100 3
    python -m tests.bench.prefectflow start 20
    python -m tests.bench.prefectflow waiting grn 500 5

Its environment says which server and which broker.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from typing import Any

from prefect import flow, task
from prefect.context import SettingsContext
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner

from grn_plugins.prefect import GRNTaskRunner, gpu_options
from grn_plugins.prefect.bodies import Bodies

__all__: list[str] = []

_SETTLED_S = 2.0
_release = threading.Event()


def _runner(name: str) -> Any:
    if name == "thread":
        return ThreadPoolTaskRunner()
    return ProcessPoolTaskRunner(2) if name == "process" else GRNTaskRunner(memory=1000)


@task
def add(number: int) -> int:
    """Do next to nothing."""
    return number + 1


@task
def moment() -> float:
    """Tell when it begins."""
    return time.monotonic()


@task
def block(_: int) -> None:
    """Wait for the end, in a thread of Prefect's own runner."""
    _release.wait()


def _tasks(name: str, count: int, rounds: int) -> dict[str, Any]:
    times: list[float] = []

    @flow(task_runner=_runner(name))
    def trivial() -> None:
        begun = time.perf_counter()
        for future in [add.submit(number) for number in range(count)]:
            future.result()
        times.append((time.perf_counter() - begun) * 1000 / count)

    for _ in range(rounds):
        trivial()
    return {"cold_ms": times[0], "warm_ms": min(times[1:] or times)}


def _start(count: int) -> dict[str, Any]:
    begun: list[float] = []
    plain = Bodies.run

    def timed(self: Bodies, *args: Any, **kwargs: Any) -> Any:
        begun.append(time.monotonic())
        return plain(self, *args, **kwargs)

    Bodies.run = timed  # type: ignore[method-assign]

    @flow(task_runner=GRNTaskRunner())
    def starting() -> list[float]:
        with gpu_options(gpus=0):  # no lease: the process alone
            began = [moment.submit().result() for _ in range(count)]
        return [(end - start) * 1000 for start, end in zip(begun, began, strict=True)]

    starting()
    begun.clear()
    return {"ms": starting()}


def _waiting(name: str, count: int, wait_s: float) -> dict[str, Any]:
    """Have tasks wait: for a device that somebody else has, or in threads."""
    told: dict[str, Any] = {}

    @flow(task_runner=_runner(name))
    def waiting() -> None:
        before = time.process_time()
        work = add if name == "grn" else block
        for number in range(count):
            work.submit(number)
        _settle()
        told["entered_s"] = time.process_time() - before
        before = time.process_time()
        time.sleep(wait_s)
        told["waited_s"] = time.process_time() - before
        _release.set()
        raise RuntimeError("enough: what waits is cancelled")

    waiting(return_state=True)
    return told


def _settle() -> None:
    """Wait until all have begun to wait, and Prefect has been told: this process uses no CPU any more."""
    while True:
        before = time.process_time()
        time.sleep(_SETTLED_S)
        if time.process_time() - before < 0.05 * _SETTLED_S:
            return


def main() -> None:
    """Measure what the arguments say."""
    warnings.simplefilter("ignore")
    what, *words = sys.argv[1:]
    assert SettingsContext.get() is not None
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        if what == "tasks":
            told = _tasks(words[0], int(words[1]), int(words[2]))
        elif what == "start":
            told = _start(int(words[0]))
        else:
            told = _waiting(words[0], int(words[1]), float(words[2]))
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
