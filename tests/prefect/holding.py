"""A flow of three tasks, each of which holds a whole device until a mark is gone."""

from __future__ import annotations

import json
import os
import sys
import time

from prefect import flow, task

from grn_plugins.prefect import GRNTaskRunner


@task
def hold(mark: str, name: str) -> tuple[str, str, float, float]:
    """Hold a device."""
    begun = time.monotonic()
    with open(f"{mark}.{os.getpid()}.{name}", "w", encoding="ascii"):
        pass
    while os.path.exists(mark):
        time.sleep(0.02)
    return name, os.environ["CUDA_VISIBLE_DEVICES"], begun, time.monotonic()


@flow(task_runner=GRNTaskRunner(memory="whole"))
def holding(mark: str, name: str) -> None:
    """Note what was held, and when."""
    for each in hold.map([mark] * 3, name):
        with open(os.path.join(os.path.dirname(mark), "held"), "a", encoding="ascii") as file:
            file.write(json.dumps(each.result()) + "\n")


if __name__ == "__main__":
    holding(sys.argv[1], sys.argv[2])
