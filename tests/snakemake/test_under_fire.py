"""A workflow whose broker is killed on the way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.env import PATIENCE_S
from tests.reliability import fire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow

_SNAKEFILE = """
    rule all:
        input: expand("logs/log{{n}}", n=range({tasks}))
    rule work:
        output: "logs/log{{n}}"
        resources: gpu=1, gpu_mem_mb={mib}
        shell: "{line}{{wildcards.n}}"
"""


def test_each_job_is_done_once(new_flow: Callable[..., Flow]) -> None:
    """Two hundred jobs under three brokers that are killed: each done once, no MiB given twice."""
    text = _SNAKEFILE.format(tasks=fire.TASKS, mib=fire.MIB, line=fire.command("logs", ""))
    flow = new_flow(text, fire.DEVICES)
    logs = str(flow.folder / "logs")
    os.mkdir(logs)
    run = flow.run(cores=8)
    assert fire.kill_brokers(flow.env, logs, lambda: run.process.poll() is None) == 3
    run.ok(8 * PATIENCE_S)
    fire.judge(flow.env, logs)
