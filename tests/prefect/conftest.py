"""One Prefect server for all tests of a session, and flows that run in the test's own process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import ROOT, BrokerEnv
from tests.prefect.asking import Api
from tests.prefect.quick import quick
from tests.prefect.serving import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.prefect.serving import PrefectServer

_FLOW_WITHIN_S = 120


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """Return a running Prefect server with a database of its own."""
    pytest.importorskip("prefect")
    with shared(lambda: str(tmp_path_factory.mktemp("prefect"))) as server:
        yield server


@pytest.fixture
def api(server: PrefectServer) -> Api:
    """Return what the server knows, as its user interface would show it."""
    return Api(server.url)


@pytest.fixture
def prefect_here(server: PrefectServer) -> Iterator[None]:
    """Let flows of this process use the server, without the second that each heartbeat costs."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_HOME,
        PREFECT_LOCAL_STORAGE_PATH,
        PREFECT_LOGGING_TO_API_BATCH_INTERVAL,
        temporary_settings,
    )

    settings: dict[Any, Any] = {
        PREFECT_API_URL: server.url,
        PREFECT_HOME: server.folder,
        PREFECT_LOCAL_STORAGE_PATH: server.storage,  # some releases read from nowhere else
        **quick(),
        PREFECT_LOGGING_TO_API_BATCH_INTERVAL: 0.2,
    }
    with temporary_settings(settings):
        yield


@pytest.fixture
def broker(
    new_env: Callable[..., BrokerEnv], monkeypatch: pytest.MonkeyPatch, prefect_here: None
) -> Callable[..., BrokerEnv]:
    """Return a function that makes a broker, to which this process's flows lead."""
    del prefect_here

    def make(devices: str = "sim:2x8000MiB", **more: Any) -> BrokerEnv:
        env = new_env(devices, **more)
        for name, value in env.environ.items():
            if name.startswith("GRN_") and name != "GRN_TEST_ENV":
                monkeypatch.setenv(name, value)
        return env

    return make


class Flows:
    """Runs scripts with flows as processes of their own."""

    def __init__(self, env: BrokerEnv, server: PrefectServer, folder: str) -> None:
        self.env = env
        self.folder = folder
        self._environ = {**env.environ, **server.environ, "PYTHONPATH": ROOT}

    def path(self, name: str) -> str:
        """Name a file in their folder."""
        return os.path.join(self.folder, name)

    def start(self, text: str, name: str = "flows.py", *words: str) -> subprocess.Popen[str]:
        """Write a script and start it."""
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.env.popen(
            [sys.executable, "-W", "ignore", name, *words],
            env=self._environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, text: str, name: str = "flows.py", *words: str) -> str:
        """Write a script and run it; return what it printed."""
        process = self.start(text, name, *words)
        said, _ = process.communicate(timeout=_FLOW_WITHIN_S)
        assert process.returncode == 0, said
        return said


@pytest.fixture
def flows(
    new_env: Callable[..., BrokerEnv], server: PrefectServer, tmp_path: Path
) -> Callable[..., Flows]:
    """Return a function that makes a broker, and a folder for scripts with flows that use it."""

    def make(devices: str = "sim:2x8000MiB", *, name: str = "flows", **more: Any) -> Flows:
        folder = str(tmp_path / name)
        os.makedirs(folder)
        return Flows(new_env(devices, **more), server, folder)

    return make
