"""Our end of the line to one command's shim: we hear of its start and its end, and can have it stopped.

    pid SHIM COMMAND  ->  exit CODE | signal NUMBER | exec ERRNO  ->  left PID ...  ->  end of file

Promises: it is known when the command, and all that it has started, is gone.
Must not: outlive its action; every way out of that closes it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from typing import TYPE_CHECKING

from grn.supervise.programs import NOT_EXECUTABLE, NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.grants import Used

__all__ = ["Line"]

_AFTER_ORDER_S = 15.0
"""What a stop may take beyond the command's own time of grace: the shim gives up before."""


_END_WITH_USE = 4
_KIB_IN_MIB = 1024


def _used(words: list[str]) -> Used:
    """Read `exit CODE CPU KIB`, of which the last two words may be missing."""
    if len(words) < _END_WITH_USE:
        return {}
    return {"cpu_s": float(words[2]), "rss_mib": -(-int(words[3]) // _KIB_IN_MIB)}


class Line:
    """A pair of sockets, of which the shim inherits `fd`. `began(pid)` is called when it runs."""

    def __init__(self, began: Callable[[int], None]) -> None:
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.used: Used = {}
        """What its processes took, in the words of a release."""
        self.exec_errno = 0
        self.notes: list[str] = []
        """What people are to know."""
        self.stopped = False
        """Whether its end is our doing."""
        self._began = began
        self._ours, self._theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._gone = threading.Event()
        threading.Thread(target=self._listen, name="grn-shim", daemon=True).start()

    @property
    def fd(self) -> int:
        """The descriptor for the shim."""
        return self._theirs.fileno()

    def stop(self, grace_s: float) -> None:
        """Interrupt the command, then end it; return when it and all of it is gone."""
        self._close_theirs()
        self.stopped = not self._gone.is_set()
        self._order(b"I")
        try:
            self._gone.wait(grace_s + _AFTER_ORDER_S)
        except BaseException:  # a second Ctrl-C: it is terminated, and we wait no longer
            self._order(b"T")
            raise
        finally:
            self.close()

    def _order(self, order: bytes) -> None:
        with self._lock:
            if self._ours.fileno() >= 0:
                with contextlib.suppress(OSError):  # it has ended since
                    self._ours.send(order)

    def is_gone(self, within_s: float) -> bool:
        """Whether the shim has ended, and so all of its command."""
        return self._gone.wait(within_s)

    def close(self) -> None:
        """Let go; a command that still runs is ended."""
        self._close_theirs()
        with self._lock:
            if self._ours.fileno() >= 0:
                with contextlib.suppress(OSError):  # its other end is closed already
                    self._ours.shutdown(socket.SHUT_RDWR)
        self._gone.wait(_AFTER_ORDER_S)  # of the thread: it ends at once

    def _close_theirs(self) -> None:
        with self._lock:
            if self._theirs.fileno() >= 0:
                self._theirs.close()

    def _listen(self) -> None:
        rest = b""
        try:
            while data := self._received():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._hear(line.decode("utf-8", "replace").split())
        finally:
            self._gone.set()
            with self._lock:
                self._ours.close()

    def _received(self) -> bytes:
        try:
            return self._ours.recv(4096)
        except ConnectionResetError:  # it has ended without having read an order of ours
            return b""

    def _hear(self, words: list[str]) -> None:
        if words[0] == "pid":
            self._close_theirs()  # else there would be no end of file
            self._began(int(words[1]))
        elif words[0] == "exit":
            self.exit_code = int(words[1])
            self.used = _used(words)
        elif words[0] == "signal":
            self.signal = int(words[1])
            self.used = _used(words)
        elif words[0] == "exec":
            self.exec_errno = int(words[1])
            self.exit_code = NOT_FOUND if self.exec_errno == errno.ENOENT else NOT_EXECUTABLE
        elif words[0] == "left":
            pids = " ".join(words[1:])
            self.notes.append(
                f"could not end process {pids}; the device memory that it holds stays booked"
            )
        elif words[0] == "note":
            self.notes.append(" ".join(words[1:]))
