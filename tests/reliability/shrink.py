"""The shortest story that still goes wrong: parts are left out for as long as it fails without them.

A number says alone what happens, so any part of a story is a story; see `simulation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["shrunk"]


def shrunk(story: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Return a part of the story, its first number included, that fails and has nothing to spare.

    `fails` says whether a story fails in the way that is looked for.
    """
    head, events = [story[0]], list(story[1:])
    size = max(1, len(events) // 2)
    while True:
        at, smaller = 0, False
        while at < len(events):
            without = events[:at] + events[at + size :]
            if fails(head + without):
                events, smaller = without, True
            else:
                at += size
        if size == 1 and not smaller:
            return head + events
        size = max(1, size // 2)
