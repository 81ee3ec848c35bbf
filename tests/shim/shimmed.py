"""Commands under a shim, and callers of one that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from grn import procs, shim
from tests.env import PATIENCE_S, ROOT, eventually
from tests.supervise.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ENDLESS", "Shimmed"]

ENDLESS = {
    "plain": "echo on > {file}; exec sleep 600",
    "two": "echo on > {file}; sleep 600; sleep 601",
    "deaf": "trap '' INT; echo on > {file}; sleep 600 & wait; sleep 600",
    "session": "setsid sh -c 'echo on > {file}; sleep 600'",
    "orphan": "(setsid sh -c 'echo on > {file}; sleep 600' &); sleep 600",
}
"""Commands that run on and on, in all the ways in which that is hard to end."""

_CALLER = """
import os, sys
from grn import shim
options = eval(sys.argv[1])
words = shim.command(sys.argv[2:], **options)
pid = os.fork()
if pid == 0:
    os.execv(words[0], words)
print(pid, flush=True)
_, status = os.waitpid(pid, 0)
code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
"""


class Shimmed:
    """Starts commands in the test's folder."""

    def __init__(self, folder: str, environ: dict[str, str]) -> None:
        self.folder = folder
        self.sign = f"GRN_TEST_SHIM={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.sign.partition("=")
        self.environ = {**environ, name: value, "PYTHONPATH": os.path.join(ROOT, "core")}
        self._started: list[subprocess.Popen[bytes]] = []
        self._terminals: list[Terminal] = []

    def path(self, name: str) -> str:
        """Return a path in the test's folder."""
        return os.path.join(self.folder, name)

    def run(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end; `of_shim` goes to `grn.shim.command`, the rest to `Popen`."""
        words = shim.command(argv, **options.pop("of_shim", {}))
        options = {"capture_output": True, "env": self.environ, "cwd": self.folder, **options}
        return subprocess.run(words, check=False, timeout=2 * PATIENCE_S, **options)

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command."""
        words = shim.command(argv, **options.pop("of_shim", {}))
        return self._popen(words, **options)

    def call(
        self, *argv: str, options: str = "{}", **more: Any
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start a process that starts a command and waits; return it, and the shim's number."""
        words = [sys.executable, "-c", _CALLER, options, *argv]
        caller = self._popen(words, stdout=subprocess.PIPE, **more)
        assert caller.stdout is not None
        return caller, int(caller.stdout.readline())

    def in_terminal(self, *argv: str) -> Terminal:
        """Start a command in the foreground of a terminal."""
        terminal = Terminal(
            shim.command(argv, watch_caller=False), self.environ, _path(self.folder)
        )
        self._terminals.append(terminal)
        return terminal

    def _popen(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        options = {"env": self.environ, "cwd": self.folder, **options}
        process = subprocess.Popen(words, **options)
        self._started.append(process)
        return process

    def wait_for(self, name: str) -> None:
        """Wait until a file is there and has something in it."""
        path = self.path(name)
        eventually(lambda: os.path.exists(path) and os.path.getsize(path) > 0, what=name)

    def left(self) -> list[int]:
        """List the living processes of this test."""
        found = []
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                if self.sign.encode() in file.read().split(b"\0"):
                    found.append(pid)
        return [pid for pid in found if procs.start_time(pid) is not None]

    def none_left(self, within_s: float = PATIENCE_S) -> None:
        """Wait until nothing of this test lives."""
        eventually(lambda: not self.left(), within_s, what="the end of all processes")

    def close(self) -> None:
        """End what is left, and say so.

        Raises:
            AssertionError: something was.
        """
        for terminal in self._terminals:
            terminal.close()
        for process in self._started:
            if process.stdout is not None:
                process.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)
        left = self.left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait(PATIENCE_S)
        assert not left, f"left alive: {left}"


def _path(folder: str) -> Path:
    from pathlib import Path

    return Path(folder)
