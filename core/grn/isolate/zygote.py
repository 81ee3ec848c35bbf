"""The fork server: has its modules imported, forks a process for each call, and buries it.

    caller -> server   one message per call, the number of its descriptors: the line, the call,
                       its result, the standard streams, and what else the body is given
    server -> line     pid, start time and a pidfd; then, when the process is gone and buried, how
                       it ended. Or a text: why there is no process.

It is single-threaded, so that a fork is always safe. The line is the caller's hold on the process:
when it is closed, the process is killed.

Promises: it ends with its caller, and the processes that live then end with it, with all that they
have started; it is not tied to a thread of the caller. If it is killed itself, the kernel ends its
processes. What a process that ended by itself has left in the background is left alone.
Must not: take signals that are meant for the caller's group or terminal.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.isolate import body, surroundings
from grn.isolate.family import kin, signal_all
from grn.isolate.warming import warm_up
from grn.supervise.kernel import become_subreaper, die_with_parent
from grn.supervise.spawn import hold_standard_descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BORN", "ENDED", "MOST_FDS", "PROBLEM", "main"]

MOST_FDS = 64
BORN = struct.Struct("<cqq")  # b"B", pid, start time
ENDED = struct.Struct("<cqdq")  # b"E", wait status, seconds of CPU, KiB of resident memory
PROBLEM = b"P"

_MESSAGE = 1 << 12
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
_GIVE_UP_S = 10.0
_TICK_MS = 10
_NAME = b"grn-forkserver"


class Zygote:
    """The processes that live, by their pid."""

    def __init__(self, control: socket.socket, caller: int, pad: int) -> None:
        self.problem = ""
        self._control = control
        self._caller = caller
        self._pad = pad
        self._lines: dict[int, socket.socket] = {}
        self._doomed: dict[int, dict[int, int]] = {}
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._deaths, self._death = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._files[1], self._files[1]))
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._death, warn_on_full_buffer=False)

    def run(self) -> None:
        """Do what the caller says until it is gone."""
        while True:
            poll = select.poll()
            for fd in (self._control.fileno(), self._caller, self._deaths):
                poll.register(fd, select.POLLIN)
            pids = {line.fileno(): pid for pid, line in self._lines.items()}
            for fd in pids:
                poll.register(fd, 0)  # only that it was closed
            self._cull()
            ready = {fd for fd, _ in poll.poll(_TICK_MS if self._doomed else None)}
            if self._caller in ready:
                return
            if self._deaths in ready:
                self._bury()
            for fd in ready & pids.keys():
                self._doom(pids[fd])
            if self._control.fileno() in ready and not self._obey():
                return

    def _bury(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody has died: it does no harm to look
            os.read(self._deaths, _MESSAGE)
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            line = self._lines.pop(pid, None)
            if line is not None:  # else an orphan of a body
                cpu_s = used.ru_utime + used.ru_stime
                _tell(line, ENDED.pack(b"E", status, cpu_s, used.ru_maxrss))
                line.close()

    def _doom(self, pid: int) -> None:
        """Have a process killed that nobody wants any more, and all that is its own."""
        line = self._lines.pop(pid, None)
        if line is not None:
            line.close()
            self._doomed[pid] = {}

    def _cull(self) -> None:
        below = procs.descendants(os.getpid()) if self._doomed else []
        for pid, seen in list(self._doomed.items()):
            left = kin(below, (pid,), seen)
            signal_all(left, signal.SIGKILL)
            if not left:
                del self._doomed[pid]

    def _obey(self) -> bool:
        """Take one message; False: the caller is gone."""
        data, fds, _, _ = socket.recv_fds(
            self._control, _MESSAGE, MOST_FDS, socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return False
        if fds:
            line = socket.socket(fileno=fds[0])
            try:
                if len(fds) < data[0]:
                    _refuse(line, "the fork server has no descriptors left")
                else:
                    self._serve(line, fds[1:])
            finally:
                _close_all(fds[1:])
        return True

    def _serve(self, line: socket.socket, fds: Sequence[int]) -> None:
        if self.problem:
            _refuse(line, self.problem)
            return
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _refuse(line, f"no process can be started: {error}")
            return
        if pid == 0:
            self._become_body(server, line, fds)
        self._lines[pid] = line
        self._doomed.pop(pid, None)  # all of a former one of this number are gone
        birth = procs.birth(pid)
        try:
            pidfd = os.pidfd_open(pid)  # its number is its own until we have buried it
        except OSError as error:
            _tell(line, _problem(f"the process cannot be watched: {error}"))
            self._doom(pid)
            return
        try:
            message = BORN.pack(b"B", pid, birth[0] if birth is not None else 0)
            socket.send_fds(line, [message], [pidfd])
        except OSError:  # the caller was interrupted and does not want it any more
            self._doom(pid)
        finally:
            os.close(pidfd)

    def _become_body(self, server: int, line: socket.socket, fds: Sequence[int]) -> None:
        """Leave all that is the server's behind."""
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(0)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for sock in (line, self._control, *self._lines.values()):
                sock.close()
            _close_all((self._caller, self._deaths, self._death))
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
            call, result, *streams = fds
            surroundings.given[:] = streams[3:]
            body.live(call, result, streams[:3], self._pad)
        except OSError:
            traceback.print_exc()
        finally:
            os._exit(1)

    def end(self) -> None:
        """Kill the processes that live and all that is theirs, until none is left."""
        for pid in list(self._lines):
            self._doom(pid)
        deadline = time.monotonic() + _GIVE_UP_S
        while self._doomed and time.monotonic() < deadline:
            self._cull()
            select.select([self._deaths], [], [], _TICK_MS / 1000 if self._doomed else 0)
            self._bury()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def _tell(line: socket.socket, message: bytes) -> None:
    try:
        line.send(message)
    except OSError:  # nobody wants to know any more
        return


def _refuse(line: socket.socket, why: str) -> None:
    _tell(line, _problem(why))
    line.close()


def _problem(why: str) -> bytes:
    return PROBLEM + why.encode(errors="replace")[: _MESSAGE - len(PROBLEM)]


def main(control_fd: int, caller_pid: int) -> None:
    """Serve the process that holds the other end of this socket."""
    pad = surroundings.find_pad()
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    hold_standard_descriptors()
    with open("/proc/self/comm", "wb") as file:
        file.write(_NAME)
    control = socket.socket(fileno=control_fd)
    caller = _watch(caller_pid)
    become_subreaper()
    problem = warm_up(control)
    gc.collect()
    gc.freeze()  # a collection in a body would copy every page it looks at
    zygote = Zygote(control, caller, pad)
    zygote.problem = problem
    status: Any = 0
    try:
        zygote.run()
    except BaseException:  # noqa: BLE001 - it is told, and nobody is left behind
        traceback.print_exc()
        status = 1
    finally:
        zygote.end()
        sys.stderr.flush()
        os._exit(status)  # no exit handlers: those of preloaded modules are for the bodies


def _watch(caller_pid: int) -> int:
    """Return a descriptor that tells of the caller's end; of its process's, not of a thread's."""
    try:
        caller = os.pidfd_open(caller_pid)
    except ProcessLookupError:
        os._exit(0)
    if os.getppid() != caller_pid:
        os._exit(0)
    return caller
