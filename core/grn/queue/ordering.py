"""Where in the list a job stands: places are numbers, the list is sorted by them.

A higher priority goes before a lower one when a job is added; after that the order is what people make
of it. The broker goes by priorities, too, so who is moved takes over the priority of his new place:
among those that have not started, priorities never rise from one place to the next.
"""

from __future__ import annotations

from grn.rules import queueing as q

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

__all__ = [
    "by_priority",
    "call_back",
    "highest_priority",
    "lowest_priority",
    "place_before",
    "places_at_end",
    "places_at_head",
    "set_place",
]

_NOT_STARTED = (q.HELD, q.QUEUED, q.STARTING, q.WAITING)
_MARKS = ", ".join("?" * len(_NOT_STARTED))


def places_at_head(db: sqlite3.Connection, count: int) -> Sequence[float]:
    """Return places before all others."""
    (lowest,) = db.execute("SELECT MIN(place) FROM jobs").fetchone()
    return _found(q.between(None, lowest, count))


def places_at_end(db: sqlite3.Connection, count: int) -> Sequence[float]:
    """Return places behind all others."""
    (highest,) = db.execute("SELECT MAX(place) FROM jobs").fetchone()
    return _found(q.between(highest, None, count))


def _found(places: Sequence[float] | None) -> Sequence[float]:
    assert places is not None  # noqa: S101 - there is always room at the ends
    return places


def by_priority(db: sqlite3.Connection, priority: int) -> float:
    """Return the place of a new job: behind all of its priority, before the lower ones."""
    if _is_lowest(db, priority):
        return places_at_end(db, 1)[0]
    query = f"SELECT id FROM jobs WHERE state IN ({_MARKS}) AND priority < ? ORDER BY place LIMIT 1"  # noqa: S608 - only marks
    (other,) = db.execute(query, [*_NOT_STARTED, priority]).fetchone()
    place = place_before(db, None, other)
    call_back(db, place)
    return place


def _is_lowest(db: sqlite3.Connection, priority: int) -> bool:
    """Whether nobody has a lower priority; the last of each state has that state's lowest."""
    query = "SELECT priority FROM jobs WHERE state = ? ORDER BY place DESC LIMIT 1"
    last = (db.execute(query, [state]).fetchone() for state in _NOT_STARTED)
    return all(row is None or row[0] >= priority for row in last)


def highest_priority(db: sqlite3.Connection) -> int | None:
    """Return the highest priority of those that have not started."""
    return _priority(db, "MAX")


def lowest_priority(db: sqlite3.Connection) -> int | None:
    """Return the lowest priority of those that have not started."""
    return _priority(db, "MIN")


def _priority(db: sqlite3.Connection, which: str) -> int | None:
    query = f"SELECT {which}(priority) FROM jobs WHERE state IN ({_MARKS})"  # noqa: S608 - ours
    found: int | None = db.execute(query, list(_NOT_STARTED)).fetchone()[0]
    return found


def place_before(db: sqlite3.Connection, job: int | None, other: int) -> float:
    """Return a place right before another job, for this one, or for a new one."""
    (after,) = db.execute("SELECT place FROM jobs WHERE id = ?", [other]).fetchone()
    (before,) = db.execute(
        "SELECT MAX(place) FROM jobs WHERE place < ? AND id IS NOT ?", [after, job]
    ).fetchone()
    found = q.between(before, after, 1)
    if found is not None:
        return found[0]
    rows = db.execute("SELECT id FROM jobs ORDER BY place").fetchall()
    db.executemany(
        "UPDATE jobs SET place = ? WHERE id = ?", [(n, row[0]) for n, row in enumerate(rows)]
    )
    return place_before(db, job, other)


def set_place(db: sqlite3.Connection, job: int, place: float, priority: int | None) -> None:
    """Put a job somewhere; with a priority, it takes that over."""
    db.execute(
        "UPDATE jobs SET place = ?, priority = COALESCE(?, priority) WHERE id = ?",
        [place, priority, job],
    )


def call_back(db: sqlite3.Connection, place: float) -> None:
    """Have those from this place on that have asked the broker, or are about to, ask again."""
    db.execute(
        "UPDATE jobs SET recalled = MAX(recalled, 1) WHERE state = ? AND place >= ?",
        [q.WAITING, place],
    )
    db.execute(  # its runner will find that it has nothing to claim
        "UPDATE jobs SET state = ? WHERE state = ? AND place >= ?", [q.QUEUED, q.STARTING, place]
    )
