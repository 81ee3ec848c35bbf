"""The flow that the tests of a work pool deploy, and the task that they serve."""

from __future__ import annotations

import os
import time

from prefect import flow, task

from grn_plugins.prefect import GRNTaskRunner, gpu, leased


@task
@gpu(memory="whole")
def hold(mark: str, number: int) -> tuple[int, str, float, float]:
    """Hold a device until the mark is gone; say in which flow, on which device, from when to when."""
    begun = time.monotonic()
    with open(f"{mark}.{os.getpid()}.{number}", "w", encoding="ascii"):
        pass
    while os.path.exists(mark):
        time.sleep(0.02)
    return number, os.environ["CUDA_VISIBLE_DEVICES"], begun, time.monotonic()


@flow(task_runner=GRNTaskRunner(), persist_result=True)
def held(mark: str, number: int, count: int) -> list[tuple[int, str, float, float]]:
    """Hold several."""
    return [each.result() for each in hold.map([mark] * count, [number] * count)]


@task
@leased(memory="whole")
def served(mark: str, number: int) -> tuple[str, int]:
    """Hold a device until the mark is gone, in a process of `task.serve()`'s host."""
    with open(f"{mark}.{os.getpid()}.{number}", "w", encoding="ascii"):
        pass
    while os.path.exists(mark):
        time.sleep(0.02)
    return os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()
