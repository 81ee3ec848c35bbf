"""The client: a connection to the broker, and blocking leases on top of it.

`Connection` is the low level, for event loops: it sends messages and gives back those that have
arrived. `Client` is for everybody else: `acquire` blocks until the lease is granted. One connection
carries many requests and leases. On a job's hot path, so it imports little.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time

from grn.errors import (
    BrokerGone,
    BrokerUnavailable,
    Cancelled,
    ProtocolError,
    WaitExpired,
    from_code,
)
from grn.rules.wire import MAGIC, VERSION, Frames, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from grn.settings import Settings

__all__ = ["Client", "Connection", "Lease", "connect", "connect_or_start"]

_HELLO_WITHIN_S = 5.0
_CHUNK = 1 << 16
_START_OVER = 5


class Connection:
    """A greeted connection to a broker. `broker` is its answer to our hello."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames()
        self._ready: list[dict[str, Any]] = []
        self._last_id = 0
        self.broker = self._greet()

    def _greet(self) -> dict[str, Any]:
        self.send({"op": "hello", "magic": MAGIC, "version": VERSION, "features": []})
        answer = self.recv(_HELLO_WITHIN_S)
        if answer is None:
            raise BrokerUnavailable(
                f"something answers at {self._sock.getpeername()}, but not within"
                f" {_HELLO_WITHIN_S:g} s: is the broker stopped or very busy?"
            )
        if answer.get("op") != "hello" or answer.get("magic") != MAGIC:
            raise ProtocolError(f"{self._sock.getpeername()} is not a GRN broker's socket")
        return answer

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    def next_id(self) -> int:
        """Return a request id that this connection has not used."""
        self._last_id += 1
        return self._last_id

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
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._ready:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._sock], [], [], left)[0]:
                    return None
            try:
                data = self._sock.recv(_CHUNK)
            except OSError as error:
                raise BrokerGone(f"the connection to the broker ended: {error}") from error
            if not data:
                raise BrokerGone("the broker closed the connection")
            self._ready += [decode(body) for body in self._frames.feed(data)]
        return self._ready.pop(0)

    def close(self) -> None:
        """End the connection, also for forked copies of the descriptor."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # the other side was faster
                raise
        finally:
            self._sock.close()


def connect(settings: Settings) -> Connection:
    """Connect to the broker that runs.

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
    return _greeted(sock)


def connect_or_start(settings: Settings) -> Connection:
    """Connect to the broker; start one on demand if none runs.

    Raises:
        BrokerUnavailable: if none can be reached or started.
    """
    from grn.paths import socket_path  # noqa: PLC0415 - as above

    for _ in range(_START_OVER):
        sock = _connected(socket_path(os.environ, settings.socket))
        if sock is None:
            from grn.ondemand import ensure_broker  # noqa: PLC0415 - only when nobody answers

            sock = ensure_broker(settings)
        try:
            return _greeted(sock)
        except BrokerGone:
            continue  # it was about to leave when we came: start over
    raise BrokerUnavailable(f"brokers left before they greeted, {_START_OVER} times in a row")


def _connected(path: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise BrokerUnavailable(f"cannot connect to {path}: {error.strerror}") from error
    return sock


def _greeted(sock: socket.socket) -> Connection:
    try:
        return Connection(sock)
    except BaseException:
        sock.close()
        raise


class Lease:
    """A granted lease, used by the process that asked for it. A context manager."""

    def __init__(self, client: Client, grant: dict[str, Any]) -> None:
        self._client = client
        self._held = not grant["nested"]
        self.grant = grant
        self.id: str = grant["lease"]
        self.devices: list[dict[str, Any]] = grant["devices"]
        self.memory_mib: int | None = grant["memory_mib"]

    def environment(self) -> dict[str, str]:
        """Return a copy of the process's environment with what the lease tells a job."""
        from grn.rules.environment import job_environment  # noqa: PLC0415 - only who starts a job

        return job_environment(self.grant, os.environ, {})[0]

    def release(self, exit_code: int = 0) -> dict[str, Any] | None:
        """Give the lease back; `None` if it was given back before, or belongs to an outer job."""
        if not self._held:
            return None
        self._held = False
        return self._client.call(
            {"op": "release", "lease": self.id, "exit_code": exit_code}, "released"
        )

    def __enter__(self) -> Lease:  # noqa: PYI034 - typing.Self is too heavy here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(0 if kind is None else 1)


class Client:
    """A blocking client. Not for use by several threads at once: give each its own."""

    def __init__(self, settings: Settings | None = None, *, start: bool = False) -> None:
        if settings is None:
            from grn.settings import load  # noqa: PLC0415 - the caller may bring its own

            settings = load()
        self._connection = connect_or_start(settings) if start else connect(settings)

    @property
    def broker(self) -> dict[str, Any]:
        """What the broker said of itself: pid, release, device specification."""
        return self._connection.broker

    def call(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        """Send one message and wait for its answer.

        Raises:
            GrnError: the class that the answer's code names.
        """
        request_id = self._connection.next_id()
        self._connection.send({**message, "id": request_id})
        return self._answer(request_id, expected, None)

    def _answer(self, request_id: int, expected: str, timeout_s: float | None) -> dict[str, Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            answer = self._connection.recv(left)
            if answer is None:
                raise WaitExpired(f"not granted within {timeout_s:g} s")
            if answer.get("id") != request_id or answer["op"] == "waiting":
                continue
            if answer["op"] in ("refused", "error"):
                raise from_code(answer["code"], answer["message"])
            if answer["op"] != expected:
                raise ProtocolError(f"{expected!r} was expected, {answer['op']!r} came")
            return answer

    def acquire(
        self,
        job_type: str,
        *,
        gpus: int | None = 1,
        memory_mib: int | None = None,
        whole: bool = False,
        policy: str | None = None,
        cpus: int | None = None,
        ram_mib: int | None = None,
        priority: int = 0,
        label: str = "",
        wait_s: float | None = None,
    ) -> Lease:
        """Wait for a lease for this process.

        Args:
            job_type: what the need is learnt under.
            gpus: devices; `None` wants no device, 0 an empty mask.
            memory_mib: MiB on each device; `None` books what was learnt.
            whole: complete devices instead of a share.
            policy: `spread` or `pack`; `None` takes the broker's.
            cpus: CPUs to book; `None` books none.
            ram_mib: MiB of RAM to book; `None` books none.
            priority: higher goes first.
            label: a name for status displays.
            wait_s: give up after so long.

        Raises:
            Impossible: if this machine can never meet the request.
            WaitExpired: if it was not granted within `wait_s`.
        """
        connection = self._connection
        request_id = connection.next_id()
        connection.send(
            {
                "op": "acquire",
                "id": request_id,
                "type": job_type,
                "label": label,
                "gpus": gpus,
                "memory_mib": "whole" if whole else memory_mib,
                "policy": policy,
                "cpus": cpus,
                "ram_mib": ram_mib,
                "priority": priority,
                "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "outer": os.environ.get("GRN_LEASE"),
            }
        )
        try:
            grant = self._answer(request_id, "granted", wait_s)
        except WaitExpired:
            grant = self._withdraw(request_id)
        lease = Lease(self, grant)
        if not grant["nested"]:
            connection.send({"op": "started", "lease": lease.id, "pid": os.getpid()})
        return lease

    def _withdraw(self, request_id: int) -> dict[str, Any]:
        """Take a request back; a grant that crossed it on the way is kept after all."""
        self._connection.send({"op": "cancel", "id": request_id})
        try:
            return self._answer(request_id, "granted", None)
        except Cancelled:
            raise WaitExpired("not granted in the time allowed") from None

    def status(self) -> dict[str, Any]:
        """Return the state of the books (schema 1)."""
        status: dict[str, Any] = self.call({"op": "status"}, "status")["status"]
        return status

    def profiles(self, action: str = "list", **fields: Any) -> list[dict[str, Any]]:
        """List, `show`, `set` or `forget` what was learnt of job types."""
        answer = self.call({"op": "profiles", "action": action, **fields}, "profiles")
        listed: list[dict[str, Any]] = answer["profiles"]
        return listed

    def stop(self) -> None:
        """Ask the broker to leave, and wait until it has closed the connection."""
        self.call({"op": "stop"}, "stopping")
        try:
            while True:
                self._connection.recv()
        except BrokerGone:
            return

    def close(self) -> None:
        """End the connection; leases that were not released end with this process."""
        self._connection.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - as above
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
