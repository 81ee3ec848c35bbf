"""What these tests share: a library that is looked at from inside, in the environment of a job."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.rules.environment import job_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Look = Callable[..., Any]

_THREAD_WORDS = ("THREADS", "CPU_COUNT", "CUDA_", "GRN_", "XLA_", "PYTORCH_")


def _clean() -> dict[str, str]:
    """Return this environment without what the tester set for libraries."""
    return {k: v for k, v in os.environ.items() if not any(word in k for word in _THREAD_WORDS)}


def _grant(threads: int) -> dict[str, Any]:
    device = {"uuid": "GPU-a", "index": 0, "total_mib": 16384, "booked_mib": 4096}
    return {
        "lease": "L1",
        "mask": "0",
        "devices": [device],
        "memory_mib": 4096,
        "fraction": 0.25,
        "threads": threads,
    }


@pytest.fixture
def look() -> Look:
    """Return a function that runs code in a job with a share, and returns its `found` value.

    `needs` are the modules without which the test is skipped, `user` is what the user had set. With
    `quiet` a word on standard error fails the test.
    """

    def run(
        code: str,
        *needs: str,
        threads: int = 1,
        user: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> Any:
        for module in needs:
            if importlib.util.find_spec(module) is None:
                pytest.skip(
                    f"{module} is not installed; see the extras `libraries` and `libraries-heavy`"
                )
        environ, _ = job_environment(_grant(threads), {**_clean(), **(user or {})}, {})
        done = subprocess.run(
            [sys.executable, "-c", f"import json\n{code}\nprint(json.dumps(found))"],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not (quiet and done.stderr), done.stderr
        return json.loads(done.stdout)

    return run
