"""What the acted-out bug reports share: a machine behind the stand-in driver, and its books.

Each report becomes a scene: the real broker asks the real binding (`pynvml`), which finds the
stand-in `libnvidia-ml`; programs are started by the real `grn run` or under a lease.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.env import PATIENCE_S, eventually
from tests.scenarios.standin import touch, words
from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.fakenvml.box import Box

    NewEnv = Callable[..., BrokerEnv]

__all__ = [
    "FAST",
    "box_of",
    "device",
    "given",
    "jobs_of",
    "learn",
    "profile",
    "python",
    "runner",
    "wait_measured",
    "wait_state",
]

FAST = {"sample_fast": "0.05", "sample_slow": "0.1"}
"""How often the books look, so that no test waits for a second."""


def box_of(env: BrokerEnv) -> Box:
    """Return the machine behind the driver."""
    assert env.box is not None
    return env.box


def runner(env: BrokerEnv) -> GrnRun:
    """Return what starts `grn run` in a folder of its own."""
    folder = Path(env.folder) / "work"
    folder.mkdir()
    return GrnRun(env, folder)


def python(program: str) -> list[str]:
    """Return the words that run a program without a file."""
    return [sys.executable, "-c", program]


def jobs_of(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    """Return the jobs of a run with `--json`."""
    jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    return jobs


def device(env: BrokerEnv, place: int = 0) -> dict[str, Any]:
    """Return what the books say of one device."""
    entry: dict[str, Any] = env.status()["devices"][place]
    return entry


def given(grant: dict[str, Any]) -> list[str]:
    """Return the devices of a grant."""
    return [entry["uuid"] for entry in grant["devices"]]


def wait_measured(env: BrokerEnv, mib: int, place: int = 0) -> None:
    """Wait until the jobs of a device are seen to hold so much."""
    eventually(lambda: device(env, place)["measured_mib"] == mib, what=f"{mib} MiB measured")


def wait_state(env: BrokerEnv, *states: str, place: int = 0) -> str:
    """Wait until a device is in one of these states; return the reason."""

    def reached() -> list[str]:
        entry = device(env, place)
        return [entry["reason"]] if entry["state"] in states else []

    (reason,) = eventually(reached, what=f"device {' or '.join(states)}")
    return reason


def profile(env: BrokerEnv, job_type: str) -> dict[str, Any]:
    """Return what is known of a type."""
    return {entry["type"]: entry for entry in env.talker().profiles()}[job_type]


def learn(run: GrnRun, mib: int) -> dict[str, Any]:
    """Run a command of an unknown type until it was measured; return what is then known of it."""
    end = f"--until-file={run.path('learnt')}"
    first = run.start("--type=t", "--", *words(f"--memory={mib}MiB", end))
    wait_measured(run.env, mib)
    touch(run.path("learnt"))
    _, said = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, said
    return profile(run.env, "t")
