"""One broker per socket: the lock that says so, and taking the socket's name without stealing it.

The lock is a flock on `<socket>.lock`, held for life: the kernel drops it with the process, however
it dies. Its file is never unlinked, since between somebody's open and flock an unlink would make
two files of one name, hence two holders. The pid in it informs people; nothing decides by it.

Under the lock the socket is bound to a second name, listens there, and is renamed over the stale
one, so the path always names a socket that is served or provably dead. asyncio's own
`start_unix_server(path=...)` would remove a *live* broker's socket without asking.

A name can be taken from a living broker; `broker/guard.py` notices that and takes it again.

Must not: remove anything that is not a dead socket of this path.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import zlib
from typing import Any

from grn import paths
from grn.errors import PathError, ProtocolError
from grn.rules import wire

__all__ = [
    "BrokerSocket",
    "InstanceLock",
    "TakenError",
    "bind_socket",
    "is_served",
    "refuse_if_served",
    "still_own",
    "unlink_own",
]

_ANSWER_WITHIN_S = 5.0
_BACKLOG = 512
_PRIVATE = 0o600
_RECV_BYTES = 65536
_PROBES = 5  # a broker that dies while we look shows as end-of-file once, then as refused


class TakenError(PathError):
    """Another broker holds the lock, or answers at the path."""


class InstanceLock:
    """The right to be the broker at a socket's path, from `acquire` until the process ends."""

    def __init__(self, socket_path: str) -> None:
        self.path = paths.beside(socket_path).lock
        self._socket_path = socket_path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or fail at once; keep it if it is ours.

        When its file was removed, this takes the lock on a new file. The old one is given up after.

        Raises:
            TakenError: another broker holds it; the message has its pid.
            PathError: the file cannot be opened or written.
        """
        while not self.still_ours():
            fd = self._take()
            # Someone may have removed the file between open and flock: then this lock guards nothing.
            if _same_file(fd, self.path):
                self.release()
                self._fd = fd
            else:
                os.close(fd)

    def _take(self) -> int:
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            pid = _pid_in(fd)
            os.close(fd)
            raise TakenError(_already_running(pid, self._socket_path)) from None
        except OSError as error:
            os.close(fd)
            raise PathError(f"cannot write {self.path}: {error.strerror}") from error
        return fd

    def still_ours(self) -> bool:
        """Say whether the lock's name still leads to our lock; if not, another could be taken."""
        return self._fd is not None and _same_file(self._fd, self.path)

    def release(self) -> None:
        """Give the lock up; the file stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        try:
            return os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE
            )
        except OSError as error:
            raise PathError(f"cannot open the lock {self.path}: {error.strerror}") from error


class BrokerSocket(socket.socket):
    """A listening socket that remembers which file it was bound to."""

    file_id: tuple[int, int] | None = None


def bind_socket(
    path: str, *, mode: int = _PRIVATE, patience_s: float = _ANSWER_WITHIN_S
) -> BrokerSocket:
    """Listen at the path. The caller holds the `InstanceLock`.

    Args:
        path: at most 107 bytes.
        mode: who may connect, whatever the umask.
        patience_s: how long what stands at the path may take to answer.

    Raises:
        PathError: something is there that is not a dead socket, or the folder cannot be written.
    """
    refuse_if_served(path, patience_s=patience_s)
    listener = BrokerSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind_and_rename(listener, path, mode)
    except OSError as error:
        listener.close()
        raise PathError(f"cannot listen at {path}: {error.strerror or error}") from error
    return listener


def still_own(path: str, listener: socket.socket) -> bool:
    """Say whether the path still leads to this socket; always so for one that systemd passed in."""
    file_id = getattr(listener, "file_id", None)
    return file_id is None or _file_id(path) == file_id


def unlink_own(path: str, listener: socket.socket) -> None:
    """Remove the socket's file if it is the one that this socket was bound to. Hold the lock.

    Whatever else is there, and a socket that systemd passed in, stays.
    """
    file_id = getattr(listener, "file_id", None)
    if file_id is not None and _file_id(path) == file_id:
        os.unlink(path)


def _bind_and_rename(listener: BrokerSocket, path: str, mode: int) -> None:
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        waiting = _waiting_name(path, folder)
        if os.path.lexists(waiting):
            os.unlink(waiting)
        before = os.umask(0o777 & ~mode)
        try:
            listener.bind(waiting)
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.file_id = _file_id(waiting)
        os.rename(waiting, path)
    finally:
        os.close(folder)


def _waiting_name(path: str, folder: int) -> str:
    """Name the socket until it listens: the same at each start, so what a killed one left is replaced.

    It is what `ss` shows, and what clients are told to be connected to, for as long as the socket
    lives. So it is readable, unless that would not fit: a path near the limit goes through the
    folder's descriptor.
    """
    readable = f"{path}.new"
    if len(os.fsencode(readable)) <= paths.SOCKET_PATH_LIMIT:
        return readable
    return f"/proc/self/fd/{folder}/.grn-{zlib.crc32(os.fsencode(os.path.basename(path))):08x}"


def is_served(path: str) -> bool:
    """Say at once whether somebody listens at the path, even if the queue there is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def refuse_if_served(path: str, *, patience_s: float = _ANSWER_WITHIN_S) -> None:
    """Make sure that nothing stands at the path but a dead socket.

    Raises:
        TakenError: a broker answers there.
        PathError: something else is there, or it accepts and does not answer in time.
    """
    for _ in range(_PROBES):
        if not paths.check_socket_place(path):
            return
        if _is_dead(path, patience_s):
            return
    raise PathError(
        f"something accepts connections at {path} and closes them at once; it was not touched. "
        "End it, or choose another path with --socket or GRN_SOCKET"
    )


def _is_dead(path: str, patience_s: float) -> bool:
    """Say that nobody listens there; False means look again, and a living broker is an error."""
    deadline = time.monotonic() + patience_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(patience_s)
        try:
            probe.connect(path)
            hello = _ask(probe, deadline)
        except ConnectionRefusedError:
            return True
        except (TimeoutError, BlockingIOError):  # a queue of unanswered connections that is full
            raise PathError(_silent(path, patience_s)) from None
        except ProtocolError:
            raise PathError(
                f"something other than a broker answers at {path}; it was not touched. Choose "
                "another path with --socket or GRN_SOCKET"
            ) from None
        except (FileNotFoundError, ConnectionError):
            return False
        except OSError as error:
            raise PathError(f"cannot connect to {path}: {error.strerror}") from error
    if hello is None:
        return False
    raise TakenError(_already_running(hello.get("pid"), path))


def _ask(probe: socket.socket, deadline: float) -> dict[str, Any] | None:
    """Say hello and return the answer; None when the other side closes instead."""
    hello = {"op": "hello", "magic": wire.MAGIC, "version": wire.VERSION, "features": []}
    probe.sendall(wire.encode(hello))
    frames = wire.Frames()
    while True:
        # The whole answer has so long, not each byte of it.
        probe.settimeout(max(deadline - time.monotonic(), 0.001))
        chunk = probe.recv(_RECV_BYTES)
        if not chunk:
            return None
        for body in frames.feed(chunk):
            return wire.decode(body)


def _silent(path: str, patience_s: float) -> str:
    return (
        f"something answers at {path} but not within {patience_s:g} s; it was not touched. "
        "If it is a broker that hangs, end it; else choose another path with --socket"
    )


def _already_running(pid: object, path: str) -> str:
    who = f"pid {pid}" if pid else "its pid is not known yet"
    return f"already running, {who}: a broker serves {path}"


def _pid_in(fd: int) -> int | None:
    # Between its flock and its write a new holder's file still has the pid of the one before.
    text = os.pread(fd, 32, 0).strip()
    if not text.isdigit() or not os.path.exists(f"/proc/{int(text)}"):
        return None
    return int(text)


def _same_file(fd: int, path: str) -> bool:
    found = os.fstat(fd)
    return _file_id(path) == (found.st_dev, found.st_ino)


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
