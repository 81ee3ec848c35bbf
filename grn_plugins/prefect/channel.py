"""What goes from a body's process to the flow's while it runs: logs, events, what it says of assets.

Design note. Packets, not a stream: a body may fork (data loaders do), and its forks write to the same
socket; a packet arrives whole. What is longer than one packet travels in pieces, put together by writer.

Promises: a message that was cut short by the writer's death is dropped, and nothing else with it.
"""

from __future__ import annotations

import os
import pickle
import struct
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

__all__ = ["Inbox", "Outbox"]

_HEADER = struct.Struct("<IQ?")  # the writer's pid, its number of the message, whether it ends here
_PIECE = 60_000
_PACKET = _PIECE + _HEADER.size


class Outbox:
    """The body's end. Any thread may write."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self._number = 0
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here may have held it

    def put(self, kind: str, value: Any) -> None:
        """Send; nothing happens if nobody hears it any more."""
        data = pickle.dumps((kind, value), 5)
        with self._lock:
            self._number += 1
            try:
                for start in range(0, len(data), _PIECE):
                    piece = data[start : start + _PIECE]
                    head = _HEADER.pack(os.getpid(), self._number, start + _PIECE >= len(data))
                    self._socket.send(head + piece)
            except OSError:
                return


class Inbox:
    """The flow's end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._pieces: dict[tuple[int, int], list[bytes]] = {}
        self.over = False
        """Whether nobody can write any more."""

    def fileno(self) -> int:
        """Return what becomes readable."""
        return self._socket.fileno()

    def receive(self) -> Iterator[tuple[str, Any]]:
        """Return the messages that are there."""
        while not self.over:
            try:
                packet = self._socket.recv(_PACKET)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet = b""
            if not packet:
                self.over = True
                return
            pid, number, last = _HEADER.unpack_from(packet)
            pieces = self._pieces.setdefault((pid, number), [])
            pieces.append(packet[_HEADER.size :])
            if last:
                data = b"".join(self._pieces.pop((pid, number)))
                yield pickle.loads(data)  # noqa: S301 - from our own process
