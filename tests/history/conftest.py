"""A history file with records of the test's own, and `grn history` on it."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from grn.cli.main import main
from grn.history.schema import FILE_NAME, SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGAN = 1_700_000_000.0
"""When the first lease's minute began: 14 November 2023, 22:13:20 UTC."""


class Book:
    """Writes records as a broker does: what is not given stays unknown."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self._db = sqlite3.connect(self.path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(TABLES)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._seq = 0

    def add(self, **columns: Any) -> str:
        """Add one lease, granted a minute after the one before, for half a minute; return its id."""
        self._seq += 1
        granted = columns.get("granted_at", BEGAN + 60 * self._seq)
        row = {
            "seq": self._seq,
            "id": f"ab12cd-{self._seq}",
            "type": "train",
            "granted_at": granted,
            "ended_at": None if granted is None else granted + 30,
            "ran_s": 30.0,
            "outcome": "ok",
            **columns,
        }
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._db.execute(f"INSERT INTO lease ({names}) VALUES ({marks})", list(row.values()))  # noqa: S608 - names of the test's own
        return str(row["id"])

    def add_running(self, **columns: Any) -> str:
        """Add one that has not ended."""
        return self.add(ended_at=None, ran_s=None, outcome=None, **columns)

    def device(self, uuid: str, index: int, seen_at: float = 1.0) -> None:
        """Add a device."""
        values = (uuid, index, "Simulated 16 GiB", 16384, 16000, seen_at)
        self._db.execute("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?)", values)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        """Run SQL as the writer would."""
        return self._db.execute(statement, values).fetchall()

    def close(self) -> None:
        """Leave the file as a broker does that ends."""
        self._db.close()


class Said(NamedTuple):
    """How a command ended and what it wrote."""

    status: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, clean_environ: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A state folder without a history, which commands of this process use; UTC, 80 columns."""
    del clean_environ
    for name, value in {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "GRN_STATE_DIR": str(tmp_path),
        "COLUMNS": "80",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }.items():
        monkeypatch.setenv(name, value)
    time.tzset()
    yield str(tmp_path)
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def book(folder: str) -> Iterator[Book]:
    """An empty history in it."""
    made = Book(folder)
    yield made
    made.close()


@pytest.fixture
def grn_history(folder: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run `grn history` with some words."""
    del folder

    def run(*words: str) -> Said:
        try:
            status = main(["history", *words])
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        return Said(status, *capsys.readouterr())

    return run
