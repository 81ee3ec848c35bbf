"""A Prefect server for tests: a process of its own, with a database of its own.

Promises: nothing of it is shared with the tester's Prefect; it is gone when it was stopped.
GRN_TEST_PREFECT names a `prefect` command of another environment, whose server it then is: so an older client
is tested with the newest server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["GROUP", "QUIET", "PrefectServer", "pause", "resume", "shared"]

GROUP = "prefect"
"""The `xdist_group` of the tests with a server: one worker runs them, one after the other."""


_STARTS_WITHIN_S = 240.0
_IDLE_SERVICES = (
    "CLEANUP_RECONCILER", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS", "REPOSSESSOR", "SCHEDULER",
    "TRIGGERS",
)  # fmt: skip
"""Parts of the server that look at its database every few seconds, for what no test has."""

_ENDS_WITHIN_S = 30.0

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_COLORS": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_CLI_COLORS": "false",
}
"""Settings with which it says and asks nothing."""

_NO_IDLE_SERVICES = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _IDLE_SERVICES}


@contextlib.contextmanager
def shared(new_folder: Callable[[], str]) -> Iterator[PrefectServer]:
    """Run the server of this session, which the first who asks starts and the last one stops."""
    global _session  # noqa: PLW0603 - one for all folders of tests, whose fixtures know nothing of each other
    mine = _session is None
    if _session is None:
        started = PrefectServer(new_folder())
        started.start()
        _session = started
    try:
        yield _session
    finally:
        if mine:
            pause()
            _session = None


def resume() -> None:
    """Start the server of this session again if it was paused."""
    if _session is not None and not _session.runs:
        _session.start()


def pause() -> None:
    """Stop the server of this session until it is wanted again: idle it still takes 2 % of a core."""
    if _session is not None and _session.runs:
        _drain()
        _session.stop()


def _drain() -> None:
    """Have this process's Prefect send what it still has to say: at its exit it would wait for ever."""
    handlers, worker = map(sys.modules.get, ("prefect.logging.handlers", "prefect.events.worker"))
    for service in (getattr(handlers, "APILogWorker", None), getattr(worker, "EventsWorker", None)):
        if service is not None:
            service.drain_all(timeout=_ENDS_WITHIN_S)


class PrefectServer:
    """A server; `environ` are the settings of its clients."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.storage = os.path.join(folder, "storage")
        self.environ = {
            **QUIET,
            "PREFECT_HOME": folder,
            "PREFECT_API_URL": self.url,
            "PREFECT_LOCAL_STORAGE_PATH": self.storage,
        }
        self._log = os.path.join(folder, "server.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = ["server", "start", "--host", "127.0.0.1", "--port", str(self.port), "--no-ui"]
        env = {name: value for name, value in os.environ.items() if not _is_ours(name)}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*_command(), *words],
                env={**env, **QUIET, **_NO_IDLE_SERVICES, "PREFECT_HOME": self.folder},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            eventually(self._answers, _STARTS_WITHIN_S, "an answer of the Prefect server")
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            with open(self._log, encoding="utf-8", errors="replace") as file:
                raise RuntimeError(f"the Prefect server has ended:\n{file.read()}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _command() -> list[str]:
    elsewhere = os.environ.get("GRN_TEST_PREFECT")
    return [elsewhere] if elsewhere else [sys.executable, "-m", "prefect"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_ours(name: str) -> bool:
    return name.startswith(("PREFECT_", "GRN_", "CUDA_"))


_session: PrefectServer | None = None
