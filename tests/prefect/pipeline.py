"""A flow of flows: for each data set three sub-flows of four stages, each stage a command of its own.

Tasks are called, not submitted, as pipelines around a command line often have it; one fails once. The last stages of
both data sets wait for each other, each in its share of the device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from prefect import flow, task

from grn_plugins.prefect import GRNTaskRunner, gpu, leased

STAGES = ("prepare", "pretrain", "train", "evaluate")
SIZES = {"large": "8000MiB", "small": "2000MiB"}
FOLDER = sys.argv[1] if len(sys.argv) > 1 else ""


@task(retries=2)
@leased(type="{size}")
def stage(data: str, branch: str, size: str, name: str, folder: str) -> None:
    """Run one stage; note when. Evaluation of one branch fails at the first try."""
    begun = time.monotonic()
    words = ["--memory", SIZES[size], "--seconds", "0.5"]
    first = os.path.join(folder, "failed-once")
    if (data, branch, name) == ("b", "teacher", "evaluate") and not os.path.exists(first):
        with open(first, "w", encoding="ascii"):
            words += ["--exit-code", "1"]
    if (branch, name) == ("alone", "evaluate"):
        with open(os.path.join(folder, f"there-{data}"), "w", encoding="ascii"):
            other = "b" if data == "a" else "a"
        words += ["--until-file", os.path.join(folder, f"there-{other}")]
    done = subprocess.run([sys.executable, "-m", "grn.testing.job", *words], check=False)
    run = [data, branch, name, size, begun, time.monotonic(), done.returncode]
    with open(os.path.join(folder, "runs"), "a", encoding="ascii") as file:
        file.write(json.dumps(run) + "\n")
    if done.returncode:
        raise RuntimeError(f"{name} has ended with {done.returncode}")


@flow
def branch(data: str, name: str, size: str, folder: str) -> None:
    """Run the stages of one training, one after the other."""
    for each in STAGES:
        stage(data, name, size, each, folder)


@task
@gpu(None)  # no wish of its own: a thread of the flow
def data_set(data: str, folder: str) -> None:
    """Train the large one first, then both small ones."""
    branch(data, "teacher", "large", folder)
    branch(data, "distilled", "small", folder)
    branch(data, "alone", "small", folder)


@flow(task_runner=GRNTaskRunner())
def study(folder: str) -> None:
    """Fan out over data sets."""
    for each in data_set.map(["a", "b"], folder):
        each.result()


if __name__ == "__main__":
    study(FOLDER)
