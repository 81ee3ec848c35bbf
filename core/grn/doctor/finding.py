"""One finding: how bad, about what, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Level", "note", "ok", "problem", "told"]

Level = Literal["ok", "note", "problem"]

_SPLITS = ("; cure: ", ": ", "; ")
"""How messages elsewhere put what to do after what happened."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok`: as it should be. `note`: worth knowing. `problem`: GRN cannot do its work with that."""

    level: Level
    about: str
    what: str
    do: str = ""


def ok(about: str, what: str) -> Finding:
    """Say that something is as it should be."""
    return Finding("ok", about, what)


def note(about: str, what: str, do: str = "") -> Finding:
    """Say what is worth knowing."""
    return Finding("note", about, what, do)


def problem(about: str, what: str, do: str = "") -> Finding:
    """Say what keeps GRN from its work."""
    return Finding("problem", about, what, do)


def told(level: Level, about: str, message: str, do: str = "") -> Finding:
    """Take a message that tells both: 'what happened: what to do'. `do` is for one that does not."""
    for split in _SPLITS:
        what, found, cure = message.partition(split)
        if found:
            return Finding(level, about, what, cure)
    return Finding(level, about, message, do)
