"""JSON lines from a pipe, with a deadline for each."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

__all__ = ["Lines", "object_in"]

_CHUNK = 1 << 16


class Lines:
    """Reads a pipe line by line; what is no JSON object (a program's own words) is passed over."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self.ended = False

    def next(self, within_s: float) -> dict[str, Any] | None:
        """Return the next object; None when the time is over or the pipe has ended."""
        deadline = time.monotonic() + within_s
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                found = object_in(line)
                if found is not None:
                    return found
            elif self.ended or not self._read(deadline - time.monotonic()):
                return None

    def _read(self, left_s: float) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return False
        data = os.read(self._fd, _CHUNK)
        self.ended = not data
        self._rest += data
        return bool(data)


def object_in(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; None if it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
