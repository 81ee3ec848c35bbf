"""A flow whose broker is killed on the way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S
from tests.reliability import fire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.prefect.conftest import Flows

pytestmark = pytest.mark.xdist_group("prefect")

_FLOW = """
import sys
from prefect import flow, task
from grn_plugins.prefect import GRNTaskRunner
from tests.reliability.fire import work as really

@task
def work(folder, name):
    really(folder, name)

@flow(task_runner=GRNTaskRunner(gpus=1, memory={mib}))
def many(folder, count):
    for future in [work.submit(folder, str(n)) for n in range(count)]:
        future.result()

if __name__ == "__main__":
    many(sys.argv[1], int(sys.argv[2]))
"""


def test_each_task_is_done_once(flows: Callable[..., Flows]) -> None:
    """Two hundred tasks under three brokers that are killed: each done once, no MiB given twice."""
    made = flows(fire.DEVICES)
    logs = made.path("logs")
    os.mkdir(logs)
    flow = made.start(_FLOW.format(mib=fire.MIB), "flows.py", logs, str(fire.TASKS))
    assert fire.kill_brokers(made.env, logs, lambda: flow.poll() is None) == 3
    said, _ = flow.communicate(timeout=8 * PATIENCE_S)
    assert flow.returncode == 0, said
    fire.judge(made.env, logs)
