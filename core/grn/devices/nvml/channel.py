"""The broker's end of a socket to one of its own helpers: frames out, frames in, never waiting."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from grn.rules.wire import Frames, decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Channel"]

_CHUNK = 1 << 16


class Channel:
    """A stream of messages from and to a worker. `ended`: there will be no more."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._frames = Frames()
        self.ended = False

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a question. One at a time is asked, so there is always room for it."""
        try:
            self._sock.send(encode(message), socket.MSG_NOSIGNAL)
        except OSError:
            self.ended = True  # it died; what it said before can still be read

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived."""
        messages: list[dict[str, Any]] = []
        try:
            while data := self._sock.recv(_CHUNK):
                messages += map(decode, self._frames.feed(data))
        except BlockingIOError:
            return messages
        except ConnectionResetError:
            pass  # it died with a question unread
        self.ended = True
        return messages

    def close(self) -> None:
        """Close it; the other side sees the end."""
        self._sock.close()
