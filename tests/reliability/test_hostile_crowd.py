"""Five hundred bad connections of every kind at once, under a small limit, and a good client beside.

One at a time they are in `tests/broker/test_hostile.py`; how long the good one waits is measured in
`tests/bench`, here it must be answered.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
from typing import TYPE_CHECKING

from grn.errors import BrokerUnavailable
from grn.rules.wire import encode
from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

CROWD = 500
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


def test_a_good_client_beside_five_hundred_bad_ones(new_env: Callable[..., BrokerEnv]) -> None:
    """Whatever they do, with 64 descriptors in all: it is answered, and afterwards all is as before."""
    env = new_env(debug="no")
    talker = env.talker()
    resource.prlimit(env.pid, resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.ExitStack() as crowd:
        for number in range(CROWD):
            sock = crowd.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError, BrokenPipeError):
                sock.connect(env.socket)  # refused for now while its queue is full
                KINDS[number % len(KINDS)](sock)
            if number % 25 == 0:
                talker.release(talker.acquire("t", memory_mib=1))
        for _ in range(20):
            talker.release(talker.acquire("t", memory_mib=1))
            assert talker.status()["leases"] == []
    eventually(lambda: _serves(env))
    assert talker.status()["leases"] == []
    assert len(env.log_lines("cannot-accept")) < 100


def _serves(env: BrokerEnv) -> bool:
    """Whether a client that comes now is served."""
    try:
        return bool(env.talker().status()["schema"] == 1)
    except BrokerUnavailable:
        return False
