"""`grn` in a project's folder, in an environment of two simulated devices."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv


class Place:
    """A home folder with a project, and `grn` run in the project."""

    def __init__(self, env: BrokerEnv, home: Path) -> None:
        self.env = env
        self.home = home
        self.project = home / "project"
        self.project.mkdir(parents=True)
        (self.project / ".git").mkdir()

    def write_user(self, text: str) -> Path:
        """Write the user's file."""
        path = self.home / ".config" / "grn" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def write_project(self, text: str) -> Path:
        """Write the project's file."""
        path = self.project / "grn.toml"
        path.write_text(text)
        return path

    def grn(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `grn` in the project to its end."""
        return subprocess.run(
            [sys.executable, "-m", "grn", *words],
            check=False,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=self.project,
            env={**self.env.environ, "HOME": str(self.home), "COLUMNS": "120", **environ},
            timeout=2 * PATIENCE_S,
        )


@pytest.fixture
def place(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Place:
    """A project in which no broker runs yet."""
    return Place(new_env("sim:2x8000MiB", start=False), tmp_path / "home")


@pytest.fixture
def served(place: Place) -> Place:
    """The same with a broker."""
    place.env.start()
    return place
