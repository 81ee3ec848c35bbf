"""A worker: one process that knows one card, and nothing else of GRN.

It says first what it found, then answers one question at a time. When the card or the driver is gone
it says so and ends, since a fresh process is the cure; what it was told last stays true until then.

Must not: outlive the broker, whose end of the socket closes with it.
"""

from __future__ import annotations

import time

from grn.devices.nvml.binding import (
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    UNKNOWN,
    is_driver_gone,
    is_lost,
    reason_of,
)
from grn.devices.nvml.pairs import far_apart
from grn.devices.nvml.reader import CardReader
from grn.devices.nvml.survey import census, find_card, survey
from grn.rules.wire import Frames, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping
    from typing import Any

__all__ = ["serve"]

_CHUNK = 1 << 16
_FELL_OFF_THE_BUS = 79
_OF_THE_CARD = frozenset({INVALID_ARGUMENT, NOT_FOUND, UNKNOWN})
"""What a freshly initialised driver answers about a card that is not there, or not well."""


def serve(sock: socket.socket, binding: Any, wanted: dict[str, Any]) -> None:
    """Answer questions about one card, or count them all, until the broker or the card is gone."""
    reader = _begin(sock, binding, wanted)
    if reader is None:
        return
    for question in _questions(sock):
        try:
            answer = reader.read(health=bool(question["health"]))
        except binding.NVMLError as error:
            # Whether a code that may mean both is about the card, a fresh process will find out.
            state = "lost" if is_lost(error.value) else "stale"
            _tell(
                sock,
                {**_trouble(state, error.value, binding), "xids": _last(reader, binding, state)},
            )
            return
        _tell(sock, {"answer": question["number"], "at_s": time.monotonic(), **answer})


def _last(reader: CardReader, binding: Any, state: str) -> list[int]:
    """Return the events that led to the loss of a card; it may have been lost without a word."""
    if state != "lost":
        return []
    try:
        xids = [xid for xid, _, _ in reader.events.take()]
    except binding.NVMLError:
        xids = []
    return xids or [_FELL_OFF_THE_BUS]


def _begin(sock: socket.socket, binding: Any, wanted: dict[str, Any]) -> CardReader | None:
    """Initialise, look for the card, and tell what was found."""
    try:
        binding.nvmlInit()
        if not wanted:
            _tell(sock, {"census": census(binding)})
            return None
        if "pairs" in wanted:
            _tell(sock, {"pairs": far_apart(binding, wanted["pairs"])})
            return None
    except binding.NVMLError as error:
        _tell(sock, _trouble("stale", error.value, binding))
        return None
    try:
        card = find_card(binding, wanted)
        told, devices = survey(binding, card)
        reader = CardReader(binding, card, devices)
    except binding.NVMLError as error:
        _tell(sock, _trouble(_state_at_start(error.value), error.value, binding))
        return None
    for device in told["devices"]:
        device["capabilities"].append(("events", reader.events.answer))
    _tell(sock, {"card": told})
    return reader


def _state_at_start(code: int) -> str:
    if code == NO_PERMISSION:
        return "denied"
    if is_lost(code) or (code in _OF_THE_CARD and not is_driver_gone(code)):
        return "lost"
    return "stale"


def _trouble(state: str, code: int, binding: Any) -> dict[str, Any]:
    return {"trouble": state, "reason": reason_of(code, binding)}


def _questions(sock: socket.socket) -> Iterator[dict[str, Any]]:
    frames = Frames()
    while data := sock.recv(_CHUNK):
        for body in frames.feed(data):
            yield decode(body)


def _tell(sock: socket.socket, message: Mapping[str, Any]) -> None:
    sock.sendall(encode(message))
