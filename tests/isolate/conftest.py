"""What the tests of calls in fresh processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.isolate import ForkServer
from tests.env import ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Scripts = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Return a server that serves one file of tests."""
    with ForkServer() as server:
        yield server


@pytest.fixture
def env() -> dict[str, str]:
    """Return the environment that calls get."""
    return dict(os.environ)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Scripts]:
    """Return a function that runs a script, a caller of its own, in the background."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str, *argv: str, **options: Any) -> subprocess.Popen[str]:
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(text)
        pipe = subprocess.PIPE
        environ = {**os.environ, "PYTHONPATH": ROOT}
        process = subprocess.Popen(
            [sys.executable, str(path), *argv],
            **{"stdout": pipe, "stderr": pipe, "text": True, "env": environ, **options},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def written_pid(path: str | Path) -> int:
    """Wait for a process that says in a file who it is."""
    eventually(lambda: os.path.exists(path), what=f"{path} is written")
    with open(path) as file:
        return int(file.read())
