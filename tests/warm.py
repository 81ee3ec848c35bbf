"""Brokers from a process that has imported their modules: a test run starts a thousand and more.

The process forks a broker for each order, in the environment, folder and with the descriptors that it
is told of; from there on it is `grn broker`, line by line. What a start itself does is tested with
brokers that are started cold, and so are programs of which the interpreter must know something
before it runs.

The program is its own other side: `python -m tests.warm FD broker`. (The last word is for who asks
whether a process is a broker.)
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["WarmBroker", "can_be_warm", "start"]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BEFORE_IT_RUNS = ("PYTHON", "LC_", "MALLOC_", "LD_PRELOAD", "TZ")
_OF_A_BROKER = ("grn.cli.main", "grn.cli.broker", "grn.broker.server", "grn.devices.simulated")
_LANG = "C.UTF-8"
_LARGEST_ORDER = 1 << 17
_STATUS = 4
_MOST_FDS = 16


def can_be_warm(environ: Mapping[str, str]) -> bool:
    """Whether nothing in this environment speaks to the interpreter of a program that starts."""
    return environ.get("LANG") == _LANG and not any(x.startswith(_BEFORE_IT_RUNS) for x in environ)


class WarmBroker:
    """A forked broker, with as much of `subprocess.Popen` as tests use of a broker."""

    def __init__(self, pid: int, told: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; `None` while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._told, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(["grn", "broker"], timeout or 0)
            status = os.read(self._told, _STATUS)
            os.close(self._told)
            assert len(status) == _STATUS, "the process that forks brokers has died"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "little"))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to leave."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


_lines: dict[int, tuple[socket.socket, subprocess.Popen[bytes]]] = {}
"""By process, since a forked one must not use its parent's."""


def start(
    args: Sequence[str], environ: Mapping[str, str], *, cwd: str, output: int, fds: Sequence[int]
) -> WarmBroker:
    """Start `grn ARGS` with its output in `output`; `fds` keep their numbers in it."""
    if os.getpid() not in _lines:
        _lines[os.getpid()] = _begin()
    line, _ = _lines[os.getpid()]
    told, tell = os.pipe()
    order = {"args": list(args), "environ": dict(environ), "cwd": cwd, "fds": list(fds)}
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, tell)
        message = json.dumps(order).encode()
        socket.send_fds(line, [message], [tell, output, *fds])
        pid = int.from_bytes(line.recv(8), "little")
    assert pid, "the process that forks brokers has died"
    return WarmBroker(pid, told)


def _begin() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks; it ends when its line does, with the process of the tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(theirs.fileno()), "broker"],
            cwd=ROOT,
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": _LANG},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours, process


# -- the other side -------------------------------------------------------------------------------


def _serve(line: socket.socket) -> dict[str, Any]:
    """Fork for each order, and tell how the forked ended; in the forked, return its order."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: its pid, and whom to tell
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != line.fileno():
                poll.unregister(fd)
                pid, tell = running.pop(fd)
                status = os.waitpid(pid, 0)[1]
                with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
                    os.write(tell, status.to_bytes(_STATUS, "little"))
                os.close(tell)
                os.close(fd)
                continue
            message, fds, _, _ = socket.recv_fds(line, _LARGEST_ORDER, _MOST_FDS)
            if not message:
                os._exit(0)  # the tests have ended
            pid = os.fork()
            if pid == 0:
                order: dict[str, Any] = json.loads(message)
                line.detach()
                _become(order, fds[1:])
                return order
            for inherited in fds[1:]:
                os.close(inherited)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, fds[0]
            poll.register(pidfd, select.POLLIN)
            line.send(pid.to_bytes(8, "little"))


def _become(order: dict[str, Any], fds: list[int]) -> None:
    """Have the environment, the folder and the descriptors of the order, and no others."""
    above = max([*fds, *order["fds"], 2]) + 1  # out of the way of each other first
    output, *others = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    wanted = {1: output, 2: output, **dict(zip(order["fds"], others, strict=True))}
    for number, fd in wanted.items():
        os.dup2(fd, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (0, *wanted):
            with contextlib.suppress(OSError):  # that of this listing
                os.close(number)
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["cwd"])
    random.seed()


def _main() -> NoReturn:
    for module in _OF_A_BROKER:
        importlib.import_module(module)
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = ["grn", *order["args"]]
    status = importlib.import_module("grn.cli.main").main()
    if threading.active_count() == 1:
        os._exit(status)  # to take all that was imported down again would cost more than the rest
    sys.exit(status)


if __name__ == "__main__":
    _main()
