"""How a client comes to a connection while the broker takes none."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from grn import connection, ondemand
from grn.errors import BrokerSilent
from grn.settings import Settings
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def full(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that listens and has as many connections waiting as it allows."""
    waiting = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen(0)
        while True:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            try:
                waiting[-1].connect(listener.getsockname())
            except BlockingIOError:
                break
        yield listener
        for sock in waiting:
            sock.close()


@pytest.mark.parametrize(
    "reach",
    [
        lambda path: connection.connect(Settings(socket=path)),
        lambda path: connection.connect_or_start(Settings(socket=path)),
        ondemand.connect,
    ],
    ids=["connect", "connect_or_start", "ondemand"],
)
def test_a_full_queue_is_no_reason_to_wait_for_ever(
    full: socket.socket, monkeypatch: pytest.MonkeyPatch, reach: Callable[[str], object]
) -> None:
    """A stopped broker with many clients before us: the next one is told, and starts no second one."""
    monkeypatch.setattr(connection, "_PLACE_WITHIN_S", 1)
    with pytest.raises(BrokerSilent, match="its queue of them stayed full for 1 s: is it stopped"):
        reach(full.getsockname())


def test_who_waits_for_a_place_gets_it(full: socket.socket) -> None:
    """A busy broker takes one: the next in line is connected, with no limit on what it sends."""
    got: list[socket.socket] = []
    one = threading.Thread(target=lambda: got.append(connection.open_socket(full.getsockname())))
    one.start()
    taken = []
    while one.is_alive():
        taken.append(eventually(full.accept)[0])
        one.join(0.1)
    one.join(PATIENCE_S)
    left = got[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.calcsize("@ll"))
    assert struct.unpack("@ll", left) == (0, 0)
    for sock in (*got, *taken):
        sock.close()
