"""Journals to be written and read back, and a disk that fails."""

from __future__ import annotations

import os
from typing import Any

from grn.broker.journal import Journal

Record = dict[str, Any]

__all__ = ["Disk", "Record", "records", "replayed", "written"]


def records(count: int, start: int = 0) -> list[Record]:
    """Build grants to write."""
    return [{"ev": "grant", "lease": f"L{number}"} for number in range(start, start + count)]


def written(path: str, content: list[Record], **keywords: Any) -> None:
    """Append these in a journal that is opened and closed for it."""
    journal, _, _ = Journal.open(path, **keywords)
    journal.append(content)
    journal.close()


def replayed(path: str, **keywords: Any) -> tuple[list[Record], str | None]:
    """Open the journal; return what was found."""
    journal, found, report = Journal.open(path, **keywords)
    journal.close()
    return found, report


class Disk:
    """A disk whose n-th write fails, with an error or after some bytes."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.room: int | None = None
        self.writes = 0

    def write(self, fd: int, data: bytes) -> int:
        """Do what os.write does, as far as the disk lets it."""
        self.writes += 1
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return os.write(fd, data if self.room is None else data[: self.room])
