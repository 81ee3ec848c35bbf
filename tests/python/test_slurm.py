"""Slurm: its steps ask for leases by themselves, each within the devices that Slurm has given it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT, eventually
from tests.snakemake.slurmnode import SlurmNode, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is here")

STEP = """
import grn, os, sys
given = os.environ["CUDA_VISIBLE_DEVICES"]

@grn.job(memory=3000)
def job():
    return os.environ["CUDA_VISIBLE_DEVICES"]

def block():
    with grn.lease(memory=3000) as lease:
        lease.apply()
        return os.environ["CUDA_VISIBLE_DEVICES"]

print(given, job(), block(), flush=True)
"""
BATCH = """#!/bin/sh
srun --quiet --exact -n1 -c1 --gres=gpu:1 {python} {step} &
srun --quiet --exact -n1 -c1 --gres=gpu:1 {python} {step} &
wait
srun --quiet -n1 {python} {step}
"""


@pytest.fixture
def node(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> Iterator[tuple[SlurmNode, BrokerEnv]]:
    """Return a Slurm of one node with two devices, and the broker of that node."""
    env = new_env("sim:2x8000MiB")
    slurm = SlurmNode(tmp_path / "slurm", env.popen, gpus=2)
    try:
        why_not = slurm.wait_up()
        if why_not:
            pytest.skip(why_not)
        yield slurm, env
    finally:
        slurm.close()


def test_steps_stay_on_the_devices_that_slurm_gave(
    node: tuple[SlurmNode, BrokerEnv], tmp_path: Path
) -> None:
    """Two steps with a device each, then one with both: neither leaves what it was given."""
    slurm, env = node
    step, batch, told = tmp_path / "step.py", tmp_path / "batch.sh", tmp_path / "told"
    step.write_text(STEP)
    batch.write_text(BATCH.format(python=sys.executable, step=step))
    environ = {
        **env.environ,
        **slurm.environ,
        "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        ["sbatch", "-W", "-n2", "--gres=gpu:2", f"--output={told}", str(batch)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = told.read_text() if told.exists() else ""
    assert done.returncode == 0, done.stderr + said + slurm.log()
    *single, both = [line.split() for line in said.splitlines()]
    assert sorted(single) == [["0", "0", "0"], ["1", "1", "1"]]
    assert both[0] == "0,1"
    assert set(both[1:]) <= {"0", "1"}
    eventually(lambda: not env.status()["leases"], what="all leases given back")
