"""The list of jobs, as the owner and the runners work on it.

    take_next ---> claim ---> starts ---> over
      (owner)     (runner: asks)  (before the command's process is made)
                     |  back: it was called back, or no broker was to be had
                     +--> queued

Promises: a job is claimed by one runner or by none; it is written down as running before its command is
started, so one that is not so written has never run, and may be queued again whoever died; whether a
job starts or is called back, held or cancelled first, is decided here, by one row that changes once.
"""

from __future__ import annotations

import time

from grn.queue.entry import COLUMNS, Entry, pack, shown
from grn.queue.store import Store
from grn.rules import queueing as q

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

__all__ = ["Worklist"]

_NEXT = (
    f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE state = ? AND NOT EXISTS (SELECT 1 FROM after"  # noqa: S608 - constants
    " JOIN jobs AS others ON others.id = after.other"
    " WHERE after.job = jobs.id AND others.state != ?)"
)
_COMES_BACK = f"CASE recalled WHEN 2 THEN '{q.HELD}' ELSE '{q.QUEUED}' END"


class Worklist(Store):
    """The list, with what only the owner and the runners do."""

    # -- the owner ------------------------------------------------------------------------------

    def take_next(self, skip: Collection[int] = ()) -> Entry | None:
        """Mark the next job that may start as starting, and return it; `None` if there is none."""
        marks = ", ".join("?" * len(skip))
        query = f"{_NEXT} AND id NOT IN ({marks}) ORDER BY place LIMIT 1"
        values = [q.QUEUED, q.OK, *skip]
        if not self._rows(query, values):
            return None  # looked without a transaction that writes: most of the time there is none
        with self._changing() as db:
            row = db.execute(query, values).fetchone()
            if row is None:
                return None
            entry = Entry(row)
            entry.attempt += 1
            entry.log = self._places.log_of(entry.id, entry.attempt)
            db.execute(
                "UPDATE jobs SET state = ?, attempt = ?, log = ?, recalled = 0, runner_pid = NULL"
                " WHERE id = ?",
                [q.STARTING, entry.attempt, entry.log, entry.id],
            )
        return entry

    def recall(self, job: int) -> bool:
        """Have a job that waits at the broker come back; `False` if it does not wait any more."""
        with self._changing() as db:
            done = db.execute(
                "UPDATE jobs SET recalled = MAX(recalled, 1) WHERE id = ? AND state = ?",
                [job, q.WAITING],
            )
            return done.rowcount == 1

    def cancel_running(self) -> list[Entry]:
        """Mark the jobs that run as cancelled; return those that were not yet."""
        fresh = [entry for entry in self.entries([q.RUNNING]) if not entry.cancelled]
        if fresh:
            with self._changing() as db:
                marked = [(entry.id,) for entry in fresh]
                db.executemany("UPDATE jobs SET cancelled = 1 WHERE id = ?", marked)
        return fresh

    def gone(self, job: int, attempt: int, why: str, *, keep_reason: bool = False) -> str:
        """Write down that a runner has gone; return what has become of the job by that.

        Args:
            job: which.
            attempt: of its runner.
            why: nobody knows how it ended, if it ran.
            keep_reason: the runner has said why it did not even ask.

        Returns:
            The state that it is in now, or "" if the runner had said how it ended.
        """
        with self._changing() as db:
            row = db.execute(
                "SELECT state, cancelled, recalled FROM jobs WHERE id = ? AND attempt = ?",
                [job, attempt],
            ).fetchone()
            state, cancelled, recalled = row or ("", 0, 0)
            if state == q.RUNNING:
                self._end(db, job, q.LOST, reason=why)
                return q.LOST
            if state not in (q.STARTING, q.WAITING):
                return ""
            if cancelled:
                self._end(db, job, q.CANCELLED, reason="cancelled before it started")
                return q.CANCELLED
            # It never ran: that would be written.
            db.execute(
                f"UPDATE jobs SET state = {_COMES_BACK}, runner_pid = NULL, recalled = 0,"  # noqa: S608 - constants
                " reason = CASE ? WHEN 1 THEN reason ELSE '' END WHERE id = ?",
                [int(keep_reason), job],
            )
            return q.HELD if recalled > 1 else q.QUEUED

    # -- the runner -----------------------------------------------------------------------------

    def claim(self, job: int, attempt: int, runner: tuple[int, str]) -> bool:
        """Make a job one's own; `False` if it is not there to be had any more."""
        with self._changing() as db:
            done = db.execute(
                "UPDATE jobs SET state = ?, runner_pid = ?, runner_start = ?, asked_s = ?"
                " WHERE id = ? AND attempt = ? AND state = ?",
                [q.WAITING, *runner, time.time(), job, attempt, q.STARTING],
            )
            return done.rowcount == 1

    def waits(self, job: int, attempt: int, reason: str) -> None:
        """Note why a job waits."""
        with self._changing() as db:
            db.execute(
                "UPDATE jobs SET reason = ? WHERE id = ? AND attempt = ? AND state = ?",
                [shown(reason), job, attempt, q.WAITING],
            )

    def starts(self, job: int, attempt: int, result: Mapping[str, Any]) -> bool:
        """Note that a job has its share and is about to start; `False` if it must not any more."""
        with self._changing() as db:
            done = db.execute(
                "UPDATE jobs SET state = ?, started_s = COALESCE(started_s, ?), result = ?, reason = ''"
                " WHERE id = ? AND attempt = ? AND cancelled = 0"
                " AND (state = ? OR state = ? AND recalled = 0)",
                [q.RUNNING, time.time(), pack(result), job, attempt, q.RUNNING, q.WAITING],
            )
            return done.rowcount == 1

    def runs(self, job: int, attempt: int, result: Mapping[str, Any]) -> None:
        """Note what is known of a job that runs."""
        with self._changing() as db:
            db.execute(
                "UPDATE jobs SET result = ? WHERE id = ? AND attempt = ? AND state = ?",
                [pack(result), job, attempt, q.RUNNING],
            )

    def back(self, job: int, attempt: int, *, reason: str = "", asked: bool = True) -> bool:
        """Queue a job again that never started; say whether it was.

        Args:
            job: which.
            attempt: of its runner.
            reason: why it comes back.
            asked: only if it was called back.
        """
        with self._changing() as db:
            done = db.execute(
                f"UPDATE jobs SET state = {_COMES_BACK}, runner_pid = NULL, asked_s = NULL, reason = ?,"  # noqa: S608 - constants
                " recalled = 0 WHERE id = ? AND attempt = ? AND state = ? AND cancelled = 0"
                " AND recalled >= ?",
                [shown(reason), job, attempt, q.WAITING, int(asked)],
            )
            return done.rowcount == 1

    def over(
        self,
        job: int,
        attempt: int,
        state: str,
        *,
        exit_code: int | None,
        result: Mapping[str, Any],
        reason: str = "",
    ) -> None:
        """Write down how a job ended; what comes after it can start, or never will."""
        with self._changing() as db:
            row = db.execute(
                "SELECT state FROM jobs WHERE id = ? AND attempt = ?", [job, attempt]
            ).fetchone()
            if row is not None and row[0] in (q.WAITING, q.RUNNING):
                self._end(db, job, state, exit_code=exit_code, result=result, reason=reason)
