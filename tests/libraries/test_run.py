"""The whole way: `grn run`, a broker, and a library that starts as many threads as it was told."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

PROBE = """
import numpy
from threadpoolctl import threadpool_info
print(*sorted({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}))
"""
pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is missing")
        for name in ("numpy", "threadpoolctl")
    ),
]


@pytest.fixture
def run(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[GrnRun]:
    """Return a `GrnRun` on a machine of two cores, of which nothing is held back."""
    runner = GrnRun(new_env("sim:1x8000MiB", machine_cpus=2, cpu_reserve=0), tmp_path)
    yield runner
    runner.close()


def test_jobs_at_once_use_no_more_threads_than_there_are_cores(run: GrnRun) -> None:
    """Two that declare nothing have one thread each; one by itself has both cores."""
    probe = run.path("probe.py")
    with open(probe, "w", encoding="utf-8") as file:
        file.write(PROBE)
    line = f"{sys.executable} {probe}"
    both = run("-q", "--gpus=0", line, line)
    assert [text.split()[-1] for text in both.stdout.decode().splitlines()] == ["1", "1"]
    assert run("-q", "--gpus=0", "--", sys.executable, probe).stdout == b"2\n"


def test_the_users_own_number_stays_with_one_warning(run: GrnRun) -> None:
    """A library starts as many threads as its user wants, who is told what that does to others."""
    words = ("--gpus=0", "--cpus=1", "--", sys.executable, "-c", PROBE)
    done = run(*words, environ={"OPENBLAS_NUM_THREADS": "2"})
    assert done.stdout == b"2\n"
    assert done.stderr.count(b"\n") == 1
    assert b"OPENBLAS_NUM_THREADS=2 stays" in done.stderr
