"""A broker of two simulated devices, and `grn metrics` as a process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv


@pytest.fixture
def env(new_env: Callable[..., BrokerEnv]) -> BrokerEnv:
    """An environment in which a broker runs."""
    return new_env("sim:2x8GiB")


@pytest.fixture
def metrics(env: BrokerEnv) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `grn metrics` with some words to its end."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "grn", "metrics", *words],
            check=False,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=env.environ,
            timeout=120,
        )

    return run


@pytest.fixture
def following(env: BrokerEnv) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `grn metrics` that goes on; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(path: str, every: float = 0.1) -> subprocess.Popen[str]:
        words = ["--textfile", path, "--every", str(every)]
        argv = [sys.executable, "-m", "grn", "metrics", *words]
        started.append(env.popen(argv, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
