"""What a person looks at in `grn top`: order, filter, the pane that scrolls; and what keys do to it.

Pure: a view and a key give a view.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEVICES", "LEASES", "PANES", "RECENT", "SORTS", "WAITING", "View", "press"]

DEVICES, LEASES, WAITING, RECENT = "devices", "leases", "waiting", "recent"
PANES = (LEASES, WAITING, RECENT, DEVICES)
"""In the order in which Tab goes through them."""

SORTS: Mapping[str, str] = {
    "m": "memory",
    "t": "time",
    "d": "device",
    "n": "name",
    "u": "user",
}
"""Key to the order of the leases."""

_LONGEST_FILTER = 200
_FAR = 1 << 30
_PAGE = 10


@dataclass(frozen=True, slots=True)
class View:
    """What is chosen.

    Attributes:
        sort: one of `SORTS`' values.
        reverse: the other way round.
        filter: only what has this in its names; '' for all.
        editing: the filter is being written.
        pane: which one scrolls.
        offsets: how many lines of a pane are above what is shown; too many are as many as there are.
        help: the keys are explained.
        over: the person wants to leave.
    """

    sort: str = "time"
    reverse: bool = False
    filter: str = ""
    editing: bool = False
    pane: str = LEASES
    offsets: Mapping[str, int] = field(default_factory=dict)
    help: bool = False
    over: bool = False

    def offset(self, pane: str) -> int:
        """Return how far a pane is scrolled."""
        return self.offsets.get(pane, 0)


def press(view: View, key: str, most: Mapping[str, int]) -> View:
    """Return the view after a key; `most` is how far each pane can be scrolled.

    A key that means nothing changes nothing.
    """
    if view.editing:
        return _edited(view, key)
    if view.help:
        return replace(view, help=False, over=key == "q")
    if key in SORTS:
        return _sorted(view, SORTS[key])
    if key in _MOVES:
        return _scrolled(view, _MOVES[key], most)
    return _commanded(view, key)


def _commanded(view: View, key: str) -> View:
    match key:
        case "q":
            return replace(view, over=True)
        case "r":
            return replace(view, reverse=not view.reverse)
        case "/":
            return replace(view, editing=True)
        case "escape":
            return replace(view, filter="", offsets={})
        case "?" | "h":
            return replace(view, help=True)
        case "tab":
            return replace(view, pane=_beside(view.pane, 1))
        case "backtab":
            return replace(view, pane=_beside(view.pane, -1))
    return view


def _edited(view: View, key: str) -> View:
    """Write the filter; what is found changes with each letter."""
    if key == "enter":
        return replace(view, editing=False)
    if key == "escape":
        return replace(view, editing=False, filter="", offsets={})
    if key == "backspace":
        return replace(view, filter=view.filter[:-1], offsets={})
    if len(key) == 1 and key.isprintable():
        return replace(view, filter=(view.filter + key)[:_LONGEST_FILTER], offsets={})
    return view


def _sorted(view: View, sort: str) -> View:
    """Order by something; by the same once more is the other way round."""
    offsets = {**view.offsets, LEASES: 0}
    reverse = not view.reverse if view.sort == sort else False
    return replace(view, sort=sort, reverse=reverse, offsets=offsets)


_MOVES: Mapping[str, int] = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "pageup": -_PAGE,
    "pagedown": _PAGE,
    " ": _PAGE,
    "home": -_FAR,
    "g": -_FAR,
    "end": _FAR,
    "G": _FAR,
}


def _scrolled(view: View, by: int, most: Mapping[str, int]) -> View:
    far = most.get(view.pane, 0)
    offset = max(0, min(far, min(far, view.offset(view.pane)) + by))
    return replace(view, offsets={**view.offsets, view.pane: offset})


def _beside(pane: str, step: int) -> str:
    return PANES[(PANES.index(pane) + step) % len(PANES)]
