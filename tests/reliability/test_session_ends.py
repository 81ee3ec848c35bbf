"""How a connection begins and ends, and in which order it is told what: see `test_session.py`."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Any, cast

import pytest

from grn.broker import connection as connection_module
from grn.broker import guests as guests_module
from grn.broker.connection import HELLO_WITHIN_S
from grn.rules.wire import Frames, decode, encode
from tests.reliability.peers import HELLO, Peer, books
from tests.reliability.world import Wire

if TYPE_CHECKING:
    from tests.reliability.rig import Rig


# -- greeting -------------------------------------------------------------------------------------


def test_a_greeting_is_answered_with_what_we_are(rig: Rig) -> None:
    """Version, devices and features; the timer that waited for it is gone."""
    peer = Peer(rig)
    (answer,) = peer.greeting
    assert (answer["op"], answer["version"], answer["devices"]) == ("hello", 1, "sim:world")
    rig.world.now += 10 * HELLO_WITHIN_S
    rig.world.loop.run_due()
    assert not peer.wire.broker_closed
    assert peer.call("status")["op"] == "status"


def test_who_does_not_greet_is_dropped_in_time(rig: Rig) -> None:
    """At five seconds, not before; a second message without a greeting before is none."""
    wire = Wire(rig.world, 7)
    rig.accept(wire)
    rig.world.now += HELLO_WITHIN_S - 0.01
    rig.world.loop.run_due()
    assert not wire.broker_closed
    rig.world.now += 0.02
    rig.world.loop.run_due()
    assert wire.broker_closed
    other = Wire(rig.world, 7)
    rig.accept(other)
    rig.hear(other, encode({"op": "status", "id": 1}))
    assert other.broker_closed
    assert not other.to_client


@pytest.mark.parametrize("session", [5, None, "x" * 257])
def test_a_session_is_a_short_text(rig: Rig, session: object) -> None:
    """It goes into each record of the journal."""
    peer = Peer(rig, session=session)
    assert peer.greeting == []
    assert peer.wire.broker_closed
    assert Peer(rig, session="x" * 256).greeting[0]["op"] == "hello"


def test_after_a_bad_frame_nothing_more_is_taken(rig: Rig) -> None:
    """What was whole before it counts, what comes behind it does not."""
    peer = Peer(rig)
    wish = {"op": "acquire", "type": "t", "gpus": 1, "memory_mib": 10}
    bad = b"\0\0\0\1\xc1"
    data = encode({**wish, "id": 1}) + bad + encode({**wish, "id": 2})
    rig.hear(peer.wire, data)
    assert peer.wire.broker_closed
    peer.hangs_up()
    assert len(books(rig)) == 1


def test_a_message_has_a_bounded_number_of_values(rig: Rig) -> None:
    """What looks nested may have ten thousand; what has twice as many is no message of ours."""
    peer = Peer(rig)
    assert peer.call("adopt", leases=[[]] * 10_000)["leases"] == []
    assert peer.says({"op": "adopt", "id": 1, "leases": [[]] * 20_000}) == []
    assert peer.wire.broker_closed


def test_what_was_answered_before_a_bad_frame_is_sent(rig: Rig) -> None:
    """Then the connection ends; of what cannot be sent at once nobody waits for the rest."""
    peer = Peer(rig)
    rig.hear(peer.wire, encode({"op": "dance", "id": 1}) + b"\0\0\0\1\xc1")
    assert [each["id"] for each in peer.hears()] == [1]
    assert peer.wire.broker_closed


@pytest.mark.parametrize(("unsent", "aborts"), [(0, 0), (1, 1)])
def test_who_is_dropped_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, unsent: int, aborts: int
) -> None:
    """What is left for it is thrown away with the connection; it is dropped once, with one line."""
    peer = Peer(rig)
    aborted, said = [], []
    monkeypatch.setattr(peer.wire, "get_write_buffer_size", lambda: unsent)
    monkeypatch.setattr(peer.wire, "abort", lambda: aborted.append(True))
    monkeypatch.setattr(connection_module.log, "warning", lambda *words: said.append(words))
    peer.wire.protocol.drop("why")
    peer.wire.protocol.drop("again")
    peer.hangs_up()
    peer.wire.protocol.drop("when it is gone")
    assert len(aborted) == aborts
    assert [words[-1] for words in said] == ["why"]


def test_the_kernel_is_believed_about_the_dead() -> None:
    """No such process: it has died; it cannot say (before Linux 6.5): nobody knows."""

    class Asked:
        def __init__(self, number: int) -> None:
            self.number = number

        def getsockopt(self, *_: int) -> bytes:
            raise OSError(self.number, os.strerror(self.number))

    assert connection_module.peer_has_died(cast("Any", Asked(errno.ESRCH)))
    assert not connection_module.peer_has_died(cast("Any", Asked(errno.ENOPROTOOPT)))


class GuestWire(Wire):
    """A connection of another user."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Name another user than the broker's own."""
        pid, _, gid = struct.unpack("3i", super().getsockopt(level, option, size))
        return struct.pack("3i", pid, 1234, gid)


def test_a_guest_with_connections_enough_is_told_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fifth of four that it may have hears why; of the seventh nothing is heard any more."""
    assert rig.core is not None
    rig.core.guests.own_uid = 1000
    monkeypatch.setattr(guests_module.resource, "getrlimit", lambda _: (16, 16))
    wires = [GuestWire(rig.world, 7) for _ in range(7)]
    for wire in wires[:6]:
        rig.accept(wire)
        assert not wire.broker_closed
    rig.accept(wires[6])
    assert wires[6].broker_closed
    assert not wires[6].to_client
    for wire in (wires[0], wires[4]):
        rig.hear(wire, encode(HELLO))
    (body,) = Frames().feed(bytes(wires[4].to_client))
    told = decode(body)
    assert (told["op"], told["code"]) == ("error", "refused")
    assert "user 1234 has 4 connections" in told["message"]
    assert wires[4].broker_closed
    assert not wires[0].broker_closed


def test_who_is_connected_is_known(rig: Rig) -> None:
    """From the first moment to the last; the timer of who never greeted goes with the connection."""
    assert rig.core is not None
    wire = Wire(rig.world, 7)
    rig.accept(wire)
    assert rig.core.connections == {wire.protocol}
    assert wire.protocol.get_buffer(-1) is rig.core.inbox
    rig.hang_up(wire)
    assert rig.core.connections == set()
    due = rig.world.loop.next_due()
    assert due is None or due > rig.world.now + HELLO_WITHIN_S


# -- the end --------------------------------------------------------------------------------------


def test_only_its_own_user_and_root_stop_a_broker(rig: Rig) -> None:
    """Who may not is told so; who may is told that it leaves."""
    assert rig.core is not None
    rig.core.guests.own_uid = 1000
    peer, waiter = Peer(rig), Peer(rig)
    peer.wire.protocol.uid = 1001
    assert peer.call("stop")["code"] == "lease"
    assert not rig.core._stop.done()
    for number in (1, 2, 3):
        waiter.acquire(number, memory_mib="whole")
    peer.wire.protocol.uid = 1000
    assert peer.call("stop") == {"op": "stopping", "id": 900}
    assert rig.core._stop.value == "asked by a client"
    (told,) = waiter.hears()
    assert (told["op"], told["id"], told["code"]) == ("refused", 3, "shutting-down")


def test_who_does_not_read_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 8 MiB, and not before."""
    peer = Peer(rig)
    most = 8 * 1024 * 1024
    monkeypatch.setattr(peer.wire, "get_write_buffer_size", lambda: most)
    peer.says({"op": "status", "id": 1})
    assert not peer.wire.broker_closed
    monkeypatch.setattr(peer.wire, "get_write_buffer_size", lambda: most + 1)
    peer.says({"op": "status", "id": 1})
    assert peer.wire.broker_closed
    assert peer.says({"op": "status", "id": 2}) == []


def test_replies_of_one_read_leave_in_one_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten answers are one call to the system."""
    peer = Peer(rig)
    writes: list[int] = []
    real = peer.wire.write

    def counted(data: bytes) -> None:
        writes.append(len(data))
        real(data)

    monkeypatch.setattr(peer.wire, "write", counted)
    answers = peer.says(*({"op": "dance", "id": number} for number in range(10)))
    assert [answer["id"] for answer in answers] == list(range(10))
    assert len(writes) == 1


def test_what_is_pushed_comes_at_once_behind_what_was_answered(rig: Rig) -> None:
    """In the order in which it was said, whether or not the batch has ended."""
    peer = Peer(rig)
    peer.wire.protocol.reply({"op": "first"})
    assert peer.hears() == []
    peer.wire.protocol.push(encode({"op": "second"}))
    assert [each["op"] for each in peer.hears()] == ["first", "second"]


def test_a_connection_is_closed_after_its_last_words(rig: Rig) -> None:
    """What was answered is sent before; nothing goes out afterwards."""
    peer = Peer(rig)
    peer.wire.protocol.reply({"op": "last"})
    peer.wire.protocol.close()
    assert [each["op"] for each in peer.hears()] == ["last"]
    assert peer.wire.broker_closed
    peer.wire.protocol.reply({"op": "too late"})
    peer.wire.protocol.flush()
    assert peer.hears() == []
    assert peer.wire.protocol._out == []


def test_an_answer_that_no_frame_holds_becomes_an_error(rig: Rig) -> None:
    """Who asked hears why, under the number of the question."""
    peer = Peer(rig)
    peer.wire.protocol.reply({"op": "status", "id": 3, "status": "x" * (1 << 20)})
    assert rig.core is not None
    rig.core.settle()
    (answer,) = peer.hears()
    assert (answer["op"], answer["id"], answer["code"]) == ("error", 3, "protocol")
