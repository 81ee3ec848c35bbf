"""Bad connections of every kind, for a good client to be beside."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from grn.rules.wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["KINDS", "crowd"]

HELLO = encode({"op": "hello", "magic": "GRN", "version": 1, "features": []})
STATUS = encode({"op": "status", "id": 1})


def _silent(sock: socket.socket) -> None:
    """Connect, and say nothing."""
    del sock


def _half_a_frame(sock: socket.socket) -> None:
    """Greet, and stop in the middle of the next message."""
    sock.send(HELLO + STATUS[:9])


def _half_closed(sock: socket.socket) -> None:
    """Greet, ask, and close one direction."""
    sock.send(HELLO + STATUS)
    sock.shutdown(socket.SHUT_WR)


def _four_gib(sock: socket.socket) -> None:
    """Promise a frame that cannot be."""
    sock.send(HELLO + struct.pack(">I", 0xFFFFFFFF))


def _never_reads(sock: socket.socket) -> None:
    """Ask a hundred times, and read no answer."""
    sock.send(HELLO + STATUS * 100)


KINDS: tuple[Callable[[socket.socket], None], ...] = (
    _silent,
    _half_a_frame,
    _half_closed,
    _four_gib,
    _never_reads,
)


@contextlib.contextmanager
def crowd(path: str, count: int) -> Iterator[Iterator[int]]:
    """Let so many connect, one at each step of what this gives; they stay until the block is left."""
    with contextlib.ExitStack() as made:

        def come() -> Iterator[int]:
            for number in range(count):
                sock = made.enter_context(socket.socket(socket.AF_UNIX))
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError, ConnectionError, BrokenPipeError):
                    sock.connect(path)  # refused for now while its queue is full
                    KINDS[number % len(KINDS)](sock)
                yield number

        yield come()
