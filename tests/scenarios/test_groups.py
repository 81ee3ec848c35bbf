"""Ranks of one distributed job, started one by one: they begin together, or not at all."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

MEETS = """
import pathlib, sys, time
mine, others = pathlib.Path(sys.argv[1]), [pathlib.Path(path) for path in sys.argv[2:]]
mine.touch()
end = time.monotonic() + 100
while not all(other.exists() for other in others):
    assert time.monotonic() < end, "the others never came"
    time.sleep(0.02)
"""
"""A program that ends well only if the others run at the same time."""


@pytest.fixture
def env(new_env: Callable[..., BrokerEnv]) -> BrokerEnv:
    """Two devices; each holds one of the jobs here."""
    return new_env("sim:2x8GiB")


def _start(env: BrokerEnv, *words: str) -> subprocess.Popen[str]:
    return env.popen(
        [sys.executable, "-m", "grn", "run", "--memory", "6GiB", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(run: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = run.communicate(timeout=PATIENCE_S + 60)
    return run.returncode, errors


def _reasons(env: BrokerEnv) -> list[str]:
    return [waiter["reason"] for waiter in env.status()["waiters"]]


def test_commands_of_one_run_start_together(env: BrokerEnv, tmp_path: Path) -> None:
    """While one device is taken none of them starts; then both do, and meet."""
    program, a, b = tmp_path / "meets.py", tmp_path / "a", tmp_path / "b"
    program.write_text(MEETS)
    talker = env.talker()
    busy = talker.acquire("other", memory_mib=8192)
    ranks = [f"{sys.executable} {program} {x} {y}" for x, y in ((a, b), (b, a))]
    run = _start(env, "--group", "ranks", *ranks)
    eventually(lambda: len(_reasons(env)) == 2, what="two that wait")
    assert all("there is room for 1 of its 2 members" in reason for reason in _reasons(env))
    assert not a.exists()
    assert not b.exists()
    talker.release(busy)
    status, errors = _end(run)
    assert status == 0, errors


def test_runs_that_are_started_one_by_one_wait_for_each_other(
    env: BrokerEnv, tmp_path: Path
) -> None:
    """As a launcher starts its ranks, each by a command of its own."""
    program, a, b = tmp_path / "meets.py", tmp_path / "a", tmp_path / "b"
    program.write_text(MEETS)
    group = ("--group", "ranks", "--group-size", "2", "--", sys.executable, str(program))
    first = _start(env, *group, str(a), str(b))
    eventually(lambda: _reasons(env), what="one that waits")
    assert _reasons(env) == ["group 'ranks' starts together: 1 of 2 members are here"]
    assert env.status()["leases"] == []
    second = _start(env, *group, str(b), str(a))
    assert [_end(first)[0], _end(second)[0]] == [0, 0]


def test_who_waits_for_the_rest_in_vain_is_told(new_env: Callable[..., BrokerEnv]) -> None:
    """After `group_wait` it is refused, with how many came."""
    env = new_env("sim:2x8GiB", start=False)
    env.environ["GRN_GROUP_WAIT"] = "1s"
    env.start()
    status, errors = _end(_start(env, "--group", "ranks", "--group-size", "3", "--", "true"))
    assert status == 125
    assert "1 of 3 members came within 1 s" in errors


def test_a_group_that_does_not_fit_here_is_refused_at_once(env: BrokerEnv) -> None:
    """Three of 6 GiB on two devices of 8: each one would fit, all of them never."""
    status, errors = _end(_start(env, "--group", "ranks", "true", "true", "true"))
    assert status == 1
    assert "has room for 2 of them" in errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--group", "g", "--", "true"), "add --group-size"),
        (("--group-size", "2", "--", "true"), "give it a name with --group"),
        (("--group", "g", "--group-size", "0", "--", "true"), "--group-size"),
    ],
)
def test_half_a_group_is_a_usage_error(env: BrokerEnv, words: tuple[str, ...], told: str) -> None:
    """A name without a size, or a size without a name."""
    status, errors = _end(_start(env, *words))
    assert status == 2
    assert told in errors
