"""What a file of SQLite's needs beside its tables: to be private, and to be set aside when damaged.

Must not: know what is in it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

__all__ = ["is_damage", "make_private_file", "set_aside"]

_PRIVATE = 0o600
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE = 0xFF  # extended result codes carry the primary one in their low byte


def make_private_file(path: str) -> None:
    """Make the file, unless it is there; SQLite would make it 0644.

    The files that SQLite puts beside it take over this mode.

    Raises:
        OSError: it cannot be made or opened, or is a symbolic link.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    os.close(os.open(path, flags, _PRIVATE))


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is not what it should be, however often one tries."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY_CODE in _DAMAGED


def set_aside(path: str) -> str:
    """Move a damaged file, which nobody has open, to the first name that is free; return that.

    Raises:
        OSError: it cannot be moved.
    """
    number = 1
    while os.path.lexists(f"{path}.corrupt-{number}"):
        number += 1
    aside = f"{path}.corrupt-{number}"
    os.rename(path, aside)
    # They belong to the damaged file; beside a new one they would damage it as well.
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + suffix, aside + suffix)
    return aside
