"""`grn` as a command, in an environment of the test's own, with and without a running broker."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.patient import Machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv


@pytest.fixture
def env(new_env: Callable[..., BrokerEnv]) -> BrokerEnv:
    """An environment of two simulated devices; no broker runs yet."""
    return new_env("sim:2x8GiB", start=False)


@pytest.fixture
def broker(env: BrokerEnv) -> int:
    """The pid of a broker that runs in `env`."""
    return env.start()


@pytest.fixture
def grn(env: BrokerEnv) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `grn` with some words to its end."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "grn", *words],
            check=False,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**env.environ, "COLUMNS": "80"},
            timeout=120,
        )

    return run


@pytest.fixture
def machine(tmp_path: Path, clean_environ: None) -> Machine:
    """A machine without a broker."""
    del clean_environ
    folder = tmp_path / "home"
    folder.mkdir()
    return Machine(str(folder))
