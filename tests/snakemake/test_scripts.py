"""Scripts and notebooks that a program other than Snakemake runs: each finds its share."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from tests.env import eventually, wait_gone
from tests.snakemake.conftest import job

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow

BESIDE = os.path.dirname(sys.executable)
needs_jupyter = pytest.mark.skipif(
    not (shutil.which("jupyter-nbconvert", path=BESIDE) and find_spec("ipykernel")),
    reason="needs ipykernel and nbconvert, which runs Snakemake's notebooks where papermill does not",
)
NAMES = ("CUDA_VISIBLE_DEVICES", "GRN_LEASE", "GRN_MEM_MIB", "OMP_NUM_THREADS")


def _notebook(*cells: str) -> str:
    """Write a notebook of Python."""
    empty: dict[str, Any] = {"execution_count": None, "metadata": {}, "outputs": []}
    return json.dumps(
        {
            "cells": [
                {**empty, "cell_type": "code", "id": f"c{number}", "source": source}
                for number, source in enumerate(cells)
            ],
            "metadata": {
                "kernelspec": {"display_name": "Python", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


@needs_jupyter
def test_a_notebook_finds_its_share(new_flow: Callable[..., Flow]) -> None:
    """Its kernel, in a session of its own, is told; what it uses is its rule's; the log is kept."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            log: notebook="executed.ipynb"
            threads: 2
            params: hello="hello"
            resources: gpu=1
            notebook: "train.ipynb"
        """
    )
    tell = f"print(snakemake.params.hello, *map(os.environ.get, {NAMES!r}), file=file)"
    flow.write(
        "train.ipynb",
        _notebook(
            f"import os, subprocess\nwith open(snakemake.output[0], 'w') as file:\n    {tell}",
            f"subprocess.run({job('--memory=700MiB', '--seconds=1')!r}, shell=True, check=True)",
        ),
    )
    flow.run().ok()
    ((hello, mask, lease, mib, threads),) = flow.lines("out")
    assert (hello, mask in {"0", "1"}, bool(lease)) == ("hello", True, True)
    assert (mib, threads) == ("8000", "2"), "it is measured, so it has all of its device"
    assert '"execution_count": 1' in flow.read("executed.ipynb")
    (profile,) = flow.env.client().profiles()
    assert (profile["peak_mib"], profile["runs"]) == (700, 1)
    assert flow.idle()


@needs_jupyter
def test_an_interrupt_ends_the_kernel_of_a_notebook(new_flow: Callable[..., Flow]) -> None:
    """No terminal reaches it, as it has a session of its own; it ends with its rule."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            resources: gpu=1
            notebook: "train.ipynb"
        """
    )
    flow.write(
        "train.ipynb",
        _notebook(
            "import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
            "open('kernel', 'w').write(f'{os.getpid()} ')\ntime.sleep(600)",
        ),
    )
    run = flow.run()
    eventually(lambda: flow.lines("kernel"), 120, "the notebook runs")
    pid = int(flow.lines("kernel")[0][0])
    assert procs.start_time(pid) is not None
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() != 0
    wait_gone(pid)
    eventually(flow.idle, what="no lease is left")


@pytest.mark.skipif(not shutil.which("Rscript"), reason="needs R (Debian: r-base-core)")
def test_a_script_in_r_finds_its_share(new_flow: Callable[..., Flow]) -> None:
    """Device, lease, memory and threads are in R's environment."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            threads: 2
            params: hello="hello"
            resources: gpu_mem_mb=500
            script: "train.R"
        """
    )
    names = ", ".join(f'"{name}"' for name in NAMES)
    flow.write(
        "train.R",
        f"""
        told <- c(snakemake@params[["hello"]], Sys.getenv(c({names})))
        writeLines(paste(told, collapse = " "), snakemake@output[[1]])
        """,
    )
    flow.run().ok()
    ((hello, mask, lease, mib, threads),) = flow.lines("out")
    assert (hello, mask in {"0", "1"}, bool(lease)) == ("hello", True, True)
    assert (mib, threads) == ("500", "2")
    assert flow.idle()
