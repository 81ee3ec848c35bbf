"""Policies beside `spread` and `pack`: their other names, and those that installed packages bring."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker import policies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

PACKAGE = """
def last(room):
    return -room.position


def broken(room):
    raise ZeroDivisionError(room.device.uuid)


def vague(room):
    return float("nan")
"""
ENTRY_POINTS = """
[grn.policies]
last = others_policies:last
broken = others_policies:broken
vague = others_policies:vague
absent = others_policies:absent
"""


@pytest.fixture
def env(tmp_path: Path, new_env: Callable[..., BrokerEnv]) -> BrokerEnv:
    """A machine with three devices and a package with policies; no broker runs yet."""
    folder = tmp_path / "site"
    info = folder / "others_policies-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "others_policies.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    env = new_env("sim:3x8GiB", start=False)
    before = env.environ.get("PYTHONPATH")
    env.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [before])])
    return env


def _run(env: BrokerEnv, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grn", "run", *words],
        env=env.environ,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )


def _device(env: BrokerEnv, policy: str) -> str:
    """Return the number of the device that a job gets by this policy, while 1 GiB of each is taken."""
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    done = _run(env, "--policy", policy, "--memory", "1GiB", "--", sys.executable, "-c", show)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _take(env: BrokerEnv, **wish: object) -> None:
    """Hold a lease until the broker's end."""
    env.talker().acquire("filler", **wish)


def test_the_two_have_other_names(env: BrokerEnv) -> None:
    """`cost-saving` packs and `high-performance` spreads."""
    env.start()
    _take(env, memory_mib=1024)
    assert [_device(env, "cost-saving"), _device(env, "high-performance")] == ["0", "1"]


def test_a_package_brings_a_policy(env: BrokerEnv) -> None:
    """Its function is asked for each device; the least number is taken."""
    env.start()
    assert _device(env, "last") == "2"
    assert env.log_lines("policy-loaded")


def test_it_can_be_the_default(env: BrokerEnv) -> None:
    """As a setting of the broker, like the two of ours."""
    env.environ["GRN_POLICY"] = "last"
    env.start()
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    done = _run(env, "--memory", "1GiB", "--", sys.executable, "-c", show)
    assert done.stdout.strip() == "2"


@pytest.mark.parametrize("name", ["broken", "vague"])
def test_a_policy_that_fails_stops_nobody(env: BrokerEnv, name: str) -> None:
    """The device with most room is taken instead, and the log names the policy."""
    env.start()
    _take(env, memory_mib=1024)
    assert _device(env, name) == "1"
    assert any(repr(name) in line for line in env.log_lines("policy-failed"))


def test_a_policy_that_nobody_has_is_a_usage_error(env: BrokerEnv) -> None:
    """Named at once, with what would do; no broker is started for it."""
    done = _run(env, "--policy", "greedy", "--", "true")
    assert done.returncode == 2
    assert "--policy 'greedy' is not one of: spread, pack" in done.stderr
    assert "grn.policies" in done.stderr
    assert env.broker is None
    assert not os.path.exists(env.environ["GRN_SOCKET"])


def test_one_that_cannot_be_loaded_is_refused_by_the_broker(env: BrokerEnv) -> None:
    """The entry point is there, its function is not: that request fails, others go on."""
    env.start()
    done = _run(env, "--policy", "absent", "--", "true")
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert "policy 'absent'" in done.stderr
    assert env.log_lines("policy-not-loaded")
    assert _device(env, "pack") == "0"


def test_unknown_names_do_not_hold_up_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed packages are looked through once in a while, whatever many names nobody knows."""
    looks, clock = [], [0.0]

    def offered() -> dict[str, Any]:
        looks.append(clock[0])
        return {}

    monkeypatch.setattr(policies, "offered", offered)
    monkeypatch.setattr(policies.time, "monotonic", lambda: clock[0])
    known = policies.Policies("pack")
    assert known.knows("cost-saving") is False  # clients send the broker's own names
    for number in range(1000):
        assert not known.knows(f"unknown {number}")
    clock[0] = 60.0
    assert not known.knows("unknown 0")
    assert looks == [0.0, 60.0]
