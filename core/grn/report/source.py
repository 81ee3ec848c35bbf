"""Reads the history for a report: leases, devices, usage, what was lost, events.

Promises: the file is opened read-only and never made; what is not text in it does not stop a report;
a span is half open, and a lease belongs to it if any part of its life does.
Must not: shape anything for the page; that is `grn.report.data`.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from grn.errors import JournalError, UsageError
from grn.history.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LEASE_COLUMNS", "HistoryFile", "Span"]

_BUSY_TIMEOUT_S = 5.0
_WITHIN = "granted_at < :until AND (ended_at IS NULL OR coalesce(freed_at, ended_at) >= :since)"

LEASE_COLUMNS = (
    "seq", "id", "type", "label", "uid", "pid", "engine", "policy", "priority", "gpus", "devices",
    "booked_mib", "probe", "asked_at", "granted_at", "ended_at", "freed_at", "waited_s", "ran_s",
    "outcome", "exit_code", "signal", "peak_mib", "source", "cpu_s", "rss_mib", "curve",
)  # fmt: skip


class Span(NamedTuple):
    """What a report is about: from `since` until before `until`, both in seconds since 1970."""

    since: float
    until: float


class HistoryFile:
    """The history, open for reading. For one thread at a time.

    Raises:
        UsageError: there is no such file, or a newer GRN wrote it.
        JournalError: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.exists(path):
            raise UsageError(
                f"there is no history at {path}: no job has run under this GRN_STATE_DIR yet, or"
                " history_days is 0"
            )
        with self._named():
            self._db = sqlite3.connect(
                f"file:{quote(os.path.abspath(path))}?mode=ro",
                uri=True,
                timeout=_BUSY_TIMEOUT_S,
                check_same_thread=False,
            )
            # A command may hold bytes that are no UTF-8.
            self._db.text_factory = _text
            version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            self.close()
            raise UsageError(
                f"the history {path} has schema {version}, this GRN knows {SCHEMA_VERSION}: use the"
                " newer GRN"
            )

    def __enter__(self) -> HistoryFile:  # noqa: PYI034 - as `Client` has it
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say of which file SQLite speaks."""
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"cannot read the history {self.path}: {error}") from error

    def _all(self, query: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        with self._named():
            return self._db.execute(query, values).fetchall()

    def leases(self, span: Span, limit: int) -> list[dict[str, Any]]:
        """Return the leases of the span in order of granting, at most the newest `limit`."""
        query = (
            f"SELECT {', '.join(LEASE_COLUMNS)} FROM lease WHERE {_WITHIN}"  # noqa: S608 - constants
            " ORDER BY granted_at DESC, seq DESC LIMIT :limit"
        )
        rows = self._all(query, {**span._asdict(), "limit": limit})
        return [
            {
                name: _text(value) if isinstance(value, bytes) else value
                for name, value in zip(LEASE_COLUMNS, row, strict=True)
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
        return [(_text(kind), *rest) for kind, *rest in rows]

    def devices(self) -> list[tuple[Any, ...]]:
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
        first, last = self._all(query, span._asdict())[0]
        return first, last

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


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
