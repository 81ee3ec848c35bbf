"""What `grn devices` says agrees with what another tool reads from the same driver."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.env import eventually
from tests.scenarios.standin import touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.supervise.grnrun import GrnRun


def _gpustat(env: BrokerEnv) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "gpustat", "--json"]
    done = subprocess.run(command, env=env.environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    cards: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
    return cards


def _devices(env: BrokerEnv) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "grn", "devices", "--json"]
    done = subprocess.run(command, env=env.environ, capture_output=True, check=True)
    devices: list[dict[str, Any]] = json.loads(done.stdout)["devices"]
    return devices


def test_gpustat_agrees_on_what_is_used(new_run: Callable[..., GrnRun]) -> None:
    """Cards, sizes and memory in use, of jobs and of others, are the same in both."""
    run = new_run("nvml:2x24GiB,1x80GiB")
    env = run.env
    env.foreign(1, 5000)
    end = run.path("end")
    job = run.start("-q", "--memory=4GiB", "--", *words("--memory=3000MiB", f"--until-file={end}"))
    eventually(lambda: sum(d["measured_mib"] for d in _devices(env)) == 3000, what="it is seen")
    told = {card["uuid"]: card for card in _gpustat(env)}
    devices = _devices(env)
    assert {device["uuid"] for device in devices} == set(told)
    for device in devices:
        card = told[device["uuid"]]
        assert (device["index"], device["name"]) == (card["index"], card["name"])
        assert device["total_mib"] == card["memory.total"]
        assert device["measured_mib"] + device["foreign_mib"] == card["memory.used"]
    assert sum(device["foreign_mib"] for device in devices) == 5000
    touch(end)
    assert job.wait(30) == 0
