"""The SQLite file with the list of jobs: opened, made if there is none, and changed whole or not at all.

Promises: what was committed is on disk; a file of a newer GRN, or a damaged one, is refused with its
name, never begun anew: it is somebody's night's work. The file is 0600 in a folder of 0700, since it
holds the environments of jobs.

Must not: be kept open across a fork (SQLite's locks do not survive one).
"""

from __future__ import annotations

import os
import sqlite3

from grn.errors import JournalError
from grn.queue.transaction import Transaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from grn.queue.places import Places

__all__ = ["Database"]

SCHEMA_VERSION = 1
_PRIVATE = 0o600
_BUSY_TIMEOUT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    place REAL NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    runner_pid INTEGER,
    runner_start TEXT,
    cancelled INTEGER NOT NULL DEFAULT 0,
    recalled INTEGER NOT NULL DEFAULT 0,
    added_s REAL NOT NULL,
    asked_s REAL, started_s REAL, ended_s REAL,
    exit_code INTEGER,
    retried_as INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    log TEXT NOT NULL DEFAULT '',
    result BLOB,
    spec BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_state ON jobs (state, place);
CREATE INDEX IF NOT EXISTS by_place ON jobs (place);
CREATE INDEX IF NOT EXISTS by_name ON jobs (name);
CREATE TABLE IF NOT EXISTS after (job INTEGER NOT NULL, other INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS by_other ON after (other);
CREATE INDEX IF NOT EXISTS by_job ON after (job);
CREATE TABLE IF NOT EXISTS control (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Database:
    """The file. For one thread; open it, work, close it."""

    def __init__(self, places: Places) -> None:
        """Open or make the list.

        Raises:
            JournalError: it cannot be opened or written, is damaged, or a newer GRN made it.
            PathError: its folder cannot be made.
        """
        self._places = places
        places.prepare()
        try:
            # SQLite would make it 0644; the files that it puts beside it take over this mode.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            os.close(os.open(places.database, flags, _PRIVATE))
            self._db = sqlite3.connect(
                places.database, timeout=_BUSY_TIMEOUT_S, isolation_level=None
            )
        except OSError as error:
            raise JournalError(
                f"cannot open the queue {places.database}: {error.strerror}"
            ) from error
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise self._unusable(error) from error

    def _prepare(self) -> None:
        db = self._db
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            db.close()
            raise JournalError(
                f"the queue {self._places.database} has schema {version}, this GRN knows"
                f" {SCHEMA_VERSION}: use the newer GRN, or set GRN_STATE_DIR to another folder"
            )
        db.execute("PRAGMA synchronous = FULL")  # "added" means: on disk
        if version < SCHEMA_VERSION:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
            )

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"cannot use the queue {self._places.database}: {error}, {_room(self._places.folder)};"
            " make room or make it writable, or move a damaged file away (jobs that run go on)"
        )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _changing(self) -> Transaction:
        """Return one transaction that writes, of which everybody hears."""
        return Transaction(self._db, self._places, self._unusable)

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from error


def _room(folder: str) -> str:
    """Say how much room there is: on a full disk SQLite speaks of an "I/O error" only."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"and its folder cannot be looked at: {error.strerror}"
    return f"with {found.f_bavail * found.f_frsize >> 10} KiB free on its disk"
