"""A disk that fails at its n-th operation, and a journal's whole life on it.

`FaultyOs` stands in for the module `os` inside the journal: each call that reaches the disk is
counted, the n-th one fails. Everything else is the real thing, on a real file.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.broker import journal as journal_module
from grn.broker.journal import Journal
from grn.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

__all__ = ["FAULTS", "FaultyOs", "Life"]

_ON_DISK = ("open", "write", "ftruncate", "rename", "fstat", "fchmod", "unlink")
FAULTS: dict[str, int | None] = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "short": None,
}
"""How the n-th operation fails; a short write takes half, other operations then fail with EIO."""


class FaultyOs:
    """The module `os`, of which the n-th operation on the disk fails, and `lasting` after it."""

    def __init__(self, at: int, fault: str, *, lasting: int = 0) -> None:
        self.calls = 0
        self.failed = 0
        self._at = range(at, at + lasting + 1)
        self._errno = FAULTS[fault]

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if name in _ON_DISK else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls += 1
            if self.calls not in self._at:
                return real(*args)
            self.failed += 1
            if name == "write" and self._errno is None:
                fd, data = args
                return os.write(fd, data[: len(data) // 2])
            number = errno.EIO if self._errno is None else self._errno
            raise OSError(number, os.strerror(number))

        return call


@dataclass
class Life:
    """One journal that is opened, appended to, compacted and opened again; `kept` is the truth."""

    path: str
    kept: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    number: int = 0
    unkept: list[dict[str, Any]] = field(default_factory=list)
    """Of an append that failed and could not be cut off either: a successor may find some of it."""

    def run(self, disk: FaultyOs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Live through 180 steps on this disk, or 20 after it is well again.

        Raises:
            AssertionError: what was acknowledged cannot be read at some time, or something else can.
        """
        journal: Journal | None = None
        well = 0
        for step in range(180):
            said = len(self.said)
            with monkeypatch.context() as patch:
                patch.setattr(journal_module, "os", disk)
                journal = self._step(step, journal, disk)
            well = 0 if not disk.failed or len(self.said) > said else well + 1
            if len(self.said) > said or well == 1:
                self._check()
            if well > 20:
                break
        self._check()
        assert self.unkept == []
        if journal is not None:
            journal.close()

    def _step(self, step: int, journal: Journal | None, disk: FaultyOs) -> Journal | None:
        try:
            if journal is None or step % 17 == 16:
                if journal is not None:
                    journal.close()
                journal = None
                journal, found, _ = Journal.open(self.path, boot="b", write=disk.write)
                self._is_kept(found)
                self.kept, self.unkept = found, []
            elif step % 11 == 10:
                journal.compact(self.kept[-5:])
                self.kept, self.unkept = self.kept[-5:], []
            else:
                self._append(journal)
        except JournalError as error:
            self.said.append(str(error))
        return journal

    def _append(self, journal: Journal) -> None:
        self.number += 3
        fresh = [{"ev": "x", "n": self.number + i} for i in range(3)]
        try:
            journal.append(fresh)
        except JournalError as error:
            self.unkept = self.unkept or (fresh if "repair" in str(error) else [])
            raise
        self.kept, self.unkept = self.kept + fresh, []

    def _check(self) -> None:
        """Read it as a successor would, without touching the file."""
        content = b""
        if os.path.exists(self.path):
            with open(self.path, "rb") as file:
                content = file.read()
        self._is_kept(journal_module._decode_prefix(content)[0][1:])

    def _is_kept(self, found: list[dict[str, Any]]) -> None:
        assert found[: len(self.kept)] == self.kept
        more = found[len(self.kept) :]
        assert more == self.unkept[: len(more)]
