"""Inside which nested request the code that runs now is: a call within a call must not wait for it.

What several jobs inside one lease declare is added up, so one that finds too little room waits for the
others. Where a process calls a job, and that another, the broker sees two requests of one process: only
the process knows that the second is made within the first, whose end it would wait for in vain.

Promises: tasks and what they await know it, as a context variable does; a thread that is started inside
begins anew; in a forked child nothing of its parent counts.
"""

from __future__ import annotations

import contextlib
import os
from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.grants import Grant

__all__ = ["enter", "inside", "leave", "within"]

_Place = tuple[int, int]
"""A process, and the id of a request there."""

_place: ContextVar[_Place | None] = ContextVar("grn_place", default=None)


def within() -> int | None:
    """Return the id of the nested request inside which this is called, if it is inside one."""
    place = _place.get()
    return place[1] if place is not None and place[0] == os.getpid() else None


def enter(grant: Grant | None) -> _Place | None:
    """Begin what runs in a grant; return what `leave` needs to end it."""
    before = _place.get()
    if grant is not None and grant.nested:
        _place.set((os.getpid(), grant.message["id"]))
    return before


def leave(before: _Place | None) -> None:
    """End it; not by the variable's token, which another task could not use."""
    _place.set(before)


@contextlib.contextmanager
def inside(grant: Grant | None) -> Iterator[None]:
    """Run a block in a grant."""
    before = enter(grant)
    try:
        yield
    finally:
        leave(before)
