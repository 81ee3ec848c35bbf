"""The list of jobs, as people look at it and change it.

Promises: what `add` has returned is on disk; what cannot be done to one of several jobs is done to none.
Must not: start or signal anything. Who changes a job that has asked the broker tells its runner after.
"""

from __future__ import annotations

import os
import time

from grn.errors import UsageError
from grn.queue import ordering
from grn.queue.database import Database
from grn.queue.entry import COLUMNS, Entry, pack, shown
from grn.rules import queueing as q

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from grn.queue.entry import Spec

__all__ = ["NewJob", "Store"]

_COLUMNS = ", ".join(COLUMNS)
_BACK_AND_HELD = 2
"""`recalled` of a job that is to come back from the broker to be held."""


class NewJob:
    """A job that is to be added."""

    __slots__ = ("name", "priority", "spec")

    def __init__(self, name: str, spec: Spec, priority: int = 0) -> None:
        self.name = shown(name)
        self.spec = spec
        self.priority = priority


class Store(Database):
    """The list. For one thread; open it, work, close it."""

    # -- looking --------------------------------------------------------------------------------

    def hold_still(self) -> None:
        """From now on, until it is closed, see the list as it is at this moment: only for looking.

        Else a job that moves on between two questions is in neither answer.
        """
        self._rows("BEGIN")

    def entries(self, states: Iterable[str] = q.STATES, *, limit: int = -1) -> list[Entry]:
        """List jobs in these states, in the order of their places."""
        wanted = list(states)
        query = (
            f"SELECT {_COLUMNS} FROM jobs WHERE state IN ({_marks(wanted)}) ORDER BY place LIMIT ?"  # noqa: S608 - only marks
        )
        return [Entry(row) for row in self._rows(query, [*wanted, limit])]

    def recent(self, count: int) -> list[Entry]:
        """List the jobs that ended last, the newest first."""
        over = sorted(q.OVER)
        query = f"SELECT {_COLUMNS} FROM jobs WHERE state IN ({_marks(over)}) ORDER BY ended_s DESC, id DESC LIMIT ?"  # noqa: S608 - only marks
        return [Entry(row) for row in self._rows(query, [*over, count])]

    def get(self, job: int) -> Entry:
        """Return one job.

        Raises:
            UsageError: there is none of this number.
        """
        rows = self._rows(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", [min(job, 1 << 62)])  # noqa: S608 - constant
        if not rows:
            raise UsageError(f"there is no job {job} in the queue; `grn queue ls --all` lists them")
        return Entry(rows[0])

    def named(self, name: str, *, limit: int = -1) -> list[Entry]:
        """List the jobs that have this name and are not over, the newest first."""
        states = sorted(set(q.STATES) - q.OVER)
        query = (
            f"SELECT {_COLUMNS} FROM jobs WHERE name = ? AND +state IN ({_marks(states)})"  # noqa: S608 - only marks
            " ORDER BY id DESC LIMIT ?"  # the "+" has SQLite take the index of names
        )
        return [Entry(row) for row in self._rows(query, [shown(name), *states, limit])]

    def alive(self) -> dict[int, str]:
        """Return the states of all jobs that are not over, by number."""
        states = sorted(set(q.STATES) - q.OVER)
        query = f"SELECT id, state FROM jobs WHERE state IN ({_marks(states)})"  # noqa: S608 - only marks
        return dict(self._rows(query, states))

    def numbers(self, states: Sequence[str]) -> list[int]:
        """Return the numbers of the jobs in these states."""
        query = f"SELECT id FROM jobs WHERE state IN ({_marks(states)}) ORDER BY place"  # noqa: S608 - only marks
        return [job for (job,) in self._rows(query, states)]

    def ends(self, jobs: Iterable[int]) -> dict[int, tuple[str, int | None]]:
        """Return state and exit status of jobs, without those that are not in the list."""
        wanted = set(jobs)
        if len(wanted) == 1:
            rows = self._rows("SELECT id, state, exit_code FROM jobs WHERE id = ?", [*wanted])
        else:
            rows = self._rows("SELECT id, state, exit_code FROM jobs")
        return {job: (state, code) for job, state, code in rows if job in wanted}

    def counts(self) -> dict[str, int]:
        """Count jobs by state."""
        return dict(self._rows("SELECT state, COUNT(*) FROM jobs GROUP BY state"))

    def control(self, name: str, default: str = "") -> str:
        """Return how the queue is to be worked off: `paused`, `mode`, `limit`, `stop`."""
        return self.controls().get(name, default)

    def controls(self) -> dict[str, str]:
        """Return all of it."""
        return dict(self._rows("SELECT name, value FROM control"))

    def set_control(self, **values: str) -> None:
        """Change how the queue is to be worked off."""
        with self._changing() as db:
            _set_control(db, values)

    # -- adding and ordering --------------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob], *, held: bool = False, first: bool = False) -> list[int]:
        """Add jobs by their priority, or as the first ones; when this returns they are on disk.

        Raises:
            UsageError: one comes after a job that does not exist, or has not ended well.
        """
        with self._changing() as db:
            return self._add(db, jobs, held=held, first=first)

    def _add(
        self, db: sqlite3.Connection, jobs: Sequence[NewJob], *, held: bool, first: bool
    ) -> list[int]:
        now = time.time()
        head = list(ordering.places_at_head(db, len(jobs))) if first else []
        highest = ordering.highest_priority(db) if first else None
        ids: list[int] = []
        for number, job in enumerate(jobs):
            priority = job.priority if highest is None else max(highest, job.priority)
            place = head[number] if first else ordering.by_priority(db, priority)
            cursor = db.execute(
                "INSERT INTO jobs (place, priority, state, name, spec, added_s) VALUES (?, ?, ?, ?, ?, ?)",
                (place, priority, q.HELD if held else q.QUEUED, job.name, job.spec.dump(), now),
            )
            ids.append(int(cursor.lastrowid or 0))
            self._comes_after(db, ids[-1], job.spec.after)
        if head:
            ordering.call_back(db, head[0])
        return ids

    @staticmethod
    def _comes_after(db: sqlite3.Connection, job: int, others: Sequence[int]) -> None:
        for other in others:
            row = db.execute(
                "SELECT state FROM jobs WHERE id = ?", [min(other, 1 << 62)]
            ).fetchone()
            if row is None or other == job:
                raise UsageError(f"--after {other}: there is no such job")
            if row[0] in q.OVER and row[0] != q.OK:
                raise UsageError(f"--after {other}: that job has ended as {row[0]}, not well")
            db.execute("INSERT INTO after VALUES (?, ?)", (job, other))

    def add_again(self, jobs: Sequence[Entry], *, first: bool = False) -> list[int]:
        """Add jobs that are over once more; those that come after one another still do.

        Raises:
            UsageError: one comes after a job that did not end well, and is not added again.
        """
        new: dict[int, int] = {}
        with self._changing() as db:
            for old in sorted(jobs, key=lambda entry: entry.place):
                spec = old.spec
                spec.after = [new.get(other, other) for other in spec.after]
                spec.after = [other for other in spec.after if _is_there(db, other)]
                job = NewJob(old.name, spec, old.priority)
                (new[old.id],) = self._add(db, [job], held=False, first=False)
                db.execute("UPDATE jobs SET retried_as = ? WHERE id = ?", [new[old.id], old.id])
            if first:
                self._put_first(db, list(new.values()))
        return [new[old.id] for old in jobs]

    def take_in(
        self,
        *,
        what: str,
        leave: Sequence[int],
        ahead: Sequence[NewJob],
        behind: Sequence[NewJob],
        first: Sequence[int],
        control: Mapping[str, str],
    ) -> bool:
        """Carry a whole control file out, once: `False` if `what` was taken in already.

        Raises:
            UsageError: a job that is to be moved or taken off has started meanwhile.
        """
        with self._changing() as db:
            if db.execute("SELECT 1 FROM control WHERE name = ?", [what]).fetchone():
                return False
            self._refuse_unless_queued(db, [*leave, *first], "taken off or moved")
            for job in leave:
                self._cancel(db, job, "taken off the list by a control file", running=False)
            self._add(db, behind, held=False, first=False)
            if ahead:
                self._add(db, ahead, held=False, first=True)
            if first:
                self._put_first(db, first)
            _set_control(db, {**control, what: "taken"})
        return True

    def put_first(self, jobs: Sequence[int]) -> None:
        """Move jobs that have not started to the head, in this order.

        Raises:
            UsageError: one of them runs, or is over; then none is moved.
        """
        with self._changing() as db:
            self._refuse_unless_queued(db, jobs, "moved")
            self._put_first(db, list(dict.fromkeys(jobs)))

    @staticmethod
    def _put_first(db: sqlite3.Connection, jobs: Sequence[int]) -> None:
        highest = ordering.highest_priority(db)
        places = ordering.places_at_head(db, len(jobs))
        for job, place in zip(jobs, places, strict=True):
            ordering.set_place(db, job, place, highest)
        ordering.call_back(db, places[0])

    def put_before(self, job: int, other: int | None) -> None:
        """Move a job before another one that has not started; `None`: to the end.

        Raises:
            UsageError: one of them runs, or is over.
        """
        with self._changing() as db:
            self._refuse_unless_queued(db, [job], "moved")
            if other is None:
                place, priority = ordering.places_at_end(db, 1)[0], ordering.lowest_priority(db)
                (came_from,) = db.execute("SELECT place FROM jobs WHERE id = ?", [job]).fetchone()
            else:
                self._refuse_unless_queued(db, [other], "a place for another")
                place = came_from = ordering.place_before(db, job, other)
                (priority,) = db.execute(
                    "SELECT priority FROM jobs WHERE id = ?", [other]
                ).fetchone()
            ordering.set_place(db, job, place, priority)
            ordering.call_back(db, came_from)

    @staticmethod
    def _refuse_unless_queued(db: sqlite3.Connection, jobs: Iterable[int], what: str) -> None:
        for job in jobs:
            row = db.execute("SELECT state FROM jobs WHERE id = ?", [min(job, 1 << 62)]).fetchone()
            if row is None:
                raise UsageError(
                    f"there is no job {job} in the queue; `grn queue ls --all` lists them"
                )
            if row[0] in q.OVER or row[0] == q.RUNNING:
                raise UsageError(
                    f"job {job} is {row[0]}: only a job that has not started can be {what}"
                )

    # -- holding, cancelling, clearing ----------------------------------------------------------

    def hold(self, jobs: Sequence[int]) -> None:
        """Keep jobs from starting until they are released; one that has asked comes back first.

        Raises:
            UsageError: one has started, or is over.
        """
        with self._changing() as db:
            self._refuse_unless_queued(db, jobs, "held")
            for job in jobs:
                db.execute(
                    "UPDATE jobs SET state = ?, reason = '' WHERE id = ? AND state IN (?, ?)",
                    [q.HELD, job, q.QUEUED, q.STARTING],
                )
                db.execute(
                    "UPDATE jobs SET recalled = ? WHERE id = ? AND state = ?",
                    [_BACK_AND_HELD, job, q.WAITING],
                )

    def let_go(self, jobs: Sequence[int]) -> None:
        """Queue jobs that were held.

        Raises:
            UsageError: one is not held.
        """
        with self._changing() as db:
            for job in jobs:
                held = db.execute(
                    "UPDATE jobs SET state = ? WHERE id = ? AND state = ?", [q.QUEUED, job, q.HELD]
                )
                on_its_way = db.execute(
                    "UPDATE jobs SET recalled = 1 WHERE id = ? AND state = ? AND recalled = ?",
                    [job, q.WAITING, _BACK_AND_HELD],
                )
                if not held.rowcount and not on_its_way.rowcount:
                    raise UsageError(f"job {job} is {self.get(job).state}, not held")

    def cancel(self, jobs: Sequence[int], why: str, *, running: bool = True) -> list[Entry]:
        """Cancel jobs that have not started; mark those that have asked, so that they never start.

        Args:
            jobs: which.
            why: it was never started, if it was not.
            running: also mark those that run, for their runners to end them.

        Returns:
            The jobs as they are now: `cancelled`, or with a runner that is to be told.

        Raises:
            UsageError: one is over, or runs and is not to be ended.
        """
        with self._changing() as db:
            for job in jobs:
                self._cancel(db, job, why, running=running)
        return [self.get(job) for job in jobs]

    def _cancel(self, db: sqlite3.Connection, job: int, why: str, *, running: bool) -> None:
        state = self.get(job).state
        if state in q.OVER:
            raise UsageError(f"job {job} is over already: {state}")
        if state == q.RUNNING and not running:
            raise UsageError(f"job {job} runs: `grn queue cancel {job}` ends it")
        db.execute("UPDATE jobs SET cancelled = 1 WHERE id = ?", [job])
        if state in (q.HELD, q.QUEUED, q.STARTING):  # a runner that comes finds nothing to claim
            self._end(db, job, q.CANCELLED, reason=why)

    def cancel_all(self, why: str) -> list[Entry]:
        """Mark all jobs that have asked or run; return those that are to be told."""
        with self._changing() as db:
            db.execute(
                "UPDATE jobs SET cancelled = 1 WHERE state IN (?, ?)", [q.WAITING, q.RUNNING]
            )
            for entry in self.entries([q.STARTING]):
                self._end(db, entry.id, q.CANCELLED, reason=why)
        return self.entries((q.WAITING, q.RUNNING))

    def forget(self, jobs: Sequence[int]) -> None:
        """Take jobs off the list that are over, and then their logs."""
        attempts: dict[int, int] = {}
        with self._changing() as db:
            for job in jobs:
                row = db.execute("SELECT state, attempt FROM jobs WHERE id = ?", [job]).fetchone()
                if row is None:
                    continue  # another was faster
                if row[0] not in q.OVER:
                    raise UsageError(f"job {job} is {row[0]}: cancel it first")
                attempts[job] = row[1]
                db.execute("DELETE FROM jobs WHERE id = ?", [job])
                db.execute("DELETE FROM after WHERE job = ? OR other = ?", [job, job])
        for job, count in attempts.items():
            for attempt in range(1, count + 1):
                _remove(self._places.log_of(job, attempt))

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
        """Write an end down; after a bad one, those that were to come after it are cancelled."""
        values = [exit_code, shown(reason), pack(result) if result else None]
        ends = [(job, state, values)]
        while ends:  # no recursion: a chain may have thousands
            ended, how, (code, why, blob) = ends.pop()
            db.execute(
                "UPDATE jobs SET state = ?, ended_s = ?, exit_code = ?, reason = ?,"
                " result = COALESCE(?, result) WHERE id = ?",
                [how, time.time(), code, why, blob, ended],
            )
            if how == q.OK:
                continue
            followers = db.execute(
                "SELECT DISTINCT jobs.id FROM after JOIN jobs ON jobs.id = after.job"
                " WHERE after.other = ? AND jobs.state IN (?, ?)",
                [ended, q.HELD, q.QUEUED],
            ).fetchall()
            text = f"it was to run after job {ended}, which ended as {how}"
            ends += [(follower, q.CANCELLED, [None, text, None]) for (follower,) in followers]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _set_control(db: sqlite3.Connection, values: Mapping[str, str]) -> None:
    db.executemany("INSERT OR REPLACE INTO control VALUES (?, ?)", list(values.items()))


def _is_there(db: sqlite3.Connection, job: int) -> bool:
    return db.execute("SELECT 1 FROM jobs WHERE id = ?", [job]).fetchone() is not None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
