"""The fork server's process as its caller has it: started, spoken to, and seen off.

Promises: when its socket closes, it ends and all its processes with it. Must not: be tied to the
thread that starts it, as a parent-death signal would be.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.isolate import parcel, pickling, surroundings
from grn.isolate.errors import CannotStart, Unpicklable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ServerProcess"]

_LEAVES_WITHIN_S = 15.0  # longer than it tries to end what will not be killed


class ServerProcess:
    """A process that was started at this object's making, and may still be getting warm.

    Raises:
        CannotStart: no process can be started.
        Unpicklable: the initializer cannot travel.
    """

    def __init__(self, preload: Sequence[str], initializer: Callable[[], object] | None) -> None:
        warmth = _warmth(preload, initializer)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = _launch(theirs)
            self.send([warmth])
        except OSError as error:
            self._control.close()
            raise CannotStart(f"the fork server cannot be started: {error}") from error
        finally:
            os.close(warmth)
        birth = procs.birth(self._process.pid)
        self.identity = (self._process.pid, birth[0] if birth is not None else 0)
        """Its pid and start time."""

    def send(self, fds: Sequence[int]) -> None:
        """Hand it descriptors.

        Raises:
            BrokenPipeError, ConnectionResetError: it is dead.
        """
        socket.send_fds(self._control, [bytes([len(fds)])], fds)

    def end(self) -> None:
        """Have it end, and wait for that; it ends all its processes first."""
        self._control.close()
        try:
            self._process.wait(_LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Let go of a parent's server, in a process that was forked from it."""
        self._control.close()
        self._process.returncode = 0  # not our child: nothing to wait for


def _warmth(preload: Sequence[str], initializer: Callable[[], object] | None) -> int:
    def dump(file: Any, keep: pickling.Keep) -> None:
        pickling.dump_value(initializer, file, keep)

    fd = parcel.create("grn-preload")
    try:
        parcel.write(fd, 0, " ".join(preload).encode(), dump)
    except Exception as error:
        os.close(fd)
        raise Unpicklable(
            f"the initializer cannot be sent to the fork server: {type(error).__name__}: {error}",
            what="arguments",
        ) from error
    return fd


def _launch(theirs: socket.socket) -> subprocess.Popen[bytes]:
    # Above the standard descriptors, which may be closed here and are given to the server.
    control = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return _launch_with(control)
    finally:
        os.close(control)


def _launch_with(control: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise CannotStart("this Python does not know its own program (sys.executable is empty)")
    code = (
        f"import sys; sys.path[:] = {surroundings.absolute_path()!r}; "
        f"from grn.isolate.zygote import main; main({control}, {os.getpid()})"
    )
    # Flags (-X dev, -W, -O, -I …) as multiprocessing passes them on to its own server.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return subprocess.Popen(  # noqa: S603 - this very interpreter
        [sys.executable, *flags, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=surroundings.ahead_of_environment() | _without_lease(os.environ),
        pass_fds=[control],
        start_new_session=True,
    )


def _without_lease(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave a lease's mark out: the server outlives the lease in which it happens to be started."""
    return {name: value for name, value in environ.items() if name != "GRN_LEASE"}
