"""Bytes that no client should send, through the real session; see `wirefuzz.py`."""

from __future__ import annotations

import gc
import os
import struct

import pytest

from grn import procs
from grn.rules.wire import MAX_FRAME, decode, encode
from tests.reliability.rig import installed
from tests.reliability.wirefuzz import Fuzz, Session

FRAMES = int(os.environ.get("GRN_TEST_FRAMES", "1000000"))
PARTS = 10


@pytest.mark.busy
@pytest.mark.parametrize("part", range(PARTS))
def test_a_million_fuzzed_frames(part: int) -> None:
    """Nothing but a protocol error comes of any frame; a good client beside it is always answered.

    Memory does not grow with them, beyond what the first thousands need.
    """
    session = Session()
    fuzz = Fuzz(part)
    session.run(fuzz, min(5000, FRAMES // PARTS))
    gc.collect()
    before = procs.rss_mib(os.getpid()) or 0
    session.run(fuzz, FRAMES // PARTS)
    gc.collect()
    assert (procs.rss_mib(os.getpid()) or 0) < before + 10
    assert session.decoded >= FRAMES // PARTS
    assert session.answers > session.decoded // 1000
    assert 0 < session.dropped < session.decoded // 5


def _length(size: int) -> bytes:
    return struct.pack(">I", size)


DEEP = b"\x81\xa2op" + b"\x91" * 100_000 + b"\x90"
WIDE = b"\x81\xa2op\xdd\x00\x0f\xff\x00" + b"\x90" * 0xFFF00
HOSTILE = {
    "a header of 4 GiB": b"\xff\xff\xff\xff",
    "100,000 deep": _length(len(DEEP)) + DEEP,
    "a million values": _length(len(WIDE)) + WIDE,
    "an array said to have 4 billion": _length(9) + b"\x81\xa2op\xdd\xff\xff\xff\xff"[:9],
    "a text said to have 4 GiB": _length(9) + b"\x81\xa2op\xdb\xff\xff\xff\xff"[:9],
    "one byte over the limit": _length(MAX_FRAME + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("slice_", [1 << 16, 4099])
def test_a_hostile_frame_ends_its_own_connection(name: str, slice_: int) -> None:
    """However it is cut up, it costs its sender the connection; what is kept of it is bounded."""
    session = Session()
    with installed(session.world):
        session.rig.start()
        session._good_starts()
        process = session.world.processes.spawn()
        assert process is not None
        wire = session._greeted(process)
        data = HOSTILE[name]
        for at in range(0, len(data), slice_):
            if not wire.broker_closed:
                session.rig.hear(wire, data[at : at + slice_])
                assert len(wire.protocol._frames) <= MAX_FRAME + 4
        assert wire.broker_closed
        session.rig.hang_up(wire)
        session._good_asks()


def test_one_byte_at_a_time_is_a_message_all_the_same() -> None:
    """A slow writer is understood when its last byte has come, and holds nobody up before."""
    session = Session()
    with installed(session.world):
        session.rig.start()
        session._good_starts()
        process = session.world.processes.spawn()
        assert process is not None
        wire = session._greeted(process)
        session.world.loop.run_soon()
        wire.to_client.clear()
        for byte in encode({"op": "status", "id": 7}):
            assert not wire.to_client
            session.rig.hear(wire, bytes([byte]))
            session._good_asks()
        assert decode(bytes(wire.to_client[4:]))["id"] == 7


def test_a_record_that_no_journal_holds_fails_its_own_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three requests in one read, the one with the huge record is refused, the others granted."""
    monkeypatch.setattr("grn.broker.journal.MAX_RECORD_BYTES", 2000)
    session = Session()
    with installed(session.world):
        core = session.rig.start()
        process = session.world.processes.spawn()
        assert process is not None
        wire = session._greeted(process)
        session.world.loop.run_soon()
        wire.to_client.clear()
        wish = {"op": "acquire", "type": "t", "gpus": 1, "memory_mib": 100}
        labels = ("", "x" * 3000, "")
        asked = [encode({**wish, "id": n, "label": x}) for n, x in enumerate(labels)]
        session.rig.hear(wire, b"".join(asked))
        session.world.loop.run_soon()
        said = {x["id"]: x for x in _messages(bytes(wire.to_client))}
        assert [said[n]["op"] for n in range(3)] == ["granted", "refused", "granted"]
        assert said[1]["code"] == "disk"
        assert "the limit is 2000" in said[1]["message"]
        assert core.machine.disk_problem == ""
        core.machine.check_invariants()
        held = set(core.machine.leases)
        assert len(held) == 2
        session.rig.killed()
        assert set(session.rig.start().machine.leases) == held


def _messages(data: bytes) -> list[dict[str, object]]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return found
