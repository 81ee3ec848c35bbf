"""Frames: what we write we read back, and whatever else arrives is a protocol error."""

from __future__ import annotations

import random
import struct
import time
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.errors import ProtocolError
from grn.rules.wire import MAX_DEPTH, MAX_FRAME, Frames, decode, encode

TEXT = st.text(st.characters(codec="utf-8"), max_size=20) | st.binary(max_size=20).map(
    lambda raw: raw.decode("utf-8", "surrogateescape")
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT
SCALARS |= st.floats(allow_nan=False) | st.binary(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.dictionaries(TEXT, VALUES, max_size=6)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@given(message=MESSAGES)
def test_messages_survive_the_way(message: dict[str, Any]) -> None:
    """Any map of plain values comes back equal, unless it is too deep."""
    frame = encode(message)
    bodies = Frames().feed(frame)
    assert bodies == [frame[4:]]
    if _depth(message) > MAX_DEPTH:
        with pytest.raises(ProtocolError, match="deep"):
            decode(bodies[0])
    else:
        assert decode(bodies[0]) == message


def test_bytes_that_are_no_text_survive() -> None:
    """A command line with bytes that are not UTF-8 travels unchanged."""
    raw = b"train \xc0\xff\x80 --name \xe9t\xe9"
    text = raw.decode("utf-8", "surrogateescape")
    back = decode(encode({"command": text})[4:])["command"]
    assert back.encode("utf-8", "surrogateescape") == raw


@given(messages=st.lists(MESSAGES, max_size=4), cuts=st.lists(st.integers(0, 400)))
def test_frames_may_be_torn_anywhere(messages: list[dict[str, Any]], cuts: list[int]) -> None:
    """However the stream is cut into pieces, the same frames come out in order."""
    stream = b"".join(encode(message) for message in messages)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    frames = Frames()
    bodies = [body for begin, end in pairwise(edges) for body in frames.feed(stream[begin:end])]
    assert bodies == [encode(message)[4:] for message in messages]
    assert len(frames) == 0


def test_a_frame_byte_by_byte() -> None:
    """One byte at a time is enough; nothing comes out before the last one."""
    frame, frames = encode({"op": "status", "id": 1}), Frames()
    for byte in frame[:-1]:
        assert frames.feed(bytes([byte])) == []
    assert frames.feed(frame[-1:]) == [frame[4:]]


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    """The limit is exactly 1 MiB, for the writer and for the reader."""
    overhead = len(encode({"a": "x" * 70000})) - 70000 - 4
    fits = encode({"a": "x" * (MAX_FRAME - overhead)})
    assert len(fits) == MAX_FRAME + 4
    assert len(decode(Frames().feed(fits)[0])["a"]) == MAX_FRAME - overhead
    with pytest.raises(ProtocolError, match=str(MAX_FRAME)):
        encode({"a": "x" * (MAX_FRAME - overhead + 1)})
    with pytest.raises(ProtocolError, match=str(MAX_FRAME)):
        Frames().feed(struct.pack(">I", MAX_FRAME + 1))


def test_an_oversized_header_costs_nothing() -> None:
    """A header that promises 4 GiB is refused before anything of it is kept."""
    frames = Frames()
    with pytest.raises(ProtocolError):
        frames.feed(b"\xff\xff\xff\xff" + b"x" * 100)


def _nested(depth: int, opener: bytes = b"\x91") -> bytes:
    return b"\x81\xa1a" + opener * (depth - 1) + b"\x01"


def test_nesting_is_limited() -> None:
    """Eight levels are decoded, nine are not."""
    assert decode(_nested(MAX_DEPTH))
    with pytest.raises(ProtocolError, match="deep"):
        decode(_nested(MAX_DEPTH + 1))


def test_what_one_message_may_hold_can_be_bounded() -> None:
    """A frame full of empty containers is refused after so many, not looked through to its end."""
    full = encode({"a": [[] for _ in range(200_000)]})[4:]
    assert len(decode(full)["a"]) == 200_000
    with pytest.raises(ProtocolError, match=r"^more values than any request has"):
        decode(full, most_values=1000)


@pytest.mark.parametrize(
    "opener",
    [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\xde\x00\x01\xa1a"],
)
@pytest.mark.parametrize("depth", [9, 64, 65, 100, 1000, 100_000])
def test_deep_nesting_is_refused_quickly(opener: bytes, depth: int) -> None:
    """A body of nothing but openers is a protocol error at once, not a stack that overflows."""
    begun = time.monotonic()
    with pytest.raises(ProtocolError):
        decode(_nested(depth, opener))
    assert time.monotonic() - begun < 5


def test_bytes_that_look_like_containers_are_no_depth() -> None:
    """Long texts and numbers full of such bytes are flat."""
    message = {"text": "日本" * 1000, "numbers": list(range(0x80, 0xE0)) * 10}
    assert decode(encode(message)[4:]) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\x01",
        b"\x90",
        b"\xa3GRN",
        b"\xc1",
        b"\x81",
        b"\x81\xa1a",
        b"\x81\x01\x01",
        b"\x81\xc4\x01a\x01",
        b"\x81\xa1a\x01\x01",
        b"\x81\xa1a\x01\x81\xa1a\x01",
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xdb\xff\xff\xff\xffxx",
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=lambda body: body.hex() or "empty",
)
def test_what_is_not_one_map_with_text_keys_is_refused(body: bytes) -> None:
    """Other types, cut bodies, trailing bytes, number or byte keys, and huge claims are errors."""
    with pytest.raises(ProtocolError):
        decode(body)


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(5, b"x"),
        msgpack.ExtType(5, b""),
        msgpack.ExtType(127, b"x" * 300),
        msgpack.Timestamp(0, 0),
        msgpack.Timestamp(2**40, 5),
    ],
    ids=repr,
)
def test_extension_types_are_refused(value: Any) -> None:
    """The protocol has no types of its own, so nobody else's are understood."""
    with pytest.raises(ProtocolError):
        decode(msgpack.packb({"a": value}))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800", "\udcff\ud900"])
def test_what_no_frame_can_hold_is_refused_by_the_writer(value: Any) -> None:
    """A number or text that cannot be written is an error of its sender, by our own name."""
    with pytest.raises(ProtocolError):
        encode({"a": value})
    assert decode(encode({"a": 1})[4:]) == {"a": 1}


def _mutated(dice: random.Random, seeds: list[bytes]) -> bytes:
    body = bytearray(dice.choice(seeds))
    for _ in range(dice.randint(0, 4)):
        at = dice.randrange(len(body) + 1)
        kind = dice.randrange(4)
        if kind == 0:
            body[at : at + 1] = bytes([dice.randrange(256)])
        elif kind == 1:
            del body[at : at + dice.randint(1, 8)]
        elif kind == 2:
            body[at:at] = dice.randbytes(dice.randint(1, 8))
        else:
            body[at:at] = bytes([dice.randrange(0x80, 0xA0)]) * dice.randint(1, 80)
    return bytes(body)


def test_no_bytes_can_do_more_than_end_a_connection() -> None:
    """Of 20,000 broken frames each is either a message or a protocol error, never anything else."""
    dice = random.Random(2024)  # noqa: S311 - a fixed series, not a secret
    seeds = [
        b"",
        encode({"op": "hello", "magic": "GRN", "version": 1, "features": ["a"]})[4:],
        encode({"op": "acquire", "id": 1, "memory_mib": None, "waited_s": 0.5, "mask": "0,1"})[4:],
        encode({"a": [[{"b": [1, 2.5, b"xy", "\udcff"]}]]})[4:],
        msgpack.packb({"a": msgpack.ExtType(3, b"abcd"), "t": msgpack.Timestamp(1, 2)}),
    ]
    outcomes = {True: 0, False: 0}
    for number in range(20_000):
        body = dice.randbytes(dice.randint(0, 60)) if number % 4 == 0 else _mutated(dice, seeds)
        try:
            message = decode(body)
        except ProtocolError:
            outcomes[False] += 1
        else:
            assert all(type(key) is str for key in message)
            assert _depth(message) <= MAX_DEPTH
            outcomes[True] += 1
    assert min(outcomes.values()) > 100
