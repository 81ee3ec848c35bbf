"""Reads the history for a report: leases, devices, usage, what was lost, events.

Promises: the file is opened read-only and never made; what is not text in it does not stop a report;
a span is half open, and a lease belongs to it if any part of its life does.
Must not: shape anything for the page; that is `grn.report.data`.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Any, NamedTuple

from grn.history.reader import History
from grn.history.record import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HistoryFile", "Span"]

_DRAINS_S = 86400
"""A lease whose memory was held for longer after its end is only found by when it was granted."""

# By index each, so that a short span of a long history is found at once. The plus keeps SQLite from
# looking at all that was granted earlier.
_WITHIN = f"""seq IN (
    SELECT seq FROM lease WHERE granted_at >= :since AND granted_at < :until
    UNION ALL
    SELECT seq FROM lease INDEXED BY lease_ended WHERE ended_at >= :since - {_DRAINS_S}
        AND +granted_at < :since AND coalesce(freed_at, ended_at) >= :since
    UNION ALL
    SELECT seq FROM lease INDEXED BY lease_ended WHERE ended_at IS NULL AND +granted_at < :since
)"""  # noqa: S608 - constants


class Span(NamedTuple):
    """What a report is about: from `since` until before `until`, both in seconds since 1970."""

    since: float
    until: float


class HistoryFile(History):
    """The history, with what a report asks of it. A context manager; for one thread at a time.

    Raises:
        FileNotFoundError: there is none.
        JournalError: it cannot be read, or a newer GRN made it.
    """

    def __enter__(self) -> HistoryFile:  # noqa: PYI034 - as its base has it
        return self

    def _all(self, query: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        if not self.begun:
            return []
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def rows(self, span: Span, limit: int) -> list[dict[str, Any]]:
        """Return the leases of the span in order of granting, at most the newest `limit`."""
        query = (
            f"SELECT {', '.join(COLUMNS)} FROM lease WHERE {_WITHIN}"  # noqa: S608 - constants
            " ORDER BY granted_at DESC, seq DESC LIMIT :limit"
        )
        rows = self._all(query, {**span._asdict(), "limit": limit})
        return [
            {
                name: os.fsdecode(value) if isinstance(value, bytes) else value
                for name, value in zip(COLUMNS, row, strict=True)
            }
            for row in reversed(rows)
        ]

    def totals(self, span: Span) -> list[tuple[Any, ...]]:
        """Return (type, outcome, how many leases, largest peak in MiB) of all leases of the span."""
        query = (
            f"SELECT type, outcome, count(*), max(peak_mib) FROM lease WHERE {_WITHIN}"  # noqa: S608 - constants
            " GROUP BY type, outcome ORDER BY count(*) DESC"
        )
        rows = self._all(query, span._asdict())
        return [(os.fsdecode(kind), *rest) for kind, *rest in rows]

    def device_rows(self) -> list[tuple[Any, ...]]:
        """Return (uuid, index, model, total, capacity in MiB, last seen) of every device known."""
        query = "SELECT uuid, idx, model, total_mib, capacity_mib, seen_at FROM device ORDER BY idx"
        return self._all(query, {})

    def usage(self, span: Span, step_s: float) -> list[tuple[Any, ...]]:
        """Return (bin, uuid, minutes, means of booked, measured, foreign MiB and utilisation).

        A bin is `step_s` long, and the first begins at `span.since`. The means are over the minutes
        that have a row.
        """
        query = (
            "SELECT CAST((at - :since) / :step AS INTEGER) AS bin, uuid, count(*), avg(booked_mib),"
            " avg(measured_mib), avg(foreign_mib), avg(utilisation) FROM usage"
            " WHERE at >= :since AND at < :until GROUP BY bin, uuid ORDER BY bin"
        )
        return self._all(query, {**span._asdict(), "step": step_s})

    def usage_extent(self, span: Span) -> tuple[float | None, float | None]:
        """Return the beginning of the first and of the last minute that has a row."""
        query = "SELECT min(at), max(at) FROM usage WHERE at >= :since AND at < :until"
        for first, last in self._all(query, span._asdict()):
            return first, last
        return None, None

    def lost(self, span: Span, step_s: float) -> list[tuple[int, str, float]]:
        """Return (bin, cause, MiB times seconds)."""
        query = (
            "SELECT CAST((at - :since) / :step AS INTEGER) AS bin, cause, sum(mib_s) FROM lost"
            " WHERE at >= :since AND at < :until GROUP BY bin, cause ORDER BY bin"
        )
        return self._all(query, {**span._asdict(), "step": step_s})

    def events(self, span: Span, names: Sequence[str], limit: int) -> list[tuple[float, str, str]]:
        """Return (at, name, JSON text) of the newest `limit` events with these names, in order."""
        marks = ", ".join(f":name{number}" for number in range(len(names)))
        query = (
            f"SELECT at, event, data FROM event WHERE event IN ({marks})"  # noqa: S608 - marks
            " AND at >= :since AND at < :until ORDER BY seq DESC LIMIT :limit"
        )
        named = {f"name{number}": name for number, name in enumerate(names)}
        rows = self._all(query, {**span._asdict(), **named, "limit": limit})
        return [(at, name, data) for at, name, data in reversed(rows)]
