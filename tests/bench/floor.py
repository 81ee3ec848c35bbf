"""The floor: what a lease would cost if a broker did nothing but answer.

A bare msgpack ping-pong between two Python processes over a Unix socket: an asyncio protocol with a
book of one slot and its line, and a blocking client. No checks, no devices, no journal.

The server reads into one buffer of its own. asyncio's plain protocol takes 256 KiB for each read; as
the heap happens to lie, glibc maps and unmaps them every time, and the same floor is half as fast
for one client and a quarter as fast for many: by turns of luck, from one start to the next.

Must not: import anything of GRN.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEASE", "FloorClient", "Splitter", "frame"]

LEASE = {"op": "lease", "id": 1, "type": "python train.py", "gpus": 1, "memory_mib": 8192}
_UUID = "GPU-00000000-0000-0000-0000-000000000001"
_GRANT = {
    "op": "granted",
    "lease": "ab12cd-77",
    "devices": [{"uuid": _UUID, "index": 0, "model": "Simulated", "total_mib": 16384}],
    "mask": "0",
    "memory_mib": 8192,
    "threads": 2,
}
_CHUNK = 1 << 16
_HEAD = struct.Struct(">I")
_pack: Callable[[object], bytes] = msgpack.Packer().pack


def frame(message: dict[str, Any]) -> bytes:
    """Return the message as it travels."""
    body = _pack(message)
    return _HEAD.pack(len(body)) + body


class Splitter:
    """Cuts a stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes in; return what is complete."""
        buffer = self._buffer
        buffer += data
        found: list[dict[str, Any]] = []
        while len(buffer) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(buffer)[0]
            if len(buffer) < end:
                break
            found.append(msgpack.unpackb(bytes(buffer[_HEAD.size : end])))
            del buffer[:end]
        return found


class FloorClient:
    """The smallest blocking client: it holds the slot, or just asks."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._splitter = Splitter()

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message and wait for one answer."""
        self._socket.sendall(frame(message))
        while True:
            found = self._splitter.feed(self._socket.recv(_CHUNK))
            if found:
                return found[0]

    def lease(self) -> None:
        """Ask, and be told at once."""
        self.call(LEASE)

    def take(self) -> None:
        """Wait for the one slot."""
        self.call({**LEASE, "op": "take"})

    def give(self) -> None:
        """Give it back."""
        self.call({"op": "give", "id": 1})

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class _Book:
    """One slot and its line."""

    def __init__(self) -> None:
        self.holder: _Session | None = None
        self.line: deque[_Session] = deque()


class _Session(asyncio.BufferedProtocol):
    def __init__(self, book: _Book, inbox: memoryview) -> None:
        self._book = book
        self._inbox = inbox
        self._splitter = Splitter()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._inbox

    def buffer_updated(self, nbytes: int) -> None:
        for message in self._splitter.feed(bytes(self._inbox[:nbytes])):
            self._handle(message)

    def _handle(self, message: dict[str, Any]) -> None:
        book = self._book
        if message["op"] == "lease":
            self._answer({**_GRANT, "id": message["id"]})
        elif message["op"] == "give":
            self._answer({"op": "given", "id": message["id"]})
            if book.holder is self:
                book.holder = book.line.popleft() if book.line else None
                if book.holder is not None:
                    book.holder._answer(_GRANT)
        elif book.holder is None:
            book.holder = self
            self._answer(_GRANT)
        else:
            book.line.append(self)

    def _answer(self, message: dict[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))


async def _serve(path: str, ready_fd: int) -> None:
    book, inbox = _Book(), memoryview(bytearray(_CHUNK))
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: _Session(book, inbox), path)
    os.write(ready_fd, b"READY\n")
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
