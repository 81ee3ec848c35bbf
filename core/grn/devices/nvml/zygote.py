"""The zygote: has the binding imported, forks workers when the broker says so, and buries them.

    broker -> zygote   {"fork": 7, "card": {...}} and one end of a socket; {"kill": 7}
    zygote -> broker   {"ready": ""} or {"ready": "why not"}; {"forked": 7, "pid": …}; {"ended": 7}

It is single-threaded and calls no driver, so that a fork is always safe and never blocks. A worker
is killed only while it is this process's child and not yet buried: its pid can be nobody else's.

Must not: outlive the broker, or let a worker outlive itself.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys

from grn.devices.nvml import worker
from grn.devices.nvml.binding import import_binding
from grn.rules.wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_LENGTH_BYTES = 4
_MESSAGE = 1 << 16
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Zygote:
    """The workers that live, by their number."""

    def __init__(self, control: socket.socket, binding: Any) -> None:
        self._control = control
        self._binding = binding
        self._children: dict[int, int] = {}
        self._deaths, self._death = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._death, warn_on_full_buffer=False)

    def run(self) -> None:
        """Do what the broker says until it is gone."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._deaths, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._deaths in ready:
                self._bury()
            if self._control.fileno() in ready and not self._obey():
                break
        for pid in self._children.values():
            os.kill(pid, signal.SIGKILL)

    def _bury(self) -> None:
        os.read(self._deaths, _MESSAGE)
        for number, pid in list(self._children.items()):
            done, _ = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[number]
                _tell(self._control, {"ended": number})

    def _obey(self) -> bool:
        """Take one message; False: the broker is gone."""
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE, 1)
        if not data:
            return False
        message = decode(data[_LENGTH_BYTES:])
        if "kill" in message:
            pid = self._children.get(message["kill"])
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        else:
            self._fork(message["fork"], message["card"], fds[0])
        return True

    def _fork(self, number: int, card: dict[str, Any], fd: int) -> None:
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # too many processes: the broker sees its socket close, and tries again
            os.close(fd)
            _tell(self._control, {"ended": number})
            return
        if pid == 0:
            self._be_worker(zygote, card, fd)
        os.close(fd)
        self._children[number] = pid
        _tell(self._control, {"forked": number, "pid": pid})

    def _be_worker(self, zygote: int, card: dict[str, Any], fd: int) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            _die_with(zygote)
            worker.serve(socket.socket(fileno=fd), self._binding, card)
            status = 0
        except (BrokenPipeError, ConnectionResetError):
            status = 0  # the broker is gone
        except BaseException as error:  # noqa: BLE001 - a copy of the zygote must not run on
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(status)  # no nvmlShutdown: it may hang, and the kernel cleans up as well


def main(argv: list[str]) -> int:
    """Serve the broker whose pid and whose end of a socket were given."""
    control = socket.socket(fileno=int(argv[0]))
    # A Ctrl-C or a service's stop is for the broker; with its end the socket closes.
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    _die_with(int(argv[1]))
    binding, problem = import_binding()
    try:
        _tell(control, {"ready": problem})
        if not problem:
            gc.collect()
            gc.freeze()  # a collection in a worker would copy every page it looks at
            Zygote(control, binding).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the broker is gone, and with it the reason to be here
    return 0


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, which may be gone by now."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _tell(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.sendall(encode(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
