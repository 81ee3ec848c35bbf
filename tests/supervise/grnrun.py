"""`grn run` as a process of its own, against a broker of the test's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from grn import procs
from tests.env import PATIENCE_S, eventually
from tests.supervise.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.env import BrokerEnv

__all__ = ["GrnRun"]


class GrnRun:
    """Starts `grn run` in a test environment."""

    def __init__(self, env: BrokerEnv, folder: Path) -> None:
        self.env = env
        self.folder = folder
        self._terminals: list[Terminal] = []

    def argv(self, *args: str) -> list[str]:
        """Return the words that run `grn run` with these arguments."""
        return [sys.executable, "-m", "grn", "run", *args]

    def __call__(self, *args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end; standard output and error are captured."""
        options = {"capture_output": True, "timeout": 2 * PATIENCE_S, "cwd": self.folder, **options}
        options["env"] = {**self.env.environ, **options.pop("environ", {})}
        return subprocess.run(self.argv(*args), check=False, **options)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it; standard output and error are pipes unless told otherwise."""
        pipe = subprocess.PIPE
        options = {"stdout": pipe, "stderr": pipe, "cwd": self.folder, **options}
        options["env"] = {**self.env.environ, **options.pop("environ", {})}
        return self.env.popen(self.argv(*args), **options)

    def in_terminal(self, *args: str, argv: list[str] | None = None, **environ: str) -> Terminal:
        """Start it, or another program, in the foreground of a terminal of its own."""
        env = {**self.env.environ, "TERM": "xterm", **environ}
        terminal = Terminal(argv or self.argv(*args), env, self.folder)
        self._terminals.append(terminal)
        return terminal

    def path(self, name: str) -> str:
        """Return a path in the test's folder."""
        return os.path.join(self.folder, name)

    def wait_for(self, name: str) -> str:
        """Wait until a job has written this file; return what it holds."""

        def written() -> str:
            try:
                with open(self.path(name), encoding="utf-8") as file:
                    text = file.read()
            except FileNotFoundError:
                return ""
            return text if text.endswith("\n") else ""

        return eventually(written, what=name).strip()

    def end_strays(self) -> None:
        """Kill, until there is none, every process of the environment but its broker."""
        sign = f"GRN_TEST_ENV={self.env.marker}".encode()

        def none_left() -> bool:
            broker = self.env.broker.pid if self.env.broker is not None else 0
            strays = [pid for pid in _processes_with(sign) if pid != broker]
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not strays

        eventually(none_left, what="the end of strays")

    def close(self) -> None:
        """End what still runs in terminals."""
        for terminal in self._terminals:
            terminal.close()


def _processes_with(sign: bytes) -> list[int]:
    """List the living processes whose initial environment has this entry."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:  # it has ended
            continue
        if sign in entries and procs.start_time(pid) is not None:
            found.append(pid)
    return found
