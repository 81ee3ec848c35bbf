"""The session in the test's own process: each message, what is answered, and what it changes.

What the sockets do is in `tests/broker`; here a broker is brought up on a simulated machine in less
than a millisecond, so every case of a handler can be asked for. How a connection begins and ends:
`test_session_ends.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.broker import connection as connection_module
from grn.rules import report as report_module
from grn.rules.wire import decode, encode
from tests.reliability.peers import HELLO, Peer, books
from tests.reliability.world import Wire

if TYPE_CHECKING:
    from tests.reliability.rig import Rig


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
