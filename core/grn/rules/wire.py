"""The frame: a 4-byte big-endian length, then one msgpack map of at most 1 MiB.

Size and nesting are checked before anything is decoded: a header that promises 4 GiB or a body
nested 100,000 deep costs its sender the connection, and nobody else anything.
"""

from __future__ import annotations

import struct

import msgpack

from grn.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["MAGIC", "MAX_DEPTH", "MAX_FRAME", "VERSION", "Frames", "decode", "encode"]

MAGIC = "GRN"
VERSION = 1
MAX_FRAME = 1 << 20
MAX_DEPTH = 8

_LENGTH = struct.Struct(">I")
_HARMLESS_DEPTH = 64
_MAP_BYTES = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_ARRAY_BYTES = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_CONTAINER_BYTES = bytes(_MAP_BYTES | _ARRAY_BYTES)
_TEXT = frozenset({str})
# Commands and labels may hold bytes that are not UTF-8; they travel as lone surrogates.
_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogateescape").pack
_unpack = msgpack.unpackb


def encode(message: Mapping[str, Any]) -> bytes:
    """Turn a message into one frame.

    Raises:
        ProtocolError: if the message is larger than a frame may be, or holds what no frame can:
            a number beyond 64 bits, half of a surrogate pair.
    """
    try:
        body: bytes = _pack(message)
    except (ValueError, OverflowError) as error:
        raise ProtocolError(f"not fit for a frame: {error}") from error
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a message of {len(body)} bytes, the limit is {MAX_FRAME}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes, *, most_values: int | None = None) -> dict[str, Any]:
    """Turn the body of a frame into a message.

    `most_values` bounds the work on a body that looks nested, for who cannot trust its sender.

    Raises:
        ProtocolError: if it is not one map with text keys, nested too deep, or over that bound.
    """
    heads = _heads(body)
    if heads > _HARMLESS_DEPTH:
        _walk(body, most_values or len(body))
    try:
        message = _unpack(
            body,
            unicode_errors="surrogateescape",
            strict_map_key=True,
            max_ext_len=0,
            ext_hook=_no_extension,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise ProtocolError(f"not a msgpack map: {error}") from error
    if not isinstance(message, dict) or not _TEXT.issuperset(map(type, message)):
        raise ProtocolError("a frame holds one map with text keys")
    if heads > MAX_DEPTH:
        _check_depth(message, MAX_DEPTH)
    return message


def _no_extension(code: int, data: bytes) -> None:
    """Refuse an extension type; the limit of their length lets empty ones through."""
    raise ProtocolError(f"extension type {code} of {len(data)} bytes")


def _heads(body: bytes) -> int:
    """Count bytes that may open a container: an upper bound for the depth, at the speed of C.

    Numbers and texts hold such bytes too, so flat messages can have more than `MAX_DEPTH` of them.
    Up to `_HARMLESS_DEPTH` the depth is looked up in what was decoded; a body that might be deeper
    is walked before anything is decoded.
    """
    return len(body) - len(body.translate(None, _CONTAINER_BYTES))


def _check_depth(value: Any, left: int) -> None:
    """Refuse a decoded value that is nested more than `left` deep."""
    if type(value) is dict:
        value = value.values()
    elif type(value) is not list:
        return
    if not left:
        raise _too_deep()
    for inner in value:
        _check_depth(inner, left - 1)


def _too_deep() -> ProtocolError:
    return ProtocolError(f"nested more than {MAX_DEPTH} deep")


def _too_many() -> ProtocolError:
    return ProtocolError("more values than any request has")


def _walk(body: bytes, most_values: int) -> None:
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_FRAME)
    open_items: list[int] = [1]
    try:
        unpacker.feed(body)
        while open_items:
            if open_items[-1] == 0:
                open_items.pop()
                continue
            open_items[-1] -= 1
            most_values -= 1
            if most_values < 0:
                raise _too_many()
            count = _enter(unpacker, body)
            if count is not None:
                open_items.append(count)
                if len(open_items) > MAX_DEPTH + 1:
                    raise _too_deep()
    except ProtocolError:
        raise
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not a msgpack map: {error}") from error


def _enter(unpacker: msgpack.Unpacker, body: bytes) -> int | None:
    """Step over one value; for a container return how many values follow in it."""
    at = unpacker.tell()
    head = body[at] if at < len(body) else 0
    if head in _MAP_BYTES:
        return 2 * int(unpacker.read_map_header())
    if head in _ARRAY_BYTES:
        return int(unpacker.read_array_header())
    unpacker.skip()
    return None


class Frames:
    """Collects bytes and gives back the bodies of complete frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes in; return the bodies that are complete now.

        Raises:
            ProtocolError: if a header promises more than a frame may hold.
        """
        buffer = self._buffer
        size = len(data) - _LENGTH.size
        if not buffer and 0 < size <= MAX_FRAME and _LENGTH.unpack_from(data)[0] == size:
            return [data[_LENGTH.size :]]  # one whole frame, as nearly always
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes, the limit is {MAX_FRAME}")
            body = start + _LENGTH.size
            end = body + length
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[body:end]))
            start = end
        if start:
            del buffer[:start]
        return bodies
