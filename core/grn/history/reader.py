"""Read the history: the records that are wanted, the newest first, of a million in a moment.

The file is opened for reading alone, with or without a broker that writes to it.

How a walk stays short. Records are walked by the index of their grant, newest first, until enough
were found: fine for what is not rare. A type is looked up in the index of types instead: the types
that match are found by jumping from one to the next in that index, and their records, each type's in
the order of their grant, are merged. A walk begins with what was granted in the time that is asked
for; only if that is not enough are those looked for that were granted earlier and had not ended.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import sqlite3
import stat
from dataclasses import dataclass
from urllib.parse import quote

from grn.errors import JournalError, UsageError
from grn.history.filters import Filters, literal_prefix, matcher
from grn.history.record import COLUMNS, RUNNING, from_row
from grn.history.schema import FILE_NAME, SCHEMA_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Any

    from grn.history.record import Record

__all__ = ["Device", "History", "path_in"]

_BUSY_TIMEOUT_S = 5.0
_MERGED = 100
"""So many types are merged; with more of them, walking by time finds enough sooner."""
_JUMPS = 5000
"""So many types are looked at; where nearly each lease has its own, the index does not help."""
_NAMED = 5
_FIELDS = ", ".join(COLUMNS)
_GRANTED, _SEQ = COLUMNS.index("granted_at"), COLUMNS.index("seq")
_BY_ID = "SELECT id FROM lease WHERE id = ?"
_AFTER_DIGITS = ":"
_NEWEST_FIRST = "ORDER BY granted_at DESC, seq DESC"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that was seen here once."""

    uuid: str
    index: int
    model: str
    total_mib: int


@dataclass(frozen=True, slots=True)
class _Where:
    """Conditions, all of which must hold, and their values."""

    conditions: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()

    def also(self, condition: str, *values: Any) -> _Where:
        return _Where((*self.conditions, condition), (*self.values, *values))

    @property
    def sql(self) -> str:
        return " AND ".join(self.conditions) or "1"


def path_in(state_dir: str) -> str:
    """Return where a state folder has its history."""
    return os.path.join(state_dir, FILE_NAME)


class History:
    """The history of a machine, for reading. A context manager; for one thread."""

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            FileNotFoundError: there is none.
            JournalError: it cannot be read, or a newer GRN made it.
        """
        self.path = path
        try:
            info = os.stat(path)  # a missing file is no error of SQLite's
        except (NotADirectoryError, ValueError) as error:
            raise JournalError(f"cannot read the history {path!r}: {error}") from error
        if not stat.S_ISREG(info.st_mode):  # SQLite would wait for the writer of a pipe
            raise JournalError(f"cannot read the history {path}: it is not a regular file")
        self._begun = True
        try:
            self._db = self._opened()
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    @property
    def begun(self) -> bool:
        """Whether a broker has made its tables yet."""
        return self._begun

    def leases(self, filters: Filters | None = None, last: int | None = None) -> Iterator[Record]:
        """Yield the records that are wanted, the newest grant first, at most `last`.

        Raises:
            JournalError: the file is damaged.
        """
        if not self._begun:
            return
        wanted = filters or Filters()
        try:
            for row in itertools.islice(self._walk(wanted), last):
                yield from_row(row)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def lease(self, name: str) -> Record:
        """Return the record of one lease, named by its id, its beginning, or the number it ends with.

        Raises:
            UsageError: there is none, or there are several.
            JournalError: the file is damaged.
        """
        try:
            found = self._ids(name)
            if len(found) == 1:
                return from_row(next(self._select(_Where().also("id = ?", found[0]))))
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        if not found:
            raise UsageError(
                f"the history has no lease {name!r}: `grn history` lists the last ones, and what"
                " is too old is forgotten"
            )
        some = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
        raise UsageError(f"{name!r} may be any of several leases: {some}; write more of its id")

    def devices(self) -> list[Device]:
        """Return all devices that were seen, in the order of their index, then the last seen first."""
        if not self._begun:
            return []
        query = "SELECT uuid, idx, model, total_mib FROM device ORDER BY idx, seen_at DESC"
        try:
            return [Device(*row) for row in self._rows(query)]
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> History:  # noqa: PYI034 - typing.Self is too heavy here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- opening ------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._checked("mode=ro")
        except sqlite3.OperationalError:
            # Where we may not write, SQLite cannot make the file that readers and the writer share.
            # Without a log beside it nobody writes, and the file is read as it is.
            if os.path.exists(f"{self.path}-wal"):
                raise
            return self._checked("mode=ro&immutable=1")

    def _checked(self, how: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.path.abspath(os.fsencode(self.path)))}?{how}"
        db = sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)
        with contextlib.ExitStack() as undo:
            undo.callback(db.close)
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise JournalError(
                    f"the history {self.path} has schema {version}, this GRN knows"
                    f" {SCHEMA_VERSION}: use the newer GRN"
                )
            tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'lease'")
            self._begun = bool(tables.fetchone()[0])
            undo.pop_all()
        return db

    def _unreadable(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"cannot read the history {self.path}: {error}; is it yours to read? If it is damaged,"
            " move it away: the broker begins a new one"
        )

    # -- walking ------------------------------------------------------------------------------------

    def _rows(self, query: str, *values: Any) -> Iterator[Sequence[Any]]:
        return self._db.execute(query, values)

    def _walk(self, filters: Filters) -> Iterator[Sequence[Any]]:
        types = self._types(filters.type) if filters.type is not None else None
        if types is not None and len(types) <= _MERGED:
            yield from self._in_parts(filters.without_type(), types)
        else:
            yield from self._in_parts(filters, None)

    def _in_parts(self, filters: Filters, types: Sequence[str] | None) -> Iterator[Sequence[Any]]:
        """Walk what was granted in the time asked for, then what was granted before and went on."""
        where = self._where(filters)
        if filters.until is not None:
            where = where.also("granted_at <= ?", filters.until)
        if filters.since is None:
            yield from self._of_types(where, types)
            return
        yield from self._of_types(where.also("granted_at >= ?", filters.since), types)
        # The plus keeps SQLite from looking at all older ones: few of them had not ended.
        earlier = where.also("+granted_at < ?", filters.since)
        first = "SELECT seq FROM lease WHERE granted_at >= ? ORDER BY granted_at LIMIT 1"
        for (seq,) in self._rows(first, filters.since):
            earlier = earlier.also("seq < ?", seq)  # which the index of ends tells by itself
        went_on = (
            earlier.also("ended_at >= ?", filters.since),
            earlier.also("ended_at IS NULL"),
        )
        yield from _merged(
            self._select(part, types, index="INDEXED BY lease_ended") for part in went_on
        )

    def _of_types(self, where: _Where, types: Sequence[str] | None) -> Iterator[Sequence[Any]]:
        if types is None:
            return self._select(where)
        return _merged(self._select(where, [name]) for name in types)

    def _select(
        self, where: _Where, types: Sequence[str] | None = None, *, index: str = ""
    ) -> Iterator[Sequence[Any]]:
        if types is not None:
            places = ", ".join("?" * len(types))
            where = where.also(f"type IN ({places})", *types)
        query = f"SELECT {_FIELDS} FROM lease {index} WHERE {where.sql} {_NEWEST_FIRST}"  # noqa: S608 - values are bound
        return self._rows(query, *where.values)

    def _where(self, filters: Filters) -> _Where:
        where = _Where()
        for column in ("type", "label"):
            pattern = getattr(filters, column)
            if pattern is not None:
                self._db.create_function(f"{column}_wanted", 1, matcher(pattern))
                where = where.also(f"{column}_wanted({column})")
        for column in ("uid", "engine"):
            value = getattr(filters, column)
            if value is not None:
                where = where.also(f"{column} = ?", value)
        if filters.outcome == RUNNING:
            where = where.also("ended_at IS NULL AND outcome IS NULL")
        elif filters.outcome is not None:
            where = where.also("outcome = ?", filters.outcome)
        if filters.devices is not None:
            one = " OR ".join(
                ["instr(' ' || devices || ' ', ' ' || ? || ' ')"] * len(filters.devices)
            )
            where = where.also(f"({one or '0'})", *filters.devices)
        return where

    def _types(self, pattern: str) -> list[str] | None:
        """Return the types that match; `None` if there are too many to look at."""
        prefix = literal_prefix(pattern)
        if prefix == pattern:
            return [pattern]
        matches, found = matcher(pattern), []
        for count, name in enumerate(self._names(prefix)):
            if count == _JUMPS:
                return None
            if matches(name):
                found.append(name)
        return found

    def _names(self, prefix: str) -> Iterator[str]:
        """Jump through the index of types, from each to the next, among those with a prefix."""
        query = "SELECT type FROM lease WHERE type {} ? ORDER BY type LIMIT 1"
        row = next(self._rows(query.format(">="), prefix), None)
        while row is not None and row[0].startswith(prefix):
            yield row[0]
            row = next(self._rows(query.format(">"), row[0]), None)

    def _ids(self, name: str) -> list[str]:
        """Return the ids that a name may stand for, in their order."""
        if not self._begun or not name:
            return []
        if next(self._rows(_BY_ID, name), None):
            return [name]
        most = _NAMED + 1
        found = self._rows(
            "SELECT id FROM lease WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            name, f"{name}\U0010ffff", most,
        )  # fmt: skip
        ids = [row[0] for row in found]
        if name.isascii() and name.isdigit():  # ids are <broker>-<number>
            ids += itertools.islice(self._numbered(name), most)
        return list(dict.fromkeys(ids))

    def _numbered(self, number: str) -> Iterator[str]:
        """Yield the ids that end with a number: one of each broker at most, from one to the next."""
        after = "SELECT id FROM lease WHERE id > ? ORDER BY id LIMIT 1"
        row = next(self._rows(after, ""), None)
        while row is not None:
            broker = row[0].rpartition("-")[0]
            yield from (row[0] for row in self._rows(_BY_ID, f"{broker}-{number}"))
            row = next(self._rows(after, f"{broker}-{_AFTER_DIGITS}"), None)


def _merged(walks: Iterable[Iterator[Sequence[Any]]]) -> Iterator[Sequence[Any]]:
    """Merge walks, each with the newest grant first; a grant at an unknown time is last, as in SQL."""
    return heapq.merge(*walks, key=lambda row: (-(row[_GRANTED] or 0.0), -row[_SEQ]))
