"""A folder with a dodo file, and doit run in it as people run it, against a broker of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from tests.env import PATIENCE_S, eventually
from tests.supervise.grnrun import _processes_with
from tests.supervise.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.env import BrokerEnv

__all__ = ["RUNNERS", "DodoFolder", "Done"]

RUNNERS = {"serial": (), "process": ("-n", "4"), "thread": ("-n", "4", "-P", "thread")}
"""How doit runs its tasks: the words of its command line."""

_HEAD = "from grn_plugins.doit import grn, grn_task\n"


class Done:
    """What became of one run of doit."""

    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode(errors="replace")

    def __repr__(self) -> str:
        return f"exit status {self.code}\nstdout:\n{self.out}\nstderr:\n{self.err}"


class DodoFolder:
    """A folder in which doit runs."""

    def __init__(self, env: BrokerEnv, folder: Path) -> None:
        self.env = env
        self.folder = folder
        self._terminals: list[Terminal] = []

    def dodo(self, text: str, *, head: str = _HEAD, name: str = "dodo.py") -> None:
        """Write the dodo file; the import of `grn` and `grn_task` stands before it."""
        self.write(name, head + textwrap.dedent(text))

    def write(self, name: str, text: str) -> None:
        """Write another file."""
        (self.folder / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def read(self, name: str) -> str:
        """Read what a task has written."""
        return (self.folder / name).read_text(encoding="utf-8")

    def lines(self, name: str) -> list[str]:
        """Read the lines that tasks have written, none if there is no such file yet."""
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def argv(self, *args: str) -> list[str]:
        """Return the words that run doit."""
        return [sys.executable, "-m", "doit", *args]

    def doit(self, *args: str, **options: Any) -> Done:
        """Run doit to its end."""
        options = {"capture_output": True, "timeout": 4 * PATIENCE_S, **options}
        env = {**self.env.environ, **options.pop("environ", {})}
        options = {"stdin": subprocess.DEVNULL, **options} if "input" not in options else options
        return Done(
            subprocess.run(self.argv(*args), check=False, cwd=self.folder, env=env, **options)
        )

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start doit."""
        pipe = subprocess.PIPE
        env = {**self.env.environ, **options.pop("environ", {})}
        options = {"stdout": pipe, "stderr": pipe, "cwd": self.folder, "env": env, **options}
        return self.env.popen(self.argv(*args), **options)

    def in_terminal(self, *args: str, folder: Path | None = None, **environ: str) -> Terminal:
        """Start it in the foreground of a terminal, whose session outlives it."""
        env = {**self.env.environ, "TERM": "xterm", **environ}
        terminal = Terminal(self.argv(*args), env, folder or self.folder)
        self._terminals.append(terminal)
        return terminal

    def wait_for(self, name: str, lines: int = 1) -> None:
        """Wait until a file has so many lines."""
        eventually(lambda: len(self.lines(name)) >= lines, what=f"{lines} lines in {name}")

    def saved(self) -> dict[str, Any]:
        """Return what doit keeps of its tasks (with `--backend json`)."""
        saved: dict[str, Any] = json.loads(self.read(".doit.db"))
        return saved

    def left(self) -> list[int]:
        """List the living processes of this project, but for the broker and what leads terminals."""
        known = {terminal.leader_pid for terminal in self._terminals}
        if self.env.broker is not None:
            known.add(self.env.broker.pid)
        sign = f"GRN_TEST_ENV={self.env.marker}".encode()
        return [pid for pid in _processes_with(sign) if pid not in known]

    def none_left(self, within_s: float = PATIENCE_S) -> None:
        """Wait until nothing that doit has started lives, and no lease is held."""
        eventually(lambda: not self.left(), within_s, what="the end of all processes")
        eventually(lambda: not self.env.status()["leases"], what="the end of all leases")

    def close(self) -> None:
        """End what still runs."""
        for terminal in self._terminals:
            terminal.close()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
