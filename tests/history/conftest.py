"""A history file with records of the test's own, and `grn history` on it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.history.schema import FILE_NAME, SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Book:
    """Writes records as a broker does: what is not given stays unknown."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, FILE_NAME)
        self._db = sqlite3.connect(self.path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript(TABLES)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._seq = 0

    def add(self, **columns: Any) -> str:
        """Add one lease, granted a minute after the one before; return its id."""
        self._seq += 1
        granted = 1_700_000_000.0 + 60 * self._seq
        ended = columns.get("granted_at", granted) + 30
        row = {
            "seq": self._seq,
            "id": f"ab12cd-{self._seq}",
            "type": "train",
            "granted_at": granted,
            "ended_at": ended,
            "outcome": "ok",
            **columns,
        }
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._db.execute(f"INSERT INTO lease ({names}) VALUES ({marks})", list(row.values()))  # noqa: S608 - names of the test's own
        return str(row["id"])

    def device(self, uuid: str, index: int, seen_at: float = 1.0) -> None:
        """Add a device."""
        values = (uuid, index, "Simulated 16 GiB", 16384, 16000, seen_at)
        self._db.execute("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?)", values)

    def execute(self, statement: str) -> list[Any]:
        """Run SQL as the writer would."""
        return self._db.execute(statement).fetchall()

    def close(self) -> None:
        """Leave the file as a broker does that ends."""
        self._db.close()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """An empty history."""
    folder = tmp_path / "state"
    folder.mkdir()
    return Book(str(folder))


@pytest.fixture
def grn_history(book: Book, clean_environ: None) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `grn history` with some words on that history."""
    del clean_environ

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "grn", "history", *words],
            check=False,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={
                "PATH": os.defpath,
                "HOME": book.folder,
                "LANG": "C.UTF-8",
                "TZ": "UTC",
                "COLUMNS": "80",
                "GRN_STATE_DIR": book.folder,
                **variables,
            },
            timeout=120,
        )

    return run
