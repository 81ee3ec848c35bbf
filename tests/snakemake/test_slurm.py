"""Under Slurm, the hook negotiates on the node, within the devices that Slurm gave."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from tests.snakemake.slurmnode import SlurmNode, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.snakemake.conftest import Flow

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is here")

PLUGIN = (
    "snakemake-executor-plugin-slurm>=2",
    "snakemake-executor-plugin-slurm-jobstep",
    "pandas>=2",
)
INTERFACE = (9, 4)
GPUS = 3
RULES = """
    rule all:
        input: "given0", "given1", "shared", "cpu"

    rule given:
        output: "given{n}"
        retries: 1
        resources: gpu=1, gpu_mem_mb=lambda wildcards, attempt: attempt * 1000, mem_mb=100, runtime=5
        shell:
            "echo $CUDA_VISIBLE_DEVICES $SLURM_STEP_GPUS $GRN_LEASE $GRN_MEM_MIB >> {output}.told;"
            " [ {wildcards.n} = 0 -o -e {output}.again ] || {{ touch {output}.again; exit 1; }};"
            " touch {output}"

    rule shared:
        output: "shared"
        resources: gpu_mem_mb=2000, mem_mb=100, runtime=5
        run:
            import os
            with open(output[0], "w") as file:
                print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["GRN_LEASE"], file=file)

    rule cpu:
        output: "cpu"
        resources: mem_mb=100, runtime=5
        shell: "echo ${{CUDA_VISIBLE_DEVICES-none}} ${{GRN_LEASE-none}} > {output}"
    """


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with Snakemake's plugin for Slurm.

    It is no part of an extra: it makes each start of Snakemake in its environment import pandas.
    """
    if importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        return ""
    found = version("snakemake-interface-executor-plugins")
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < INTERFACE:
        pytest.skip(f"its plugin needs a newer Snakemake: its interface is {found}")
    folder = os.environ.get("GRN_TEST_SLURM_PLUGIN")
    if folder:
        return folder
    folder = str(tmp_path_factory.mktemp("plugin"))
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *PLUGIN]
    made = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    if made.returncode:
        pytest.skip(f"snakemake-executor-plugin-slurm cannot be installed: {made.stderr[-300:]}")
    return folder


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[..., SlurmNode]]:
    """Return a function that starts a Slurm of one node."""
    made: list[SlurmNode] = []

    def make(flow: Flow) -> SlurmNode:
        node = SlurmNode(tmp_path / "slurm", flow.env.popen, gpus=GPUS)
        made.append(node)
        problem = node.wait_up()
        if problem:
            pytest.skip(problem)
        return node

    yield make
    for node in made:
        node.close()


def test_on_the_node_within_what_slurm_gave(
    new_flow: Callable[..., Flow], new_node: Callable[..., SlurmNode], plugin: str
) -> None:
    """Each job has a lease on the device that Slurm chose; who asked Slurm for none, on any."""
    flow = new_flow(RULES, f"sim:{GPUS}x8000MiB")
    node = new_node(flow)
    run = flow.run(
        "--slurm-init-seconds-before-status-checks=1",
        "--seconds-between-status-checks=1",
        "--slurm-status-command=squeue",
        executor="slurm",
        GRN_NEGOTIATE="1",
        PYTHONPATH=plugin or None,
        **node.environ,
    )
    text = run.ok()
    leases = []
    for name in ("given0", "given1"):
        for attempt, (mask, given, lease, mib) in enumerate(flow.lines(f"{name}.told"), 1):
            assert mask == given, text
            assert mib == str(1000 * attempt)
            leases.append(lease)
    assert len(flow.lines("given1.told")) == 2, "tried again once, by who has submitted it"
    ((mask, lease),) = flow.lines("shared")
    assert mask in {"0", "1", "2"}
    assert len({*leases, lease}) == 4, "two attempts of one, one of each other, a lease each"
    assert flow.lines("cpu") == [["none", "none"]]
    assert flow.idle()
