"""What was typed, as the names of keys: bytes of a terminal in, names out.

A character is its own name; others are `up`, `down`, `left`, `right`, `home`, `end`, `pageup`,
`pagedown`, `tab`, `backtab`, `enter`, `backspace`, `escape`. What is not known is dropped.
"""

from __future__ import annotations

import codecs
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Keyboard"]

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)\Z")
_NAMES: Mapping[str, str] = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[C": "right",
    "\x1bOC": "right",
    "\x1b[D": "left",
    "\x1bOD": "left",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[7~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b[8~": "end",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[Z": "backtab",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "escape",
}


class Keyboard:
    """Collects bytes; a character or a sequence may come in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes in; return the keys that are complete.

        An escape at the end is the key, not the beginning of a sequence: terminals send those at once.
        """
        text = self._rest + self._decoder.decode(data)
        self._rest, found, at = "", [], 0
        while at < len(text):
            if _UNFINISHED.match(text, at):
                self._rest = text[at:]
                break
            sequence = _SEQUENCE.match(text, at)
            piece = sequence.group() if sequence else text[at]
            at += len(piece)
            name = _NAMES.get(piece, piece if piece.isprintable() else "")
            if name:
                found.append(name)
        return found
