"""The profile store: what was learnt, kept across broker starts in one SQLite file.

Promises: a damaged file is set aside under another name and a new one begun, never an obstacle to
starting, and `problem` says so for as long as the store is open; a file of a newer GRN is refused
untouched; a full or read-only disk is a `JournalError`. The file is 0600, a folder that has to be
made 0700.

Must not: know what a profile contains.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

from grn import paths
from grn.errors import JournalError
from grn.sqlitefile import is_damage, make_private_file, set_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FILE_NAME", "SCHEMA_VERSION", "ProfileStore"]

FILE_NAME = "profiles.sqlite"
SCHEMA_VERSION = 1

_BUSY_TIMEOUT_S = 1.0
_NAMED = 3
_SCHEMA = """
CREATE TABLE IF NOT EXISTS profiles (
    type TEXT NOT NULL,
    device_model TEXT NOT NULL,
    data BLOB NOT NULL,
    updated REAL NOT NULL,
    PRIMARY KEY (type, device_model)
)
"""

_DATA_OF = "SELECT data FROM profiles WHERE type = ? AND device_model = ?"

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogateescape").pack


class ProfileStore:
    """Profiles by (job type, device model). For one thread at a time."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time) -> None:
        """Open or make the store.

        Raises:
            JournalError: it cannot be opened or written, or a newer GRN made it.
            PathError: its folder cannot be made.
        """
        self.path = path
        self._clock = clock
        self._set_aside_as: list[str] = []
        self._unreadable: set[tuple[str, str]] = set()
        self._seen: dict[tuple[str, str], int] = {}
        """What was read or written last of each profile, as a hash: another broker may write, too."""
        paths.existing_or_private_dir(os.path.dirname(os.path.abspath(path)))
        self._db = self._open_or_begin_anew()

    @property
    def problem(self) -> str:
        """What was lost of it, and where it is, for people; '' if nothing was."""
        found: list[str] = []
        if self._set_aside_as:
            kept = ", ".join(self._set_aside_as)
            found.append(
                f"the profile store {self.path} was damaged and a new one was begun: what was learnt"
                f" before is in {kept}, and types are measured anew"
            )
        if self._unreadable:
            some = ", ".join(repr(job_type) for job_type, _ in sorted(self._unreadable)[:_NAMED])
            found.append(
                f"{len(self._unreadable)} profile(s) in {self.path} cannot be read: {some}; these are"
                " measured anew"
            )
        return "; ".join(found)

    def load(self, limit: int) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the profiles used last, newest first, at most `limit`."""
        query = "SELECT type, device_model, data FROM profiles ORDER BY updated DESC LIMIT ?"
        return self._found(query, limit)

    def of_type(self, job_type: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the profiles of one type, on all device models."""
        query = "SELECT type, device_model, data FROM profiles WHERE type = ?"
        return self._found(query, _key(job_type, "")[0])

    def _found(self, query: str, value: object) -> dict[tuple[str, str], dict[str, Any]]:
        rows = self._run(lambda db: db.execute(query, (value,)).fetchall())
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for job_type, model, data in rows:
            key = (_from_column(job_type), _from_column(model))
            profile = _decode(data)
            if profile is not None:
                found[key] = profile
                self._seen[key] = hash(data)
            else:
                self.cannot_read(key)
        return found

    @property
    def unreadable(self) -> frozenset[tuple[str, str]]:
        """The keys of profiles that are there and were not understood."""
        return frozenset(self._unreadable)

    def cannot_read(self, key: tuple[str, str]) -> None:
        """Note a profile that is not understood: `problem` names it until another takes its place."""
        if key not in self._unreadable:
            self._unreadable.add(key)
            _log.warning("profile-unreadable type=%s device_model=%s", *key)

    def put_many(
        self,
        profiles: Mapping[tuple[str, str], Mapping[str, Any]],
        merged: Callable[[tuple[str, str], Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        """Write these profiles, all of them or none.

        `merged` is called for one that another broker has written since it was read here, with what
        that broker wrote; it returns what to write instead.
        """
        now = self._clock()
        written: dict[tuple[str, str], bytes] = {}

        def write(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")  # nobody else writes between our reading and writing
            for key, profile in profiles.items():
                there = db.execute(_DATA_OF, _key(*key)).fetchone()
                if merged is not None and there is not None and not self._was_seen(key, there[0]):
                    theirs = _decode(there[0])
                    profile = profile if theirs is None else merged(key, theirs)  # noqa: PLW2901
                written[key] = _encode(profile)
            rows = [(*_key(*key), data, now) for key, data in written.items()]
            db.executemany("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?)", rows)

        self._run(write)
        self._seen.update((key, hash(data)) for key, data in written.items())
        self._unreadable.difference_update(profiles)

    def _was_seen(self, key: tuple[str, str], data: bytes) -> bool:
        return self._seen.get(key) == hash(data)

    def delete(self, job_type: str, model: str | None = None) -> int:
        """Forget a type, on one device model or on all; return how many profiles that were."""
        job_type_column, model_column = _key(job_type, model or "")
        if model is None:
            query, values = "DELETE FROM profiles WHERE type = ?", [job_type_column]
        else:
            query = "DELETE FROM profiles WHERE type = ? AND device_model = ?"
            values = [job_type_column, model_column]
        self._unreadable -= {
            key for key in self._unreadable if key[0] == job_type and model in (None, key[1])
        }
        return self._run(lambda db: db.execute(query, values).rowcount)

    def prune(self, limit: int) -> int:
        """Keep the `limit` profiles used last; return how many were dropped."""
        query = (
            "DELETE FROM profiles WHERE rowid NOT IN "
            "(SELECT rowid FROM profiles ORDER BY updated DESC LIMIT ?)"
        )
        return self._run(lambda db: db.execute(query, (limit,)).rowcount)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work as one transaction; begin anew, once, when the file proves damaged."""
        try:
            return self._transact(work)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise self._unusable(error) from error
            self._db.close()
            self._set_aside(error)
        try:
            self._db = self._open()
            return self._transact(work)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _transact(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._db:  # commits, or rolls back when the work or the commit fails
            return work(self._db)

    def _open_or_begin_anew(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise self._unusable(error) from error
            self._set_aside(error)
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _open(self) -> sqlite3.Connection:
        self._make_private_file()
        db = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _make_private_file(self) -> None:
        try:
            make_private_file(self.path)
        except OSError as error:
            raise JournalError(
                f"cannot open the profile store {self.path}: {error.strerror}; make it writable, "
                "or set GRN_STATE_DIR to another folder"
            ) from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise JournalError(
                f"the profile store {self.path} has schema {version}, this GRN knows "
                f"{SCHEMA_VERSION}: use the newer GRN, or set GRN_STATE_DIR to another folder"
            )
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            damage = sqlite3.DatabaseError(str(verdict))
            damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damage
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        with db:
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        try:
            aside = set_aside(self.path)
        except OSError as second:
            raise JournalError(
                f"the profile store {self.path} is damaged ({error}) and cannot be set aside: "
                f"{second.strerror}; move it away"
            ) from second
        self._set_aside_as.append(aside)
        _log.warning("profile-store-damaged path=%s set_aside=%s error=%s", self.path, aside, error)

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        return JournalError(
            f"cannot use the profile store {self.path}: {error}; make room or make it writable, "
            "or set GRN_STATE_DIR to another folder"
        )


def _key(job_type: str, model: str) -> tuple[str | bytes, str | bytes]:
    return _to_column(job_type), _to_column(model)


def _to_column(text: str) -> str | bytes:
    # A command may hold bytes that are not UTF-8, which SQLite keeps as a blob.
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


def _from_column(value: str | bytes) -> str:
    return os.fsdecode(value) if isinstance(value, bytes) else value


def _encode(profile: Mapping[str, Any]) -> bytes:
    body: bytes = _pack(profile)
    return body


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        profile = msgpack.unpackb(
            data, raw=False, strict_map_key=False, unicode_errors="surrogateescape"
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None
    return profile if isinstance(profile, dict) else None
