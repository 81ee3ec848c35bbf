"""Whole flows as programs: nested ones that call command lines, two at once, one that is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.env import ROOT, BrokerEnv, eventually, wait_gone

pytest.importorskip("prefect")

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.prefect.serving import PrefectServer

pytestmark = pytest.mark.xdist_group("prefect")

HERE = os.path.dirname(os.path.abspath(__file__))
_LONG_S = 240.0


def start(
    env: BrokerEnv, server: PrefectServer, program: str, *words: str, log: Path
) -> subprocess.Popen[Any]:
    """Start a program of flows."""
    environ = {**env.environ, **server.environ, "PYTHONPATH": ROOT}
    argv = [sys.executable, os.path.join(HERE, program), *words]
    with open(log, "ab") as out:
        return env.popen(argv, env=environ, stdout=out, stderr=out, cwd=env.folder)


def check_idle(env: BrokerEnv) -> None:
    """See that nothing is held or wanted any more."""
    status = env.status()
    assert not status["leases"]
    assert not status["waiters"]


class Run(NamedTuple):
    """One run of a stage."""

    data: str
    branch: str
    name: str
    size: str
    begun: float
    ended: float
    status: int


def test_nested_flows_that_call_commands(
    new_env: Callable[..., BrokerEnv], server: PrefectServer, tmp_path: Path
) -> None:
    """24 stages and one second try, in order within each sub-flow; small ones share the device."""
    env = new_env("sim:1x16384MiB")
    log = tmp_path / "log"
    process = start(env, server, "pipeline.py", str(tmp_path), log=log)
    assert process.wait(_LONG_S) == 0, log.read_text()
    runs = [Run(*json.loads(line)) for line in (tmp_path / "runs").read_text().splitlines()]
    assert len(runs) == 25
    assert sum(run.status != 0 for run in runs) == 1
    stages: list[str] = ["prepare", "pretrain", "train", "evaluate"]
    for data in ("a", "b"):
        for branch in ("teacher", "distilled", "alone"):
            mine = [run for run in runs if run[:2] == (data, branch)]
            names = [run.name for run in mine]
            assert list(dict.fromkeys(names)) == stages
            assert all(one.ended <= other.begun for one, other in pairwise(mine))
    small = [run for run in runs if run.size == "small"]
    assert any(
        one.begun < other.begun < one.ended for one in small for other in small if one != other
    ), "small stages never shared the device"
    profiles = {each["type"]: each["peak_mib"] for each in env.client().profiles()}
    assert profiles == {"large": 8000, "small": 2000}
    check_idle(env)


def test_two_flows_share_two_devices_and_one_is_killed(
    new_env: Callable[..., BrokerEnv], server: PrefectServer, tmp_path: Path
) -> None:
    """Never two whole-device leases on one device; what a killed flow held is free at once."""
    env = new_env("sim:2x4000MiB")
    mark = tmp_path / "mark"
    mark.touch()
    flows = [
        start(env, server, "holding.py", str(mark), name, log=tmp_path / "log") for name in "xy"
    ]

    def both_hold() -> bool:
        if any(process.poll() is not None for process in flows):
            pytest.fail(f"a flow has ended: {(tmp_path / 'log').read_text()}")
        return len(list(tmp_path.glob("mark.*"))) == 2 and len(env.status()["waiters"]) == 4

    eventually(both_hold, _LONG_S, "two tasks hold a device and four wait")
    holds = [path.name.split(".")[1:] for path in tmp_path.glob("mark.*")]
    victim = flows["xy".index(holds[0][1])]
    victim.kill()
    for pid, name in holds:
        if name == holds[0][1]:
            wait_gone(int(pid))
    again = start(env, server, "holding.py", str(mark), "z", log=tmp_path / "log")
    mark.unlink()
    for process in (*flows, again):
        expected = -signal.SIGKILL if process is victim else 0
        assert process.wait(_LONG_S) == expected, (tmp_path / "log").read_text()
    held = [json.loads(line) for line in (tmp_path / "held").read_text().splitlines()]
    assert {name for name, *_ in held} == {"z", ({"x", "y"} - {holds[0][1]}).pop()}
    for _, mask, begun, ended in held:
        same = [each for each in held if each[1] == mask and each[2:] != [begun, ended]]
        assert all(other[3] <= begun or ended <= other[2] for other in same), held
    check_idle(env)
