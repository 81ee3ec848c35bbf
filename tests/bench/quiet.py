"""Wait for a quiet moment, and tell how quiet it was: a busy machine measures the others."""

from __future__ import annotations

import time

__all__ = ["BUSY", "wait_until_quiet"]

BUSY = 0.15
"""Share of all cores in use by others above which figures deserve doubt."""

_LOOK_S = 1.0
_IDLE = slice(3, 5)  # idle and waiting for a disk, among the fields of /proc/stat
_FIELDS = slice(0, 8)


def wait_until_quiet(patience_s: float) -> float:
    """Return the share of all cores that others used in the last second looked at."""
    end = time.monotonic() + patience_s
    while True:
        busy = _busy_share()
        if busy < BUSY or time.monotonic() > end:
            return busy


def _busy_share() -> float:
    total, idle = _ticks()
    time.sleep(_LOOK_S)
    total_later, idle_later = _ticks()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def _ticks() -> tuple[int, int]:
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(word) for word in file.readline().split()[1:]]
    return sum(fields[_FIELDS]), sum(fields[_IDLE])
