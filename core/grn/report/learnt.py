"""What is known of job types, read from the profile store without touching it.

Promises: a store that is missing, damaged or newer is no obstacle to a report, which then shows no
estimates. Must not: write, or set a damaged file aside: that is the broker's.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgpack

from grn.rules.estimate import Margin
from grn.rules.profiles import from_record
from grn.rules.report import profiles_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.rules.estimate import Profile

__all__ = ["learnt"]


def learnt(path: str, margin: tuple[float, int]) -> tuple[list[dict[str, Any]], str]:
    """Return the profiles in the store at `path`, as `grn profiles` has them, and what is wrong."""
    if not os.path.exists(path):
        return [], ""
    try:
        db = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True)
        try:
            rows = db.execute("SELECT type, device_model, data FROM profiles").fetchall()
        finally:
            db.close()
    except sqlite3.Error as error:
        return [], f"no estimates: cannot read the profile store {path}: {error}"
    return profiles_report(_profiles(rows), Margin(*margin)), ""


def _profiles(rows: list[tuple[Any, Any, bytes]]) -> Iterator[Profile]:
    for job_type, model, data in rows:
        try:
            record = msgpack.unpackb(data, unicode_errors="surrogateescape")
            yield from_record(_text(job_type), _text(model), record)
        except (ValueError, TypeError, msgpack.UnpackException):
            continue  # the broker names it as unreadable


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
