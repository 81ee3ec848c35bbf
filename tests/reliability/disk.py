# ruff: noqa: D102 - stand-ins have the methods of what they stand in for
"""The disk of the simulated machine, and the profile store on it: full, or torn, whenever it is told to be.

Stands in for what the journal calls of `os`, and for `ProfileStore`. A broker can be killed in any of
its operations.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

__all__ = ["BrokerDied", "Disk", "Store"]


class BrokerDied(BaseException):
    """The broker's process was killed at this very point: nothing of it runs any more."""


class _Status:
    st_mode = stat.S_IFREG | 0o600
    st_uid = 0


class Disk:
    """Files in memory, with the functions of `os` that the journal uses. It can be full, and tear.

    Attributes:
        full: bytes that are still taken before nothing more is; `None`: no end.
        dies_at: the broker is killed in the so many-th operation from now; a write then takes a part.
    """

    O_RDWR, O_CREAT, O_APPEND = os.O_RDWR, os.O_CREAT, os.O_APPEND
    O_CLOEXEC, O_NOFOLLOW, O_TRUNC = os.O_CLOEXEC, os.O_NOFOLLOW, os.O_TRUNC
    path = os.path
    strerror = staticmethod(os.strerror)

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self._open: dict[int, bytearray] = {}
        self._fds = 3
        self.full: int | None = None
        self.dies_at: int | None = None
        self.dies_after = 0
        self.dead = False
        self.writes = 0

    def _operation(self) -> bool:
        """Count one; return whether the broker dies in it."""
        if self.dead:
            raise BrokerDied
        if self.dies_at is None:
            return False
        self.dies_at -= 1
        if self.dies_at > 0:
            return False
        self.dead, self.dies_at = True, None
        return True

    def geteuid(self) -> int:
        return 0

    def open(self, path: str, flags: int, mode: int) -> int:
        del mode
        if self._operation():
            raise BrokerDied
        file = self.files.setdefault(path, bytearray())
        if flags & os.O_TRUNC:
            file.clear()
        self._fds += 1
        self._open[self._fds] = file
        return self._fds

    def write(self, fd: int, data: bytes) -> int:
        self.writes += 1
        file = self._open[fd]
        if self._operation():
            file += data[: len(data) * (self.dies_after % 5) // 4]  # nothing, a part, or all of it
            raise BrokerDied
        if self.full is not None:
            taken = min(self.full, len(data))
            self.full -= taken
            if not taken:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[:taken]
        file += data
        return len(data)

    def ftruncate(self, fd: int, size: int) -> None:
        if self._operation():
            raise BrokerDied
        del self._open[fd][size:]

    def rename(self, source: str, target: str) -> None:
        dies = self._operation()
        if not dies or self.dies_after % 2:
            self.files[target] = self.files.pop(source)
        if dies:
            raise BrokerDied

    def unlink(self, path: str) -> None:
        if self._operation():
            raise BrokerDied
        self.files.pop(path, None)

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def fstat(self, fd: int) -> _Status:
        del fd
        return _Status()

    def read_all(self, fd: int, path: str) -> bytes:
        """Stand in for the journal's own `_read_all`."""
        del path
        return bytes(self._open[fd])


class Store:
    """The profiles that outlive a broker; like the disk, it can be full."""

    problem = ""
    unreadable: frozenset[tuple[str, str]] = frozenset()

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.kept: dict[tuple[str, str], dict[str, Any]] = {}

    def put_many(self, profiles: dict[tuple[str, str], dict[str, Any]], _merged: object) -> None:
        from grn.errors import JournalError

        if self._disk.full is not None:
            raise JournalError("the profile store is on a full disk")
        self.kept.update(profiles)

    def of_type(self, job_type: str) -> dict[tuple[str, str], dict[str, Any]]:
        return {key: value for key, value in self.kept.items() if key[0] == job_type}

    def load(self, limit: int) -> dict[tuple[str, str], dict[str, Any]]:
        del limit
        return dict(self.kept)

    def delete(self, job_type: str, model: str | None) -> int:
        gone = [k for k in self.kept if k[0] == job_type and model in (None, k[1])]
        for key in gone:
            del self.kept[key]
        return len(gone)

    def cannot_read(self, key: tuple[str, str]) -> None:
        raise AssertionError(f"the profile of {key} was kept, and is not understood")

    def prune(self, limit: int) -> None:
        del limit

    def close(self) -> None:
        """Nothing is open."""
