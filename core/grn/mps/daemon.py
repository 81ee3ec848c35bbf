"""One MPS control daemon, looked at from outside.

That its control socket exists says little: it outlives a daemon that was killed, and a daemon may
hang. So it is asked, through NVIDIA's own tool, which reads a command on standard input; a tool that
is not there cannot ask, and then nothing is promised.

Promises: a question has a deadline and leaves no process behind.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from grn import procs

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEADLINE_S", "Daemon", "Question", "ask", "find"]

DEADLINE_S = 2.0
_TOOL = "nvidia-cuda-mps-control"
_COMMAND = b"get_server_list\n"
_MOST_BYTES = 1 << 16


class Daemon(NamedTuple):
    """What a pipe directory shows. Two that are equal are one daemon."""

    folder: str
    uid: int
    socket: tuple[int, int, int]
    """Device, inode and time of the control socket: another daemon makes another one."""

    def process(self) -> tuple[int, int] | None:
        """Return its pid and start time; None where they cannot be seen from here."""
        try:
            with open(f"{self.folder}/{_TOOL}.pid", encoding="ascii") as file:
                pid = int(file.read())
        except (OSError, ValueError):
            return None
        start = procs.start_time(pid) if pid > 0 else None
        return None if start is None else (pid, start)

    def may_be_masked(self) -> bool:
        """Whether it renumbers devices: it was started under a mask, or nobody can say.

        Then an index in a client's mask may mean another device, or none.
        """
        process = self.process()
        try:
            with open(f"/proc/{process[0] if process else 0}/environ", "rb") as file:
                return b"CUDA_VISIBLE_DEVICES=" in file.read()
        except OSError:  # somebody else's, or of another pid namespace
            return True


def find(folder: str) -> Daemon | None:
    """Look for a daemon's control socket."""
    try:
        found = os.stat(f"{folder}/control")
    except OSError:
        return None
    return Daemon(folder, found.st_uid, (found.st_dev, found.st_ino, found.st_mtime_ns))


class Question:
    """A question to a daemon that is on its way; readable on `fileno()` when it is over."""

    def __init__(self, folder: str, environ: Mapping[str, str]) -> None:
        """Ask.

        Raises:
            OSError: if there is no tool to ask with, or no process can be made.
        """
        self._process = subprocess.Popen(  # noqa: S603 - a fixed word
            [_TOOL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, "CUDA_MPS_PIPE_DIRECTORY": folder},
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        stdin = self._process.stdin
        if stdin is not None:
            try:
                stdin.write(_COMMAND)
                stdin.close()
            except BrokenPipeError:
                pass  # it ended at once, and its status tells

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._pidfd

    def answered(self) -> bool:
        """Return what came of it, after the end of the tool; one that still runs is killed."""
        if self._process.poll() is None:
            self._process.kill()
        status = self._process.wait()
        os.close(self._pidfd)
        text = b""
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)  # a child of the tool may hold it
            text = self._process.stdout.read(_MOST_BYTES) or b""
            self._process.stdout.close()
        # It lists the servers' pids, none at first; anything else is a complaint.
        return status == 0 and all(word.isdigit() for word in text.split())


def ask(folder: str, environ: Mapping[str, str], within_s: float = DEADLINE_S) -> bool:
    """Ask a daemon, and wait for its answer; False if none comes in time."""
    import select  # noqa: PLC0415 - the broker waits in its event loop

    try:
        question = Question(folder, environ)
    except OSError:
        return False
    poll = select.poll()
    poll.register(question.fileno(), select.POLLIN)
    poll.poll(within_s * 1000)
    return question.answered()
