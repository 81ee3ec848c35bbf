"""A terminal for one program: it runs in the foreground, in a session whose leader outlives it.

Without such a leader the kernel would hang the terminal up at the program's end, and a test could
not tell what ended what.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING

from grn import procs
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Terminal"]

_LEADER = """
import json, os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
report = int(sys.argv[1])
os.setsid()
terminal = os.open(os.ttyname(0), os.O_RDWR)  # the first one a leader opens controls the session
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.close(terminal)
    os.close(report)
    os.execv(sys.argv[2], sys.argv[2:])
os.write(report, json.dumps(pid).encode() + b"\\n")
_, status = os.waitpid(pid, 0)
os.write(report, json.dumps(os.waitstatus_to_exitcode(status)).encode() + b"\\n")
signal.pause()
"""


class Terminal:
    """The program's terminal, seen from the keyboard and the screen."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: Path) -> None:
        self._master, slave = os.openpty()
        told, tell = os.pipe()
        self._leader = subprocess.Popen(
            [sys.executable, "-c", _LEADER, str(tell), *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=[tell],
            env=env,
            cwd=folder,
        )
        os.close(slave)
        os.close(tell)
        self._reports = os.fdopen(told)
        self._screen = bytearray()
        self._reading = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = int(json.loads(self._reports.readline()))

    def _read(self) -> None:
        while True:
            try:
                select.select([self._master], [], [])
            except (OSError, ValueError):  # it was closed
                return
            with self._reading:
                if not self._take():
                    return

    def _take(self) -> bool:
        """Take in what there is; `False` if there will be no more."""
        try:
            while select.select([self._master], [], [], 0)[0]:
                data = os.read(self._master, 65536)
                if not data:
                    return False
                self._screen += data
        except (OSError, ValueError):  # the last process on the other side has gone
            return False
        return True

    @property
    def leader_pid(self) -> int:
        """The process that leads the session, and outlives the program."""
        return self._leader.pid

    @property
    def has_ended(self) -> bool:
        """Whether the program is gone."""
        return procs.start_time(self.pid) is None

    @property
    def screen(self) -> bytes:
        """All that was written to the terminal so far."""
        return bytes(self._screen)

    def wait_for(self, text: bytes) -> None:
        """Wait until the program has written this."""
        eventually(lambda: text in self.screen, what=f"{text!r} on the screen: {self.screen!r}")

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def resize(self, *, rows: int, columns: int) -> None:
        """Give the window another size."""
        termios.tcsetwinsize(self._master, (rows, columns))

    def end(self) -> int:
        """Wait until the program has ended; return its status, negative for a signal."""
        result: list[int] = []
        reader = threading.Thread(
            target=lambda: result.append(json.loads(self._reports.readline()))
        )
        reader.daemon = True
        reader.start()
        reader.join(PATIENCE_S)
        assert result, f"the program has not ended; its screen: {self.screen!r}"
        with self._reading:  # what it wrote last
            self._take()
        return result[0]

    def close(self) -> None:
        """End the session, which hangs the terminal up."""
        if self._leader.poll() is not None:
            return
        self._leader.kill()
        self._leader.wait(PATIENCE_S)
        self._reports.close()
        os.close(self._master)
