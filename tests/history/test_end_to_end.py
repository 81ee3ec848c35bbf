"""What real jobs leave in the history: `grn run`, the broker that writes it, `grn history`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.env import PATIENCE_S, ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

JOB = [sys.executable, "-m", "grn.testing.job"]


def grn(env: BrokerEnv, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "grn", *words],
        env={**env.environ, "COLUMNS": "80"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=4 * PATIENCE_S,
    )


def leases(env: BrokerEnv, *words: str) -> list[dict[str, Any]]:
    """Return what `grn history` finds."""
    done = grn(env, "history", "--json", *words)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["leases"]
    return found


def test_what_jobs_leave(new_env: Callable[..., BrokerEnv]) -> None:
    """Peak, times, outcome and who asked; while one runs, and when the broker has left."""
    env = new_env("sim:2x8GiB")
    good = ["--type", "train", "--label", "good", "--memory", "2GiB", "--policy", "pack"]
    done = grn(env, "run", *good, "--", *JOB, "--plan", "0:256MiB 0.6:1GiB", "--seconds", "1.2")
    assert done.returncode == 0, done.stderr
    bad = ["--type", "train", "--memory", "1GiB", "--", *JOB, "--exit-code", "3"]
    assert grn(env, "run", *bad).returncode == 3
    talker = env.talker()
    held = talker.acquire("notebook", memory_mib=4096)

    def three() -> list[dict[str, Any]] | None:
        found = leases(env)
        return found if len(found) == 3 and found[1]["outcome"] else None

    running, failed, went_well = eventually(three, what="three leases in the history") or []
    assert running["id"] == held["lease"]
    assert running["running"]
    assert running["ended_at"] is None
    assert (failed["outcome"], failed["exit_code"]) == ("failed", 3)
    expected = {
        "type": "train", "label": "good", "uid": os.getuid(), "engine": "run", "policy": "pack", "gpus": 1,
        "booked_mib": 2048, "peak_mib": 1024, "outcome": "ok", "exit_code": 0, "running": False,
    }  # fmt: skip
    assert {name: went_well[name] for name in expected} == expected
    assert went_well["granted_at"] <= went_well["ended_at"] <= went_well["freed_at"]
    assert len(went_well["curve"]) == 11
    assert went_well["curve"][-1] == 1024

    assert [lease["id"] for lease in leases(env, "--outcome", "running")] == [held["lease"]]
    assert len(leases(env, "--type", "tr*n", "--user", str(os.getuid()), "--engine", "run")) == 2
    (uuid,) = went_well["devices"]
    on = leases(env, "--device", uuid)
    assert {lease["id"] for lease in on} >= {went_well["id"]}
    assert all(uuid in lease["devices"] for lease in on)

    talker.release(held)
    assert env.stop() == 0
    shown = grn(env, "history", "show", went_well["id"]).stdout
    assert "most 1 GiB" in shown
    assert "through run" in shown
    table = grn(env, "history").stdout
    assert "running" not in table
    assert "failed (3)" in table
