"""The session in the test's own process: each message, what is answered, and what it changes.

What the sockets do is in `tests/broker`; here a broker is brought up on a simulated machine in less
than a millisecond, so every case of a handler can be asked for.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Any, cast

import pytest

from grn.broker import connection as connection_module
from grn.broker import guests as guests_module
from grn.broker.connection import HELLO_WITHIN_S
from grn.rules import report as report_module
from grn.rules.wire import Frames, decode, encode
from tests.reliability.rig import Rig, installed
from tests.reliability.world import Wire, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.reliability.world import Process

HELLO = {"op": "hello", "magic": "GRN", "version": 1, "session": "s"}


class Peer:
    """One connected process: what it says, and what it has heard."""

    def __init__(self, rig: Rig, process: Process | None = None, **hello: Any) -> None:
        found = process or rig.world.processes.spawn()
        assert found is not None
        self.rig = rig
        self.process = found
        self.wire = Wire(rig.world, found.pid)
        self._frames = Frames()
        rig.accept(self.wire)
        self.greeting = self.says({**HELLO, **hello}) if hello.get("op", "hello") else []

    def says(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Send these in one write; return what is answered."""
        self.rig.hear(self.wire, b"".join(map(encode, messages)))
        return self.hears()

    def hears(self) -> list[dict[str, Any]]:
        """Return what has come since."""
        self.rig.world.loop.run_soon()
        data = bytes(self.wire.to_client)
        self.wire.to_client.clear()
        return [decode(body) for body in self._frames.feed(data)]

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one message; return its one answer."""
        (answer,) = self.says({"op": op, "id": 900, **fields})
        return answer

    def acquire(self, number: int = 1, **wish: Any) -> dict[str, Any]:
        """Ask for a share."""
        wish = {"type": "t", "gpus": 1, "memory_mib": 1000, **wish}
        return self.says({"op": "acquire", "id": number, **wish})[-1]

    def hangs_up(self) -> None:
        """End the connection."""
        self.wire.client_closed = True
        self.rig.hang_up(self.wire)
        self.rig.world.loop.run_soon()

    def dies(self) -> None:
        """End the process, and with it the connection."""
        self.rig.world.processes.end(self.process)
        self.hangs_up()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Bring a broker up, with two devices of 16000 MiB."""
    world = World((16000, 16000))
    with installed(world):
        made = Rig(world)
        made.start()
        yield made


def books(rig: Rig) -> dict[str, Any]:
    """Return the leases in the books."""
    assert rig.core is not None
    rig.core.machine.check_invariants()
    return rig.core.machine.leases


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


# -- requests -------------------------------------------------------------------------------------


def test_a_share_is_granted_and_given_back(rig: Rig) -> None:
    """The answer names device, size and lease; afterwards nothing is booked."""
    peer = Peer(rig)
    grant = peer.acquire()
    assert (grant["op"], grant["id"], grant["memory_mib"]) == ("granted", 1, 1000)
    (lease,) = books(rig).values()
    assert (lease.id, lease.request.session) == (grant["lease"], "s")
    assert lease.request.owner.pid == peer.process.pid
    assert lease.request.owner.start == peer.process.start
    told = peer.call("release", lease=grant["lease"], exit_code=0)
    assert (told["op"], told["id"], told["outcome"]) == ("released", 900, "ok")
    assert books(rig) == {}


def test_a_request_waits_with_a_reason_and_can_be_withdrawn(rig: Rig) -> None:
    """Told why; a second request of its number is a mistake; withdrawn, the number is free again."""
    peer = Peer(rig)
    for number in (1, 2):
        peer.acquire(number, memory_mib="whole")
    waits = peer.acquire(3)
    assert waits["op"] == "waiting"
    assert "leased whole" in waits["reason"]
    assert peer.acquire(3)["code"] == "usage"
    (refused,) = peer.says({"op": "cancel", "id": 3})
    assert (refused["op"], refused["id"], refused["code"]) == ("refused", 3, "cancelled")
    assert peer.says({"op": "cancel", "id": 3}, {"op": "cancel", "id": "x"}) == []
    assert peer.acquire(3)["op"] == "waiting"
    peer.hangs_up()
    assert rig.core is not None
    assert len(rig.core.machine.line) == 0
    assert rig.core.asked == {}
    assert len(books(rig)) == 2, "its process lives"
    rig.world.processes.end(peer.process)
    rig.world.loop.run_soon()
    assert books(rig) == {}


def test_requests_are_numbered_in_their_order(rig: Rig) -> None:
    """One by one, whoever asks: no two have a ticket, and none of them is negative."""
    assert rig.core is not None
    first, second = Peer(rig), Peer(rig)
    for number in (1, 2):
        first.acquire(number, memory_mib="whole")
    first.acquire(3)
    second.acquire(1)
    first.acquire(4)
    assert first.wire.protocol.tickets == {3: 3, 4: 5}
    assert second.wire.protocol.tickets == {1: 4}
    assert list(rig.core.asked) == [3, 4, 5]


@pytest.mark.parametrize("number", [None, "1", 1.0, True, [1]])
def test_a_request_needs_a_number(rig: Rig, number: object) -> None:
    """Of the kind that can be told apart."""
    peer = Peer(rig)
    (answer,) = peer.says({"op": "acquire", "id": number, "type": "t", "gpus": 1})
    assert (answer["op"], answer["code"], answer["id"]) == ("error", "usage", number)
    assert books(rig) == {}


@pytest.mark.parametrize("op", ["dance", None, 5, ["status"], {"a": 1}])
def test_an_unknown_message_is_named(rig: Rig, op: object) -> None:
    """The connection goes on."""
    peer = Peer(rig)
    (answer,) = peer.says({"op": op, "id": 4})
    assert (answer["code"], answer["id"]) == ("protocol", 4)
    assert repr(op) in answer["message"]
    assert peer.call("status")["op"] == "status"


def test_an_error_of_the_machine_is_said(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers the message that met it, and ends nothing."""
    peer = Peer(rig)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(rig.core, "edit_profiles", fail)
    answer = peer.call("profiles")
    assert (answer["op"], answer["code"]) == ("error", "error")
    assert "Input/output error" in answer["message"]
    assert peer.call("status")["op"] == "status"


def test_who_cannot_be_seen_gets_no_lease(rig: Rig) -> None:
    """Its death could not be seen either."""
    for pid in (0, -1, 99):
        wire = Wire(rig.world, pid)
        rig.accept(wire)
        rig.hear(wire, encode(HELLO))
        rig.world.loop.run_soon()
        wire.to_client.clear()
        wish = {"op": "acquire", "id": 1, "type": "t", "gpus": 1}
        rig.hear(wire, encode(wish))
        rig.world.loop.run_soon()
        answer = decode(bytes(wire.to_client[4:]))
        assert (answer["op"], answer["code"]) == ("error", "lease")
        assert "--pid=host" in answer["message"]
    assert books(rig) == {}


# -- leases ---------------------------------------------------------------------------------------


def test_a_main_process_is_the_client_or_descends_from_it(rig: Rig) -> None:
    """A stranger cannot be named, one that is over is not worth an answer."""
    peer = Peer(rig)
    table = rig.world.processes
    grant = peer.acquire()
    (lease,) = books(rig).values()
    child = table.spawn(peer.process.pid, grant["lease"])
    stranger = table.spawn()
    assert child is not None
    assert stranger is not None
    told = {"op": "started", "lease": grant["lease"]}
    assert peer.says({**told, "pid": 98}) == []
    assert lease.main is None
    for pid in (0, -3, None, "1", 1.5, True):
        (answer,) = peer.says({**told, "pid": pid})
        assert answer["code"] == "usage"
    (answer,) = peer.says({**told, "pid": stranger.pid})
    assert answer["code"] == "lease"
    assert lease.main is None
    assert peer.says({**told, "pid": child.pid}) == []
    assert lease.main is not None
    assert (lease.main.pid, lease.main.start, lease.main.uid) == (child.pid, child.start, 0)
    assert peer.says({**told, "pid": peer.process.pid}) == []
    assert lease.main == lease.request.owner


@pytest.mark.parametrize("op", ["release", "started"])
def test_a_lease_of_somebody_else_is_left_alone(rig: Rig, op: str) -> None:
    """Its owner decides; one that is not held is named, too."""
    peer, other = Peer(rig), Peer(rig)
    grant = peer.acquire()
    answer = other.call(op, lease=grant["lease"], pid=other.process.pid)
    assert (answer["op"], answer["code"]) == ("error", "lease")
    assert str(peer.process.pid) in answer["message"]
    for lease in ("x-1", "", None):
        assert "not held" in other.call(op, lease=lease, pid=1)["message"]
    assert list(books(rig)) == [grant["lease"]]


def test_the_lease_of_who_dies_is_free(rig: Rig) -> None:
    """Not when the connection ends: when the process has."""
    peer = Peer(rig)
    peer.acquire()
    peer.hangs_up()
    assert len(books(rig)) == 1
    again = Peer(rig, peer.process)
    assert again.call("adopt", leases=list(books(rig)))["leases"] == list(books(rig))
    again.dies()
    assert books(rig) == {}


def test_who_has_died_holds_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another process's by now, which would hold the lease for ever."""
    peer = Peer(rig)
    monkeypatch.setattr(connection_module, "peer_has_died", lambda _: True)
    answer = peer.acquire()
    assert (answer["op"], answer["code"]) == ("error", "lease")
    assert f"process {peer.process.pid}, has died" in answer["message"]
    assert books(rig) == {}
    monkeypatch.setattr(connection_module, "peer_has_died", lambda _: False)
    assert peer.acquire(2)["op"] == "granted"


# -- coming back ----------------------------------------------------------------------------------


def test_what_is_adopted_is_ones_own(rig: Rig) -> None:
    """Leases of others, and what is no lease, are left out; what is not claimed is freed."""
    peer, other = Peer(rig), Peer(rig, session="other")
    mine, unclaimed = peer.acquire(1)["lease"], peer.acquire(2)["lease"]
    theirs = other.acquire(1)["lease"]
    rig.killed()
    rig.start()
    assert len(books(rig)) == 3
    back = Peer(rig, peer.process)
    told = back.call("adopt", leases=[mine, theirs, "x", 5, None, ["a"]])
    assert (told["op"], told["id"], told["leases"]) == ("adopted", 900, [mine])
    assert set(books(rig)) == {mine, theirs}
    assert unclaimed not in books(rig)
    back.dies()
    assert set(books(rig)) == {theirs}
    for leases in (None, "all", {"a": 1}):
        assert other.rig is rig
        assert Peer(rig).call("adopt", leases=leases)["code"] == "usage"


def test_nested_jobs_come_back_with_their_lease(rig: Rig) -> None:
    """Each once, inside a lease of the client's own; the lease ends after them."""
    peer = Peer(rig)
    lease = peer.acquire()["lease"]
    inner = [{"id": 7, "lease": lease, "memory_mib": 300}]
    for _ in range(2):
        assert peer.call("adopt", leases=[lease], nested=inner)["leases"] == [lease]
    assert rig.core is not None
    (hold,) = rig.core.machine.nested.holds.values()
    assert (hold.lease, hold.mib) == (lease, 300)
    peer.call("adopt", leases=[lease], nested=[{"id": 6, "lease": lease}])
    assert [each.mib for each in rig.core.machine.nested.holds.values()] == [300, 0]
    peer.says({"op": "leave", "id": 6})
    for wrong in ("x", [5], [{}], [{"id": "7"}]):
        assert peer.call("adopt", leases=[lease], nested=wrong)["code"] == "usage"
    other = Peer(rig)
    other.call("adopt", leases=[], nested=[{"id": 1, "lease": lease}])
    assert len(rig.core.machine.nested.holds) == 1, "it is not inside of it"
    assert peer.call("release", lease=lease, exit_code=0)["draining"]
    assert peer.says({"op": "leave", "id": 8}, {"op": "leave", "id": [7]}) == []
    assert list(books(rig)) == [lease]
    assert peer.says({"op": "leave", "id": 7}) == []
    assert books(rig) == {}


def test_a_job_inside_a_lease_shares_it(rig: Rig) -> None:
    """Found by its marker or its parents, not by what it says; its number is taken while it runs."""
    peer = Peer(rig)
    table = rig.world.processes
    lease = peer.acquire()["lease"]
    child = table.spawn(1, lease)
    assert child is not None
    inside = Peer(rig, child)
    grant = inside.acquire(5, outer=lease, memory_mib=400)
    assert (grant["op"], grant["nested"], grant["lease"]) == ("granted", True, lease)
    assert inside.acquire(5, outer=lease)["code"] == "usage"
    deeper = inside.acquire(6, outer=lease, memory_mib=100, within=5)
    assert deeper["nested"]
    assert rig.core is not None
    first, second = rig.core.machine.nested.holds.items()
    assert (first[1].within, second[1].within) == (None, first[0])
    inside.says({"op": "leave", "id": 6})
    main = table.spawn(peer.process.pid)
    assert main is not None
    peer.says({"op": "started", "lease": lease, "pid": main.pid})
    grandchild = table.spawn(main.pid)
    assert grandchild is not None
    assert Peer(rig, grandchild).acquire(1, outer=lease, memory_mib=100)["nested"]
    liar = Peer(rig)
    assert not liar.acquire(1, outer=lease)["nested"]
    assert Peer(rig, peer.process).acquire(9, outer=lease, memory_mib=100)["nested"]


def test_another_users_process_does_not_belong(rig: Rig) -> None:
    """Though it carries the lease's name; root's does."""
    peer = Peer(rig)
    lease = peer.acquire()["lease"]
    child = rig.world.processes.spawn(1, lease)
    assert child is not None
    inside = Peer(rig, child)
    inside.wire.protocol.uid = 1234
    assert inside.call("peak", lease=lease, mib=5)["code"] == "lease"
    inside.wire.protocol.uid = 0
    assert inside.call("peak", lease=lease, mib=5)["op"] == "noted"
    assert peer.call("peak", lease=lease)["code"] == "usage"
    assert peer.call("peak", lease="x-1", mib=5)["code"] == "lease"
    assert Peer(rig).call("peak", lease=lease, mib=5)["code"] == "lease"
    (held,) = books(rig).values()
    assert held.reported_mib == 5


# -- looking --------------------------------------------------------------------------------------


def test_reports_come_in_pages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry is on one page; the last says that there is no more."""
    monkeypatch.setattr(report_module, "PAGE_BYTES", 2000)
    peer = Peer(rig)
    for number in range(1, 13):
        peer.acquire(number, memory_mib=4000, label="x" * 200)
    leases: list[str] = []
    waiters: list[int] = []
    page, more = 0, True
    while more:
        answer = peer.call("status", page=page)
        leases += [lease["id"] for lease in answer["status"]["leases"]]
        waiters += [waiter["pid"] for waiter in answer["status"]["waiters"]]
        assert answer["status"]["leases"] or answer["status"]["waiters"], "a page for nothing"
        page, more = page + 1, answer["more"]
    assert page > 2
    assert leases == list(books(rig))
    assert len(waiters) == 4
    beyond = peer.call("status", page=page)
    assert (beyond["more"], beyond["status"]["leases"]) == (False, [])
    assert peer.call("status", page=-1)["code"] == "usage"


def test_profiles_come_in_pages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As reports do."""
    monkeypatch.setattr(connection_module, "PAGE_BYTES", 500)
    peer = Peer(rig)
    for number in range(9):
        peer.call("profiles", action="set", type=f"t{number}", memory_mib=100)
    found: list[str] = []
    page, more = 0, True
    while more:
        answer = peer.call("profiles", action="list", page=page)
        assert (answer["op"], answer["id"]) == ("profiles", 900)
        assert answer["profiles"], "a page for nothing"
        found += [profile["type"] for profile in answer["profiles"]]
        page, more = page + 1, answer["more"]
    assert sorted(found) == [f"t{number}" for number in range(9)]
    assert page > 1
    assert peer.call("profiles", action="list", page=page)["profiles"] == []


def test_what_would_start_at_once_is_foretold(rig: Rig) -> None:
    """For each wish in its turn, and nothing is booked."""
    peer = Peer(rig)
    wish = {"type": "t", "gpus": 1, "memory_mib": 9000}
    answer = peer.call("foresee", wishes=[wish, wish, wish])
    assert (answer["op"], answer["at_once"]) == ("foreseen", [True, True, False])
    assert books(rig) == {}
    for wrong in (None, wish, [wish, 5]):
        assert peer.call("foresee", wishes=wrong)["code"] == "usage"


def test_a_job_is_explained(rig: Rig) -> None:
    """By its lease or its number; who asks about nothing, or about what nobody knows, is told so."""
    peer = Peer(rig)
    lease = peer.acquire()["lease"]
    answer = peer.call("explain", subject=lease)
    assert (answer["op"], answer["id"]) == ("explained", 900)
    assert answer["explanation"]["subject"] == lease
    for subject in ("", None, 5):
        assert peer.call("explain", subject=subject)["code"] == "usage"
    for number in (2, 3):
        peer.acquire(number, label="twins")
    several = peer.call("explain", subject="twins")
    assert (several["op"], several["id"], several["code"]) == ("error", 900, "usage")
    one, two = (peer.call("explain", subject="t", **said) for said in ({}, {"gpus": 2}))
    assert [each["explanation"]["gpus"] for each in (one, two)] == [1, 2]
    assert peer.call("explain", subject=lease, gpus=-1)["code"] == "usage"


def test_where_no_history_is_kept_all_of_it_is_written(rig: Rig) -> None:
    """Who asks is answered at once."""
    assert Peer(rig).call("record") == {"op": "recorded", "id": 900}


def test_who_watches_is_told_what_happens(rig: Rig) -> None:
    """From then on, in order, under the number of the question; once a connection."""
    watcher, peer = Peer(rig), Peer(rig)
    assert watcher.call("watch", events=True)["op"] == "watched"
    assert watcher.call("watch", events=True)["code"] == "usage"
    peer.acquire()
    rig.world.now += 1
    rig.world.loop.run_due()
    told = watcher.hears()
    assert {each["op"] for each in told} == {"event"}
    assert {each["id"] for each in told} == {900}
    assert [each["event"]["event"] for each in told][-1] == "granted"
    assert peer.hears() == []


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
