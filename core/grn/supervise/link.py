"""The line to the broker: one connection, and what to do while there is none.

    UP --(end of file)--> AWAY --(connect, hello)--> GREETING --(hello)--> UP

Promises: nothing here blocks once the first connection was made; while the broker is away it is
looked for after 0.05 s, then at longer intervals up to 1 s; a broker that is started on demand is
started again if it is wanted, by a child, since that takes a while.
Must not know what the messages mean, apart from the hello.
"""

from __future__ import annotations

import os
import signal
import socket
import struct

from grn import paths
from grn.connection import Connection
from grn.errors import BrokerGone, GrnError
from grn.rules.wire import encode
from grn.supervise.loop import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from grn.settings import Settings
    from grn.supervise.loop import Loop, Timer

    Message = dict[str, Any]

__all__ = ["Link"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_HELLO_WITHIN_S = 5.0
_WRITE_BYTES = 1 << 18
_LONGEST_PROBLEM = 4096  # bytes: a pipe takes so many at once
_PEERCRED = struct.Struct("3i")


class _Unanswered(Connection):
    """A connection whose hello is answered through the loop, not waited for."""

    def _greet(self) -> Message:
        return {}

    def greeted(self, answer: Message) -> None:
        """Take the broker's answer in."""
        self._broker = answer


class Link:
    """Sends to the broker and hears from it.

    `heard(message)` is called for each message, `lost()` when the connection has ended, and
    `back()` when another one stands. `wants_broker()` says whether one should be started.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        *,
        heard: Callable[[Message], None],
        lost: Callable[[], None],
        back: Callable[[], None],
        wants_broker: Callable[[], bool],
    ) -> None:
        self.up = False
        self.starter: int | None = None
        self.starting = False
        """A broker of our making may be among our children, not yet known by its number."""
        self.problem = ""
        """Why no broker could be started, if that was tried last."""
        self._told: int | None = None
        self._loop = loop
        self._settings = settings
        self._heard = heard
        self._lost = lost
        self._back = back
        self._wants_broker = wants_broker
        self._connection: Connection | None = None
        self._session: str | None = None
        self._greeting = False
        self._on_demand = False
        self._pause_s = _FIRST_PAUSE_S
        self._timer: Timer | None = None
        self._unsent: list[Message] = []
        self._outbox = bytearray()
        self._writing = False
        self._flushing: Timer | None = None

    def use(self, connection: Connection) -> None:
        """Take a connection over on which the hello is done."""
        self._connection = connection
        self._session = connection.session
        self.up = True
        self._on_demand = bool(connection.broker.get("on_demand"))
        self._loop.watch(connection.fileno(), READABLE, self._on_ready)

    def send(self, messages: Sequence[Message]) -> bool:
        """Send with what else comes up in this turn of the loop; False if the broker is away.

        Each write wakes the broker, so a hundred starts in one turn had better be one write.
        """
        if not self.up:
            return False
        self._unsent += messages
        if self._flushing is None:
            self._flushing = self._loop.later(0.0, self._flush)
        return True

    def _flush(self) -> None:
        self._flushing = None
        unsent, self._unsent = self._unsent, []
        if not unsent or self._connection is None:
            return
        stuck = bool(self._outbox)
        self._outbox += b"".join(map(encode, unsent))
        if not stuck:
            self._pump()

    def _pump(self) -> None:
        """Send what fits: a broker that hangs must not make us hang, deaf to every signal."""
        connection = self._connection
        if connection is None:
            return
        try:
            del self._outbox[: connection.send_some(bytes(self._outbox[:_WRITE_BYTES]))]
        except BrokerGone:
            self._drop()
            return
        if bool(self._outbox) != self._writing:
            self._writing = not self._writing
            events = READABLE | WRITABLE if self._writing else READABLE
            self._loop.unwatch(connection.fileno())
            self._loop.watch(connection.fileno(), events, self._on_ready)

    def _on_ready(self) -> None:
        if self._writing:
            self._pump()
        self._on_readable()

    def broker_pid(self) -> int:
        """Name the broker's process; 0 if there is none that has a number here.

        By the kernel, which translates between pid namespaces, and not by the broker's own word.
        """
        if self._connection is None:
            return 0
        sock = socket.socket(fileno=self._connection.fileno())
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        finally:
            sock.detach()  # the descriptor stays the connection's; a copy might not be had
        return int(_PEERCRED.unpack(raw)[0])

    def close(self) -> None:
        """Send what is unsent, and end the connection; the broker forgets what still waits."""
        self._flush()
        self._shut()

    def _shut(self) -> None:
        self._unsent.clear()
        self._outbox.clear()
        self._writing = False
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._loop.unwatch(self._connection.fileno())
            self._connection.close()
        self._connection = None
        self.up = False

    def starter_ended(self) -> None:
        """Take note that the child which started a broker has ended: look for it now."""
        self.starter = None
        if self._told is not None:
            self.problem = os.read(self._told, _LONGEST_PROBLEM).decode(errors="replace")
            os.close(self._told)
            self._told = None
        if not self.up and not self._greeting:
            self._try_after(0.0)

    def _on_readable(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            messages = connection.feed()
        except (BrokerGone, GrnError):
            self._drop()
            return
        for message in messages:
            if self._greeting:
                self._greeted(connection, message)
            else:
                self._heard(message)

    def _drop(self) -> None:
        """The connection is of no use any more: look for another."""
        was_up = self.up
        self._shut()
        self._greeting = False
        if was_up:
            self._pause_s = _FIRST_PAUSE_S
        self._try_after(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if was_up:
            self._lost()

    def _try_after(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(pause_s, self._try)

    def _try(self) -> None:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # out of descriptors or memory, which others may give back
            self._drop()
            return
        try:
            sock.connect(paths.socket_path(os.environ, self._settings.socket))
        except OSError:  # missing, refused, its folder is gone, or its backlog is full
            sock.close()
            self._start_if_wanted()
            self._drop()
            return
        sock.setblocking(True)
        try:
            self._connection = _Unanswered(sock, self._session)
        except BrokerGone:
            sock.close()
            self._drop()
            return
        self._greeting = True
        self._loop.watch(sock.fileno(), READABLE, self._on_ready)
        self._timer = self._loop.later(_HELLO_WITHIN_S, self._drop)

    def _greeted(self, connection: Connection, message: Message) -> None:
        if message.get("op") != "hello":
            self._drop()
            return
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(connection, _Unanswered):
            connection.greeted(message)
        self._greeting = False
        self._on_demand = bool(message.get("on_demand"))
        self._pause_s = _FIRST_PAUSE_S
        self.up = True
        self.starting = False
        self.problem = ""
        self._back()

    def _start_if_wanted(self) -> None:
        """Fork a child that starts a broker, if ours was one of that kind."""
        if self.starter is not None or not self._on_demand or not self._wants_broker():
            return
        try:
            told, tell = os.pipe2(os.O_CLOEXEC)
        except OSError:  # too many files, or below too many processes: the next look tries again
            return
        try:
            pid = os.fork()
        except OSError:
            os.close(told)
            os.close(tell)
            return
        if pid:
            os.close(tell)
            self.starter, self._told = pid, told
            self.starting = True
            return
        try:
            from grn.ondemand import ensure_broker  # noqa: PLC0415 - not needed in most runs

            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            ensure_broker(self._settings).close()
        except GrnError as error:
            os.write(tell, error.message.encode(errors="replace")[:_LONGEST_PROBLEM])
            os._exit(1)
        finally:
            os._exit(0)
