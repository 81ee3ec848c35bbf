"""The broker's hold on the zygote: start it, have it fork workers, have it kill them.

Promises: nothing here waits, except `wait_ready` at the start and `close` for a moment at the end;
the zygote and all workers end with the broker, however that ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from grn.devices.nvml.channel import Channel
from grn.rules.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Nursery", "Worker", "library_is_missing"]

_LIBRARY = "libnvidia-ml.so.1"
_LINKER_CACHE = "/etc/ld.so.cache"
_WSL = "/usr/lib/wsl/lib"
_TRUSTED = (
    *("/lib", "/usr/lib", "/lib64", "/usr/lib64"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
)
"""Where the linker looks also without its cache (a container that could not write one)."""

_LENGTH_BYTES = 4
_MESSAGE = 1 << 16
_LEAVES_WITHIN_S = 2.0


class Worker:
    """A forked worker: its number and the socket to it. `Nursery.pids` has its pid."""

    __slots__ = ("channel", "number")

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel


class Nursery:
    """Has one zygote, and a new one when that died."""

    def __init__(self) -> None:
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._number = 0
        self.pids: dict[int, int] = {}
        """Workers that are not known to have ended: number -> pid, 0 until it is told."""

    # -- the zygote -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start a zygote; it takes messages at once, and obeys them when it is up.

        Raises:
            OSError: no process can be started.
        """
        self._bury()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # -P: a pynvml.py in the folder where the broker was started is not the binding.
            self._zygote = subprocess.Popen(  # noqa: S603 - this very interpreter and module
                [
                    *(sys.executable, "-P", "-m", "grn.devices.nvml.zygote"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environ(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours

    def wait_ready(self, until_s: float) -> str:
        """Wait until the zygote is up; return what keeps it from it, '' if nothing does."""
        while True:
            for message in self.heard():
                if "ready" in message:
                    return str(message["ready"])
            if self._control is None:
                return "the process that asks the driver died at once; the broker's log has more"
            left = until_s - time.monotonic()
            if left <= 0:
                return "the process that asks the driver did not start in time"
            select.select([self._control], [], [], left)

    def heard(self) -> list[dict[str, Any]]:
        """Take in what the zygote says; return it."""
        messages: list[dict[str, Any]] = []
        while self._control is not None:
            try:
                data = self._control.recv(_MESSAGE)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self._lose()
                break
            messages.append(decode(data[_LENGTH_BYTES:]))
        for message in messages:
            if "ended" in message:
                self.pids.pop(message["ended"], None)
            elif "forked" in message and message["forked"] in self.pids:
                self.pids[message["forked"]] = message["pid"]
        return messages

    def _lose(self) -> None:
        """The zygote died, and the kernel ends its workers."""
        if self._control is not None:
            self._control.close()
        self._control = None
        self.pids.clear()

    def _bury(self) -> None:
        """See the old zygote off; it is our child, so its pid is its own until we have waited."""
        self._lose()
        if self._zygote is not None:
            if self._zygote.poll() is None:
                self._zygote.kill()
            self._zygote.wait()
            self._zygote = None

    @property
    def zygote_pid(self) -> int:
        """The zygote's pid, 0 if there is none."""
        return self._zygote.pid if self._zygote is not None else 0

    # -- workers --------------------------------------------------------------------------------

    def fork(self, card: Mapping[str, Any]) -> Worker | None:
        """Have a worker forked for a card, {} for a census, or for the pairs of cards; None: not now."""
        self.heard()
        self._number += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # out of descriptors: later, perhaps
            return None
        message = {"fork": self._number, "card": card}
        if not self._send(message, theirs) and not self._send_to_new(message, theirs):
            ours.close()
            theirs.close()
            return None
        theirs.close()
        self.pids[self._number] = 0
        return Worker(self._number, Channel(ours))

    def kill(self, worker: Worker) -> None:
        """Have a worker killed; `pids` forgets it when it is dead, which may take for ever."""
        self._send({"kill": worker.number}, None)

    def _send_to_new(self, message: Mapping[str, Any], passed: socket.socket) -> bool:
        try:
            self.start()
        except OSError:
            return False
        return self._send(message, passed)

    def _send(self, message: Mapping[str, Any], passed: socket.socket | None) -> bool:
        if self._control is None:
            return False
        fds = [] if passed is None else [passed.fileno()]
        try:
            socket.send_fds(self._control, [encode(message)], fds)
        except OSError:  # it died, or takes nothing: its end will show
            return False
        return True

    def close(self) -> None:
        """End the zygote and all workers."""
        self._lose()  # with this socket it ends by itself, and its workers with it
        if self._zygote is None:
            return
        try:
            self._zygote.wait(_LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._zygote.send_signal(signal.SIGKILL)
            self._zygote.wait()
        self._zygote = None


def library_is_missing() -> bool:
    """Whether it is certain, without starting anything, that the driver's library is not here.

    So a machine without a GPU pays nothing. Where the linker has no cache, nobody can be certain.
    """
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_TRUSTED, _WSL]
    if any(os.path.exists(os.path.join(folder, _LIBRARY)) for folder in folders if folder):
        return False
    try:
        with open(_LINKER_CACHE, "rb") as file:
            return _LIBRARY.encode() not in file.read()
    except OSError:
        return False


def _environ() -> dict[str, str]:
    """Return the zygote's environment: no process of a lease, and WSL's library to be found."""
    environ = {name: value for name, value in os.environ.items() if name != "GRN_LEASE"}
    if os.path.exists(os.path.join(_WSL, _LIBRARY)):
        before = environ.get("LD_LIBRARY_PATH")
        environ["LD_LIBRARY_PATH"] = f"{before}:{_WSL}" if before else _WSL
    return environ
