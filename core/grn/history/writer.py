"""Writes the history: rows in, one transaction each time, within a bound of age and of size.

Promises: a row never overwrites what is known by what it does not tell. A damaged file is set aside
under another name and a new one begun, and `problem` says so. A full or read-only disk is a
`JournalError`, after which the same rows can be written again. The file is 0600, its folder if it has
to be made 0700. Old records go a part at a time, so that no write takes long for it.

For one thread at a time; opened at the first write, since nothing waits for it. Must not: know what a
lease is.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn import paths
from grn.errors import JournalError, PathError
from grn.history.rows import COLUMNS, Row, lease_values
from grn.history.schema import SCHEMA_VERSION, TABLES
from grn.sqlitefile import is_damage, make_private_file, set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Batch", "HistoryWriter"]

_BUSY_TIMEOUT_S = 2.0
_DAY_S = 86400.0
_MINUTE_S = 60.0
_MIB = 1 << 20
_A_PART = 10_000
"""Records that go at once, of those that are too old or too many."""
_LOOK_EVERY_S = 60.0
_NOT_NULL = frozenset({"type", "label", "devices"})
_FIRST_COUNTS = frozenset({"granted_at", "freed_at"})
_LATER_COLUMNS = ("pid", "freed_at")

log = logging.getLogger("grn.broker")


def _kept(column: str) -> str:
    """Say what a column keeps when a row is told again: the later word, if it says anything."""
    if column in _NOT_NULL:
        return f"{column} = COALESCE(NULLIF(excluded.{column}, ''), {column})"
    if column in _FIRST_COUNTS:
        return f"{column} = COALESCE({column}, excluded.{column})"
    return f"{column} = COALESCE(excluded.{column}, {column})"


def _upsert() -> str:
    marks = ["COALESCE(?, '')" if column in _NOT_NULL else "?" for column in COLUMNS]
    return (
        f"INSERT INTO lease ({', '.join(COLUMNS)}) VALUES ({', '.join(marks)})"  # noqa: S608 - ours
        f" ON CONFLICT (id) DO UPDATE SET {', '.join(map(_kept, COLUMNS[1:]))}"
    )


_UPSERT = _upsert()
_UPDATE = "UPDATE lease SET pid = COALESCE(?, pid), freed_at = COALESCE(?, freed_at) WHERE id = ?"
_EVENT = "INSERT INTO event (at, event, data) VALUES (?, ?, ?)"
_DEVICE = """
INSERT INTO device (uuid, idx, model, total_mib, capacity_mib, seen_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (uuid) DO UPDATE SET idx = excluded.idx, model = excluded.model,
    total_mib = excluded.total_mib, capacity_mib = excluded.capacity_mib, seen_at = excluded.seen_at
"""
_USAGE = """
INSERT INTO usage (at, uuid, booked_mib, measured_mib, foreign_mib, utilisation)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (at, uuid) DO UPDATE SET booked_mib = COALESCE(excluded.booked_mib, booked_mib),
    measured_mib = COALESCE(excluded.measured_mib, measured_mib),
    foreign_mib = COALESCE(excluded.foreign_mib, foreign_mib),
    utilisation = COALESCE(excluded.utilisation, utilisation)
"""
_LOST = """
INSERT INTO lost (at, cause, mib_s) VALUES (?, ?, ?)
ON CONFLICT (at, cause) DO UPDATE SET mib_s = mib_s + excluded.mib_s
"""
_CLOSE_OWN = """
UPDATE lease SET outcome = COALESCE(outcome, 'lost'), ended_at = COALESCE(ended_at, :at),
    freed_at = :at
WHERE freed_at IS NULL AND id >= :first AND id < :last AND id NOT IN (SELECT value FROM json_each(:held))
"""
_CLOSE_BEFORE_BOOT = """
UPDATE lease SET outcome = COALESCE(outcome, 'lost'), ended_at = COALESCE(ended_at, :boot),
    freed_at = COALESCE(freed_at, ended_at, :boot)
WHERE ended_at IS NULL AND granted_at < :boot
"""


_FORGET_OLD = (
    """DELETE FROM lease WHERE seq IN (
        SELECT seq FROM lease WHERE granted_at < ? AND ended_at IS NOT NULL LIMIT ?)""",
    """DELETE FROM lease WHERE seq IN (
        SELECT seq FROM lease WHERE ended_at < ? AND granted_at IS NULL LIMIT ?)""",
    "DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE at < ? LIMIT ?)",
    "DELETE FROM usage WHERE (at, uuid) IN (SELECT at, uuid FROM usage WHERE at < ? LIMIT ?)",
    "DELETE FROM lost WHERE (at, cause) IN (SELECT at, cause FROM lost WHERE at < ? LIMIT ?)",
)


_FORGET_BEFORE = (
    "DELETE FROM event WHERE at < ?",
    "DELETE FROM usage WHERE at < ?",
    "DELETE FROM lost WHERE at < ?",
)


@dataclass(slots=True)
class Batch:
    """What is written at once. `leases`: by id; a row without a type completes one that is there."""

    leases: dict[str, Row] = field(default_factory=dict)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    devices: list[tuple[Any, ...]] = field(default_factory=list)
    usage: list[tuple[Any, ...]] = field(default_factory=list)
    lost: list[tuple[float, str, float]] = field(default_factory=list)
    succession: dict[str, Any] | None = None
    """What the leases of a former broker are known by: their ids are from `first` to `last`, but those
    `held` (JSON) are held still; `at` is now, `boot` before which all leases have ended."""

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        rows = (self.leases, self.events, self.devices, self.usage, self.lost)
        return any(rows) or self.succession is not None


class HistoryWriter:
    """The history's file, for its one writer.

    Args:
        path: of the file.
        days, mib: how long records are kept, and how large the file may grow.
    """

    def __init__(
        self, path: str, *, days: int, mib: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self._days = days
        self._mib = mib
        self._clock = clock
        self._db: sqlite3.Connection | None = None
        self._set_aside_as: list[str] = []
        self._looked_at = 0.0
        self._shrinks = False

    @property
    def problem(self) -> str:
        """What was lost of it, and where it is, for people; '' if nothing was."""
        if not self._set_aside_as:
            return ""
        return (
            f"the history {self.path} was damaged and a new one was begun: what was recorded before is"
            f" in {', '.join(self._set_aside_as)}"
        )

    def write(self, batch: Batch) -> None:
        """Write all of it, or nothing; then let go of what is too old or too much.

        Raises:
            JournalError: it could not be written.
        """
        self._run(lambda db: _write(db, batch))
        now = self._clock()
        if now - self._looked_at >= _LOOK_EVERY_S or now < self._looked_at:
            self._looked_at = now
            self._keep_within_bounds()

    def _keep_within_bounds(self) -> None:
        try:
            if self._run(self._forget):
                self._looked_at = 0.0  # there is more: go on with the next write
            if self._shrinks:
                self._run(_shrink)
        except JournalError as error:  # what was to be written is written: no reason to try again
            log.warning("history-not-trimmed reason=%r", str(error))

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- the file -------------------------------------------------------------------------------

    def _run(self, work: Callable[[sqlite3.Connection], bool]) -> bool:
        """Do the work as one transaction; begin anew, once, when the file proves damaged."""
        try:
            return self._transact(work)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise self._unusable(error) from error
            self._put_aside(error)
        try:
            return self._transact(work)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _transact(self, work: Callable[[sqlite3.Connection], bool]) -> bool:
        if self._db is None:
            self._db = self._open()
        with self._db as db:  # commits, or rolls back when the work or the commit fails
            return work(db)

    def _open(self) -> sqlite3.Connection:
        try:
            paths.existing_or_private_dir(os.path.dirname(os.path.abspath(self.path)))
            make_private_file(self.path)
        except PathError as error:
            raise JournalError(f"cannot keep the history {self.path}: {error.message}") from error
        except OSError as error:
            raise JournalError(
                f"cannot keep the history {self.path}: {error.strerror}; make it writable, or set"
                " GRN_STATE_DIR to another folder"
            ) from error
        db = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"the history {self.path} has schema {version}, this GRN knows {SCHEMA_VERSION}: use"
                " the newer GRN, or set GRN_STATE_DIR to another folder"
            )
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table, or it is too late
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        if version < SCHEMA_VERSION:
            db.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        self.close()
        try:
            aside = set_aside(self.path)
        except OSError as second:
            raise JournalError(
                f"the history {self.path} is damaged ({error}) and cannot be set aside:"
                f" {second.strerror}; move it away"
            ) from second
        self._set_aside_as.append(aside)
        log.warning("history-damaged path=%s set_aside=%s error=%r", self.path, aside, str(error))

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"cannot write the history {self.path}: {error}; make room or make it writable, or set"
            " GRN_STATE_DIR to another folder"
        )

    # -- what is too old, or too much -----------------------------------------------------------

    def _forget(self, db: sqlite3.Connection) -> bool:
        """Let a part go of what is too old or too much; return whether there may be more."""
        gone = self._forget_old(db)
        if self._size_mib(db) > self._mib:
            gone = max(gone, self._forget_first(db))
        self._shrinks = gone > 0
        return gone >= _A_PART

    def _forget_old(self, db: sqlite3.Connection) -> int:
        before = self._clock() - self._days * _DAY_S
        return max(db.execute(query, (before, _A_PART)).rowcount for query in _FORGET_OLD)

    def _forget_first(self, db: sqlite3.Connection) -> int:
        """Let the records go that were made first, a tenth or a part, and what is of their time."""
        (leases,) = db.execute("SELECT COUNT(*) FROM lease").fetchone()
        if not leases:
            query = "DELETE FROM event WHERE seq IN (SELECT seq FROM event ORDER BY seq LIMIT ?)"
            return db.execute(query, (_A_PART,)).rowcount
        part = max(1, min(_A_PART, leases // 10))
        query = (
            "DELETE FROM lease WHERE seq IN (SELECT seq FROM lease WHERE ended_at IS NOT NULL"
            " ORDER BY seq LIMIT ?)"
        )
        gone = db.execute(query, (part,)).rowcount
        (first,) = db.execute("SELECT MIN(granted_at) FROM lease").fetchone()
        before = 0.0 if first is None else first - _MINUTE_S
        for query in _FORGET_BEFORE:
            db.execute(query, (before,))
        return gone

    @staticmethod
    def _size_mib(db: sqlite3.Connection) -> float:
        pages, free, size = (
            db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return float((pages - free) * size / _MIB)


def _write(db: sqlite3.Connection, batch: Batch) -> bool:
    if batch.succession is not None:  # first: rows of the same batch tell more
        db.execute(_CLOSE_BEFORE_BOOT, batch.succession)
        db.execute(_CLOSE_OWN, batch.succession)
    whole = [lease_values(row) for row in batch.leases.values() if "type" in row]
    later = [_later(row) for row in batch.leases.values() if "type" not in row]
    db.executemany(_UPSERT, whole)
    db.executemany(_UPDATE, later)
    for query, rows in (
        (_EVENT, batch.events),
        (_DEVICE, batch.devices),
        (_USAGE, batch.usage),
        (_LOST, batch.lost),
    ):
        if rows:
            db.executemany(query, rows)
    return True


def _shrink(db: sqlite3.Connection) -> bool:
    """Give pages that are free back. `execute` would take one step, which is one page."""
    db.executescript("PRAGMA incremental_vacuum")
    return True


def _later(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row.get(column) for column in _LATER_COLUMNS), row["id"])
