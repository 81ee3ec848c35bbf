"""A client's connection to the broker: messages out, messages in, and how to get one.

The low level, for event loops and for `grn.client`. One connection carries many requests and
leases. On a job's hot path, so it imports little.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time

from grn.errors import (
    BrokerGone,
    BrokerSilent,
    BrokerUnavailable,
    ProtocolError,
    UsageError,
    from_code,
)
from grn.rules.wire import MAGIC, VERSION, Frames, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from grn.settings import Settings

__all__ = ["Connection", "connect", "connect_or_start", "open_socket", "own_cores"]

_HELLO_WITHIN_S = 5.0
_PLACE_WITHIN_S = 30
_CHUNK = 1 << 16
_START_OVER = 5


class Connection:
    """A connection to a broker.

    With `wait=False` the answer to the hello is only looked at when one to a message is wanted: one
    way there and back less.

    `session` names this client across brokers: by it a successor knows which leases a client that
    comes back was granted, also those of which the word never arrived.
    """

    def __init__(
        self,
        sock: socket.socket,
        session: str | None = None,
        *,
        path: str = "the socket",
        wait: bool = True,
    ) -> None:
        self.path = path
        self.session = session or os.urandom(8).hex()
        self._sock = sock
        self._frames = Frames()
        self._ready: list[dict[str, Any]] = []
        self.last_id = 0
        self._broker: dict[str, Any] | None = None
        self.send(self._hello())
        if wait:
            self._broker = self._greet()

    @property
    def broker(self) -> dict[str, Any]:
        """The broker's answer to our hello."""
        if self._broker is None:
            self._broker = self._greet()
        return self._broker

    @property
    def greeting(self) -> dict[str, Any] | None:
        """The same, if it has been read."""
        return self._broker

    def _greet(self) -> dict[str, Any]:
        answer = self._next(_HELLO_WITHIN_S)
        if answer is None:
            raise BrokerSilent(
                f"something answers at {self.path}, but not within"
                f" {_HELLO_WITHIN_S:g} s: is the broker stopped or very busy?"
            )
        if answer.get("op") == "error":
            raise from_code(answer["code"], answer["message"])
        if answer.get("op") != "hello" or answer.get("magic") != MAGIC:
            raise ProtocolError(f"{self.path} is not a GRN broker's socket")
        return answer

    def _hello(self) -> dict[str, Any]:
        return {
            "op": "hello",
            "magic": MAGIC,
            "version": VERSION,
            "features": [],
            "session": self.session,
        }

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    def next_id(self) -> int:
        """Return a request id that this connection has not used."""
        self.last_id += 1
        return self.last_id

    def send(self, *messages: dict[str, Any]) -> None:
        """Send messages in one write.

        Raises:
            BrokerGone: if the connection has ended.
        """
        data = b"".join(map(encode, messages))
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise BrokerGone(f"the connection to the broker ended: {error}") from error

    def send_some(self, data: bytes) -> int:
        """Send as much as fits without blocking; return how many bytes that were.

        Raises:
            BrokerGone: if the connection has ended.
        """
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise BrokerGone(f"the connection to the broker ended: {error}") from error

    def feed(self) -> list[dict[str, Any]]:
        """Read once without blocking; return the messages that are complete.

        Raises:
            BrokerGone: if the connection has ended.
        """
        try:
            data = self._sock.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._take_ready()
        except OSError as error:
            raise BrokerGone(f"the connection to the broker ended: {error}") from error
        if not data:
            raise BrokerGone("the broker closed the connection")
        return self._take_ready() + [decode(body) for body in self._frames.feed(data)]

    def _take_ready(self) -> list[dict[str, Any]]:
        ready, self._ready = self._ready, []
        return ready

    def recv(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the next message; `None` when the time is over.

        Raises:
            BrokerGone: if the connection has ended.
        """
        if self._broker is None:
            self._broker = self._greet()
        return self._next(timeout_s)

    def _next(self, timeout_s: float | None) -> dict[str, Any] | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ready:
            if deadline is not None and not self._readable(deadline - time.monotonic()):
                return None
            try:
                data = self._sock.recv(_CHUNK)
            except OSError as error:
                raise BrokerGone(f"the connection to the broker ended: {error}") from error
            if not data:
                raise BrokerGone("the broker closed the connection")
            self._ready += [decode(body) for body in self._frames.feed(data)]
        return self._ready.pop(0)

    def _readable(self, within_s: float) -> bool:
        poll = select.poll()  # not select(): it fails for descriptors over 1023
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(max(0.0, within_s) * 1000))

    def detach(self) -> socket.socket:
        """Give the socket away, right after the greeting: for who reads it in another way."""
        return self._sock

    def close(self) -> None:
        """End the connection, also for forked copies of the descriptor. May be called again."""
        if self._sock.fileno() < 0:
            return
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # the other side was faster
                raise
        finally:
            self._sock.close()


def connect(settings: Settings, session: str | None = None, *, wait: bool = True) -> Connection:
    """Connect to the broker that runs; `session` is that of a connection that was lost.

    Without `wait`, the broker's answer to the hello is looked at when it is first wanted.

    Raises:
        BrokerUnavailable: if none does.
    """
    from grn.paths import socket_path  # noqa: PLC0415 - not needed by who has a connection

    path = socket_path(os.environ, settings.socket)
    sock = _connected(path)
    if sock is None:
        raise BrokerUnavailable(
            f"no broker at {path}: start one with `grn broker` (for a try without a GPU:"
            " `grn broker --devices sim:2x16GiB`)"
        )
    return _connection(sock, session, path, wait=wait)


def connect_or_start(settings: Settings, session: str | None = None) -> Connection:
    """Connect to the broker; start one on demand if none runs.

    Raises:
        BrokerUnavailable: if none can be reached or started.
        UsageError: if one runs that manages other devices than `settings.devices` names.
    """
    from grn.paths import socket_path  # noqa: PLC0415 - as above

    for _ in range(_START_OVER):
        path = socket_path(os.environ, settings.socket)
        sock = _connected(path)
        if sock is None:
            from grn.devices import canonical_spec  # noqa: PLC0415 - only when nobody answers
            from grn.ondemand import ensure_broker  # noqa: PLC0415

            canonical_spec(settings.devices or "")  # a malformed one is the caller's mistake
            sock = ensure_broker(settings)
        try:
            connection = _connection(sock, session, path, wait=True)
        except BrokerGone:
            continue  # it was about to leave when we came: start over
        if _manages(connection, settings.devices):
            return connection
        _send_away(connection, settings.devices)
    raise BrokerUnavailable(f"brokers left before they greeted, {_START_OVER} times in a row")


_own_cores: list[int | None] = []


def own_cores() -> int | None:
    """Return on how many cores this process may run; `None` if nothing narrows it (`taskset`).

    Found once: it costs more than the rest of a request.
    """
    if not _own_cores:
        mine = len(os.sched_getaffinity(0))
        _own_cores.append(mine if mine < (os.cpu_count() or 0) else None)
    return _own_cores[0]


def _manages(connection: Connection, wanted: str | None) -> bool:
    """Whether the broker manages the devices that were asked for by name, if any were."""
    managed = connection.broker["devices"]
    if wanted is None or wanted == managed or wanted.strip() in ("", "auto"):
        return True
    from grn.devices import canonical_spec  # noqa: PLC0415 - the texts are mostly equal

    return bool(canonical_spec(wanted) == managed)


def _send_away(connection: Connection, wanted: str | None) -> None:
    """Have a broker leave that was started on demand and manages nothing; refuse any other one."""
    broker = connection.broker
    if not broker["on_demand"] or broker["devices"] != "none":
        connection.close()
        raise UsageError(
            f"a broker with devices {broker['devices']!r} runs already (pid {broker['pid']}), not"
            f" {wanted!r}: stop it with `grn broker stop`, or leave the devices out"
        )
    try:
        connection.send({"op": "stop", "id": connection.next_id()})
        while True:  # its last act is to close the connection
            connection.recv()
    except BrokerGone:
        connection.close()


def open_socket(path: str) -> socket.socket:
    """Connect to a socket, and wait for a place in its queue no longer than a broker may be busy.

    Raises:
        BrokerSilent: its queue stayed full.
        OSError: nobody listens there, or it cannot be reached.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # What limits a write on such a socket limits its connecting too.
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _PLACE_WITHIN_S, 0)
        )
        sock.connect(path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))
    except BlockingIOError:
        sock.close()
        raise BrokerSilent(
            f"the broker at {path} takes no connection, and its queue of them stayed full for"
            f" {_PLACE_WITHIN_S} s: is it stopped?"
        ) from None
    except BaseException:
        sock.close()
        raise
    return sock


def _connected(path: str) -> socket.socket | None:
    try:
        return open_socket(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except BrokerSilent:
        raise
    except OSError as error:
        raise BrokerSilent(f"cannot connect to {path}: {error.strerror}") from error


def _connection(sock: socket.socket, session: str | None, path: str, *, wait: bool) -> Connection:
    try:
        return Connection(sock, session, path=path, wait=wait)
    except BaseException:
        sock.close()
        raise
