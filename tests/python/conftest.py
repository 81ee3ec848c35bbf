"""A broker whose client is the test's own process, or a script that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import ROOT, BrokerEnv

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def here(new_env: Callable[..., BrokerEnv], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes a broker, to which this process's environment leads.

    What this process happens to have imported is no matter: that it is warned of has its own tests.
    """
    monkeypatch.setattr("grn.loaded._THREADED", ())

    def make(devices: str = "sim:1x10000MiB", **more: Any) -> BrokerEnv:
        env = new_env(devices, **more)
        for name, value in env.environ.items():
            if name.startswith("GRN_") and name != "GRN_TEST_ENV":
                monkeypatch.setenv(name, value)
        return env

    return make


class Scripts:
    """Runs scripts under a broker's environment."""

    def __init__(self, env: BrokerEnv, folder: str) -> None:
        self.env = env
        self.folder = folder

    def write(self, text: str, name: str = "script.py") -> str:
        """Write a script; return its path."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def run(
        self, text: str, *words: str, status: int = 0, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Write a script and run it; return how it ended, which must be as expected."""
        return self.python(self.write(text), *words, status=status, **environ)

    def python(
        self, *words: str, status: int = 0, cwd: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these words."""
        path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        done = subprocess.run(
            [sys.executable, *words],
            env={**self.env.environ, "PYTHONPATH": path, **environ},
            cwd=cwd or self.folder,
            check=False,
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}{done.stderr}"
        return done


@pytest.fixture
def scripts(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Callable[..., Scripts]:
    """Return a function that makes a broker, and a folder for scripts that use it."""

    def make(devices: str = "sim:1x10000MiB", **more: Any) -> Scripts:
        folder = str(tmp_path / "scripts")
        os.makedirs(folder, exist_ok=True)
        return Scripts(new_env(devices, **more), folder)

    return make
