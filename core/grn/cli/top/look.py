"""Glyphs and colours of `grn top`, and sizes and times as short as they stay clear.

A lease has a letter and a colour, the same in its devices' bars and in its row, for as long as it
lives. Where there is no colour the letter tells; where there is no Unicode, ASCII stands in.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = [
    "ASCII",
    "FANCY",
    "OUTCOME_STYLES",
    "Glyphs",
    "colour_of",
    "letter_of",
    "number_of",
    "size",
    "span",
]

_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_COLOURS = (
    "#5b9bd5",
    "#ed9a4d",
    "#70b56e",
    "#b18ad9",
    "#4fb3bf",
    "#d9b94a",
    "#e07ba8",
    "#a3b545",
    "#c97b63",
    "#8795c9",
)
_GIB = 1024
_TEN = 10
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_TENS = 100
"""Seconds are written up to here, and minutes: 95 s tells more than 2 min."""

OUTCOME_STYLES = {
    "ok": "green",
    "failed": "red",
    "killed": "red",
    "oom": "bold red",
    "oom-suspected": "bold red",
    "cancelled": "yellow",
    "lost": "magenta",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What the parts of a bar and of the frame are drawn with, one column each."""

    measured: str
    booked: str
    probe: str
    foreign: str
    free: str
    kept: str
    rule: str
    more: str
    bullet: str
    times: str
    cursor: str


FANCY = Glyphs(
    measured="█",
    booked="▒",
    probe="╱",  # noqa: RUF001 - not a slash
    foreign="▚",
    free="░",
    kept="╌",
    rule="─",
    more="…",
    bullet="·",
    times="×",  # noqa: RUF001 - not an x
    cursor="▏",
)
ASCII = Glyphs(
    measured="#",
    booked="=",
    probe="?",
    foreign="%",
    free=".",
    kept="-",
    rule="-",
    more="~",
    bullet="|",
    times="x",
    cursor="_",
)


def letter_of(lease: Mapping[str, Any]) -> str:
    """Return a lease's letter: that of the next lease is the next one."""
    return _LETTERS[number_of(lease) % len(_LETTERS)]


def colour_of(lease: Mapping[str, Any]) -> str:
    """Return a lease's colour, which its neighbours in time do not have."""
    return _COLOURS[number_of(lease) % len(_COLOURS)]


def number_of(lease: Mapping[str, Any]) -> int:
    """Return the number that a lease's id ends with: it rises from lease to lease."""
    number = str(lease["id"]).rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else sum(map(ord, number))


def size(mib: float | None) -> str:
    """Write a size in six columns at most: `870M`, `3.25G`, `80G`; `?` if it is not known."""
    if mib is None:
        return "?"
    if abs(mib) < _GIB:
        return f"{mib:.0f}M"
    gib = mib / _GIB
    digits = 0 if gib >= _TENS else 1 if gib >= _TEN else 2
    text = f"{gib:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "G"


def span(seconds: float | None) -> str:
    """Write a time in four columns at most: `95s`, `12m`, `3.5h`, `2d`; `?` if it is not known."""
    if seconds is None:
        return "?"
    seconds = max(0.0, seconds)
    if seconds < _TENS:
        return f"{seconds:.0f}s"
    if seconds < _TENS * _MINUTE_S:
        return f"{seconds / _MINUTE_S:.0f}m"
    if seconds < _TEN * _HOUR_S:
        return f"{seconds / _HOUR_S:.1f}h"
    if seconds < _TENS * _HOUR_S:
        return f"{seconds / _HOUR_S:.0f}h"
    return f"{seconds / _DAY_S:.0f}d"
