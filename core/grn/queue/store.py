"""The list of jobs, in one SQLite file that every process of the queue opens for itself.

Promises: what `add` has returned is on disk; a job is claimed by one runner or by none; a file of a
newer GRN, or a damaged one, is refused with its name, never begun anew: it is somebody's night's work.
The file is 0600 in a folder of 0700, since it holds the environments of jobs.

Must not: be kept open across a fork (SQLite's locks do not survive one), or start anything.
"""

from __future__ import annotations

import os
import sqlite3
import time

from grn.errors import JournalError, UsageError
from grn.queue.entry import COLUMNS, Entry, pack
from grn.queue.transaction import Transaction
from grn.rules import queueing as q

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Self

    from grn.queue.entry import Spec
    from grn.queue.places import Places

__all__ = ["Store"]

SCHEMA_VERSION = 1
_PRIVATE = 0o600
_BUSY_TIMEOUT_S = 30.0
_COLUMNS = ", ".join(COLUMNS)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    place REAL NOT NULL,
    state TEXT NOT NULL,
    name TEXT NOT NULL,
    spec BLOB NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    runner_pid INTEGER,
    runner_start TEXT,
    cancelled INTEGER NOT NULL DEFAULT 0,
    recalled INTEGER NOT NULL DEFAULT 0,
    added_s REAL NOT NULL,
    asked_s REAL, started_s REAL, ended_s REAL,
    exit_code INTEGER,
    result BLOB,
    reason TEXT NOT NULL DEFAULT '',
    log TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS by_state ON jobs (state, place);
CREATE TABLE IF NOT EXISTS after (job INTEGER NOT NULL, other INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS by_other ON after (other);
CREATE INDEX IF NOT EXISTS by_job ON after (job);
CREATE TABLE IF NOT EXISTS control (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Store:
    """The list. For one thread; open it, work, close it."""

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
            self._prepare()
        except OSError as error:
            raise JournalError(
                f"cannot open the queue {places.database}: {error.strerror}"
            ) from error
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _prepare(self) -> None:
        db = self._db
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"the queue {self._places.database} has schema {version}, this GRN knows"
                f" {SCHEMA_VERSION}: use the newer GRN, or set GRN_STATE_DIR to another folder"
            )
        db.execute("PRAGMA synchronous = FULL")  # "added" means: on disk
        if version < SCHEMA_VERSION:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("COMMIT")

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"cannot use the queue {self._places.database}: {error}; make room or make it writable,"
            " or move a damaged file away (jobs that run go on)"
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

    # -- looking --------------------------------------------------------------------------------

    def entries(self, states: Iterable[str] = q.STATES, *, limit: int = -1) -> list[Entry]:
        """List jobs in these states, in the order of their places."""
        wanted = list(states)
        marks = ", ".join("?" * len(wanted))
        query = f"SELECT {_COLUMNS} FROM jobs WHERE state IN ({marks}) ORDER BY place LIMIT ?"  # noqa: S608 - only marks
        return [Entry(row) for row in self._rows(query, [*wanted, limit])]

    def recent(self, count: int) -> list[Entry]:
        """List the jobs that ended last, the newest first."""
        over = sorted(q.OVER)
        marks = ", ".join("?" * len(over))
        query = (
            f"SELECT {_COLUMNS} FROM jobs WHERE state IN ({marks}) ORDER BY ended_s DESC LIMIT ?"  # noqa: S608 - only marks
        )
        return [Entry(row) for row in self._rows(query, [*over, count])]

    def get(self, job: int) -> Entry:
        """Return one job.

        Raises:
            UsageError: there is none of this number.
        """
        rows = self._rows(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", [job])  # noqa: S608 - constant
        if not rows:
            raise UsageError(f"there is no job {job} in the queue; `grn queue ls --all` lists them")
        return Entry(rows[0])

    def named(self, name: str) -> list[Entry]:
        """List the jobs that have this name and are not over."""
        alive = [state for state in q.STATES if state not in q.OVER]
        return [entry for entry in self.entries(alive) if entry.name == name]

    def counts(self) -> dict[str, int]:
        """Count jobs by state."""
        return dict(self._rows("SELECT state, COUNT(*) FROM jobs GROUP BY state"))

    def control(self, name: str, default: str = "") -> str:
        """Return how the queue is to be worked off: `paused`, `mode`, `limit`."""
        rows = self._rows("SELECT value FROM control WHERE name = ?", [name])
        return str(rows[0][0]) if rows else default

    def set_control(self, **values: str) -> None:
        """Change how the queue is to be worked off."""
        with self._changing() as db:
            db.executemany("INSERT OR REPLACE INTO control VALUES (?, ?)", list(values.items()))

    # -- adding and ordering --------------------------------------------------------------------

    def add(
        self, jobs: Sequence[tuple[str, Spec]], *, held: bool = False, first: bool = False
    ) -> list[int]:
        """Add jobs at the end, or as the first ones; when this returns they are on disk.

        Raises:
            UsageError: one comes after a job that does not exist.
        """
        now = time.time()
        with self._changing() as db:
            places = self._new_places(db, len(jobs), first=first)
            ids: list[int] = []
            for place, (name, spec) in zip(places, jobs, strict=True):
                cursor = db.execute(
                    "INSERT INTO jobs (place, state, name, spec, added_s) VALUES (?, ?, ?, ?, ?)",
                    (place, q.HELD if held else q.QUEUED, name, spec.dump(), now),
                )
                ids.append(int(cursor.lastrowid or 0))
                self._comes_after(db, ids[-1], spec.after)
            if first:
                self._recall_all(db)
        return ids

    def _comes_after(self, db: sqlite3.Connection, job: int, others: Sequence[int]) -> None:
        for other in others:
            row = db.execute("SELECT state FROM jobs WHERE id = ?", [other]).fetchone()
            if row is None or other == job:
                raise UsageError(f"--after {other}: there is no such job")
            if row[0] in q.OVER and row[0] != q.OK:
                raise UsageError(f"--after {other}: that job has ended as {row[0]}, not well")
            db.execute("INSERT INTO after VALUES (?, ?)", (job, other))

    @staticmethod
    def _new_places(db: sqlite3.Connection, count: int, *, first: bool) -> Sequence[float]:
        lowest, highest = db.execute("SELECT MIN(place), MAX(place) FROM jobs").fetchone()
        found = q.between(None, lowest, count) if first else q.between(highest, None, count)
        assert found is not None  # noqa: S101 - there is always room at the ends
        return found

    def put_first(self, jobs: Sequence[int]) -> None:
        """Move jobs that have not started to the head, in this order.

        Raises:
            UsageError: one of them runs, or is over; then none is moved.
        """
        with self._changing() as db:
            self._refuse_unless_queued(db, jobs, "moved")
            self._set_places(db, jobs, self._new_places(db, len(jobs), first=True))
            self._recall_all(db)

    def put_before(self, job: int, other: int | None) -> None:
        """Move a job before another one that has not started; `None`: to the end.

        Raises:
            UsageError: one of them runs, or is over.
        """
        with self._changing() as db:
            self._refuse_unless_queued(db, [job], "moved")
            if other is None:
                self._set_places(db, [job], self._new_places(db, 1, first=False))
                return
            self._refuse_unless_queued(db, [other], "a place for another")
            self._set_places(db, [job], self._place_before(db, job, other))
            self._recall_all(db)

    def _place_before(self, db: sqlite3.Connection, job: int, other: int) -> Sequence[float]:
        (after,) = db.execute("SELECT place FROM jobs WHERE id = ?", [other]).fetchone()
        (before,) = db.execute(
            "SELECT MAX(place) FROM jobs WHERE place < ? AND id != ?", [after, job]
        ).fetchone()
        found = q.between(before, after, 1)
        if found is not None:
            return found
        rows = db.execute("SELECT id FROM jobs ORDER BY place").fetchall()
        db.executemany(
            "UPDATE jobs SET place = ? WHERE id = ?", [(n, r[0]) for n, r in enumerate(rows)]
        )
        return self._place_before(db, job, other)

    @staticmethod
    def _set_places(db: sqlite3.Connection, jobs: Sequence[int], places: Sequence[float]) -> None:
        db.executemany(
            "UPDATE jobs SET place = ? WHERE id = ?", list(zip(places, jobs, strict=True))
        )

    def recall(self, job: int) -> None:
        """Have a job that waits at the broker come back into the list."""
        with self._changing() as db:
            db.execute("UPDATE jobs SET recalled = 1 WHERE id = ? AND state = ?", [job, q.WAITING])

    @staticmethod
    def _recall_all(db: sqlite3.Connection) -> None:
        """Have those that have asked already ask again, in the new order."""
        db.execute("UPDATE jobs SET recalled = 1 WHERE state = ?", [q.WAITING])

    @staticmethod
    def _refuse_unless_queued(db: sqlite3.Connection, jobs: Sequence[int], what: str) -> None:
        for job in jobs:
            row = db.execute("SELECT state FROM jobs WHERE id = ?", [job]).fetchone()
            if row is None:
                raise UsageError(
                    f"there is no job {job} in the queue; `grn queue ls --all` lists them"
                )
            if row[0] in q.OVER or row[0] == q.RUNNING:
                raise UsageError(
                    f"job {job} is {row[0]}: only a job that has not started can be {what}"
                )

    # -- holding, cancelling, clearing ----------------------------------------------------------

    def hold(self, job: int) -> None:
        """Keep a job from starting until it is released.

        Raises:
            UsageError: it has started, or is over.
        """
        with self._changing() as db:
            entry = self.get(job)
            if entry.state == q.HELD:
                return
            if not q.may_become(entry.state, q.HELD):
                raise UsageError(f"job {job} is {entry.state}: only a queued job can be held")
            db.execute("UPDATE jobs SET state = ? WHERE id = ?", [q.HELD, job])

    def let_go(self, job: int) -> None:
        """Queue a job that was held.

        Raises:
            UsageError: it is not held.
        """
        with self._changing() as db:
            entry = self.get(job)
            if entry.state != q.HELD:
                raise UsageError(f"job {job} is {entry.state}, not held")
            db.execute("UPDATE jobs SET state = ? WHERE id = ?", [q.QUEUED, job])

    def cancel(self, job: int, why: str) -> Entry:
        """Cancel a job that has not started; mark one that has, so that its runner ends it.

        Returns:
            The job as it is now: `cancelled`, or with a runner that is to be told.

        Raises:
            UsageError: it is over.
        """
        with self._changing() as db:
            entry = self.get(job)
            if entry.state in q.OVER:
                raise UsageError(f"job {job} is over already: {entry.state}")
            db.execute("UPDATE jobs SET cancelled = 1 WHERE id = ?", [job])
            if entry.state in (q.HELD, q.QUEUED):
                self._end(db, job, q.CANCELLED, reason=why)
        return self.get(job)

    def forget(self, jobs: Sequence[int]) -> None:
        """Take jobs off the list that are over; their logs too."""
        for job in jobs:
            entry = self.get(job)
            if entry.state not in q.OVER:
                raise UsageError(f"job {job} is {entry.state}: cancel it first")
        with self._changing() as db:
            for job in jobs:
                db.execute("DELETE FROM jobs WHERE id = ?", [job])
                db.execute("DELETE FROM after WHERE job = ?", [job])

    # -- the owner ------------------------------------------------------------------------------

    def take_next(self) -> Entry | None:
        """Mark the next job that may start as starting, and return it; `None` if there is none."""
        query = (
            f"SELECT {_COLUMNS} FROM jobs WHERE state = ? AND NOT EXISTS (SELECT 1 FROM after"  # noqa: S608 - constants
            " JOIN jobs AS others ON others.id = after.other"
            " WHERE after.job = jobs.id AND others.state != ?) ORDER BY place LIMIT 1"
        )
        if not self._rows(query, [q.QUEUED, q.OK]):
            return None  # looked without a transaction that writes: most of the time there is none
        with self._changing() as db:
            row = db.execute(query, [q.QUEUED, q.OK]).fetchone()
            if row is None:
                return None
            entry = Entry(row)
            entry.attempt += 1
            entry.log = self._places.log_of(entry.id, entry.attempt)
            db.execute(
                "UPDATE jobs SET state = ?, attempt = ?, log = ?, recalled = 0 WHERE id = ?",
                [q.STARTING, entry.attempt, entry.log, entry.id],
            )
        return entry

    def requeue_unclaimed(self, job: int, attempt: int) -> bool:
        """Queue a job again whose runner never claimed it; a runner that comes late finds it taken."""
        with self._changing() as db:
            done = db.execute(
                "UPDATE jobs SET state = ? WHERE id = ? AND attempt = ? AND state = ?",
                [q.QUEUED, job, attempt, q.STARTING],
            )
            return done.rowcount == 1

    def lost(self, job: int, attempt: int, why: str) -> bool:
        """Write down that nobody knows how a job ended, if its runner has not written it."""
        with self._changing() as db:
            row = db.execute(
                "SELECT state FROM jobs WHERE id = ? AND attempt = ?", [job, attempt]
            ).fetchone()
            if row is None or row[0] not in (q.WAITING, q.RUNNING):
                return False
            self._end(db, job, q.LOST, reason=why)
            return True

    # -- the runner -----------------------------------------------------------------------------

    def claim(self, job: int, attempt: int, runner: tuple[int, str]) -> bool:
        """Make a job one's own; `False` if it is not there to be had any more."""
        with self._changing() as db:
            done = db.execute(
                "UPDATE jobs SET state = ?, runner_pid = ?, runner_start = ?, asked_s = ?"
                " WHERE id = ? AND attempt = ? AND state = ? AND cancelled = 0",
                [q.WAITING, *runner, time.time(), job, attempt, q.STARTING],
            )
            if not done.rowcount:  # it may have been cancelled meanwhile
                row = db.execute("SELECT state, cancelled FROM jobs WHERE id = ?", [job]).fetchone()
                if row == (q.STARTING, 1):
                    self._end(db, job, q.CANCELLED, reason="cancelled before it started")
            return done.rowcount == 1

    def waits(self, job: int, reason: str) -> None:
        """Note why a job waits."""
        with self._changing() as db:
            db.execute("UPDATE jobs SET reason = ? WHERE id = ?", [reason, job])

    def runs(self, job: int, result: Mapping[str, Any]) -> None:
        """Note that a job has its share and has been started."""
        with self._changing() as db:
            db.execute(
                "UPDATE jobs SET state = ?, started_s = ?, result = ?, reason = '' WHERE id = ?",
                [q.RUNNING, time.time(), pack(result), job],
            )

    def back(self, job: int) -> bool:
        """Queue a job again that was called back before it got its share; say whether it was."""
        with self._changing() as db:
            done = db.execute(
                "UPDATE jobs SET state = ?, runner_pid = NULL, asked_s = NULL, reason = '', recalled = 0"
                " WHERE id = ? AND state = ? AND recalled = 1 AND cancelled = 0",
                [q.QUEUED, job, q.WAITING],
            )
            return done.rowcount == 1

    def over(
        self,
        job: int,
        state: str,
        *,
        exit_code: int | None,
        result: Mapping[str, Any],
        reason: str = "",
    ) -> None:
        """Write down how a job ended; what comes after it can start, or never will."""
        with self._changing() as db:
            self._end(db, job, state, exit_code=exit_code, result=result, reason=reason)

    def _end(
        self,
        db: sqlite3.Connection,
        job: int,
        state: str,
        *,
        exit_code: int | None = None,
        result: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        db.execute(
            "UPDATE jobs SET state = ?, ended_s = ?, exit_code = ?, reason = ?,"
            " result = COALESCE(?, result) WHERE id = ?",
            [
                state,
                time.time(),
                exit_code,
                reason,
                pack(result) if result else None,
                job,
            ],
        )
        if state == q.OK:
            return
        followers = db.execute("SELECT job FROM after WHERE other = ?", [job]).fetchall()
        for (follower,) in followers:
            (found,) = db.execute("SELECT state FROM jobs WHERE id = ?", [follower]).fetchone() or (
                "",
            )
            if found in (q.HELD, q.QUEUED):
                why = f"it was to run after job {job}, which ended as {state}"
                self._end(db, follower, q.CANCELLED, reason=why)
