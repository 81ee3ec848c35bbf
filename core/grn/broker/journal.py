"""The journal: what a broker must still know after it was killed.

An append-only file of records: 4-byte length, 4-byte crc32, one msgpack map. The first record names
the format and the boot. A grant is acknowledged only once its record is written, so a new broker
finds every lease that anybody was told of.

No fsync: a written page survives the death of any process, kill -9 included. Only the end of the
machine loses it, and then every lease has ended too; a journal of an earlier boot is dropped.

What is promised of damage: the longest undamaged beginning is replayed, the rest is reported and
cut off, nothing raises. What is promised of a full disk: a failed append leaves no half record
behind, so later ones stay readable.

Must not: know what the records mean.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from typing import TYPE_CHECKING, Any

import msgpack

from grn.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["MAX_RECORD_BYTES", "Journal", "UnfitRecordError", "boot_id"]

MAX_RECORD_BYTES = 1 << 20
_FORMAT = 1
_FORMAT_KEY = "grn_journal"
_HEAD = struct.Struct(">II")
_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_PRIVATE = 0o600
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# Commands and labels may hold bytes that are not UTF-8; they travel as lone surrogates.
_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogateescape").pack


class UnfitRecordError(JournalError):
    """A record that no journal can hold: too large, or with a number beyond 64 bits.

    `position`: its place among those that were to be appended together.
    """

    position = 0


class Journal:
    """An open journal. One process writes it: the one that holds the instance lock.

    Attributes:
        ours: whether its path is ours to write to. While it is not (another broker holds the lock
            there), records go on into the file that is open, and `compact` leaves the path alone.
        size: bytes of readable records.
    """

    def __init__(
        self, path: str, fd: int, boot: str, *, write: Callable[[int, bytes], int] = os.write
    ) -> None:
        self.path = path
        self.ours = True
        self.size = 0
        self._boot = boot
        self._header = _encode({_FORMAT_KEY: _FORMAT, "boot_id": boot})
        self._fd = fd
        self._write = write
        self._torn = False

    @classmethod
    def open(
        cls,
        path: str,
        *,
        boot: str | None = None,
        write: Callable[[int, bytes], int] = os.write,
    ) -> tuple[Journal, list[dict[str, Any]], str | None]:
        """Open or make the journal; return it, its records, and what was dropped, if anything.

        Damage never raises. When the disk refuses to be written, the records are returned all the
        same, and the next `append` will say so.

        Raises:
            JournalError: the file cannot be opened or read, or a newer GRN wrote it.
        """
        boot = boot_id() if boot is None else boot
        journal = cls(path, _open_own_file(path), boot, write=write)
        try:
            records, report = journal._replay()
        except BaseException:
            journal.close()
            raise
        return journal, records, report

    @property
    def in_place(self) -> bool:
        """Whether its path still leads to it: a successor would read it."""
        try:
            there = os.lstat(self.path)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the records in one step: all of them are in the journal, or none is.

        Raises:
            UnfitRecordError: one of them can be in no journal.
            JournalError: they are not in it. Later appends may succeed.
        """
        bodies: list[bytes] = []
        for record in records:
            try:
                bodies.append(_encode(record))
            except JournalError as error:
                unfit = UnfitRecordError(str(error))
                unfit.position = len(bodies)
                raise unfit from None
        self._put(b"".join(bodies))

    def compact(self, snapshot: Sequence[Mapping[str, Any]]) -> None:
        """Replace the journal by these records; a crash leaves the old or the new one, whole.

        It is made anew at its path if its file, or the folder, was removed.

        Raises:
            JournalError: the old one is still in use, unharmed.
        """
        if not self.ours:
            return
        content = b"".join([self._header, *map(_encode, snapshot)])
        fresh = f"{self.path}.new"
        try:
            fd = self._write_fresh(fresh, content)
        except OSError as error:
            raise JournalError(
                f"cannot compact the journal {self.path}: {error.strerror or error}; the old one "
                "stays in use"
            ) from error
        os.close(self._fd)
        self._fd = fd
        self.size = len(content)
        self._torn = False

    def close(self) -> None:
        """Close the file; it stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_fresh(self, fresh: str, content: bytes) -> int:
        fd = os.open(fresh, _OPEN | os.O_TRUNC, _PRIVATE)
        try:
            self._write_all(fd, content)
            os.rename(fresh, self.path)
        except BaseException:
            os.close(fd)
            _discard(fresh)
            raise
        return fd

    def _write_all(self, fd: int, content: bytes) -> None:
        if self._write(fd, content) != len(content):  # a second write would only tell what is known
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _put(self, data: bytes) -> None:
        if self._torn:
            self._cut_torn_tail()
        if not self.size:  # new, or its header could not be written before now
            data = self._header + data
        try:
            written = self._write(self._fd, data)
        except OSError as error:
            raise self._after_failure(error) from error
        if written != len(data):
            raise self._after_failure(None)
        self.size += written

    def _after_failure(self, error: OSError | None) -> JournalError:
        # Whatever part was written must go, or everything after it could never be read.
        self._torn = True
        try:
            self._cut_torn_tail()
        except JournalError as second:
            return second
        return self._failed("write", error)

    def _cut_torn_tail(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
        except OSError as error:
            raise self._failed("repair", error) from error
        self._torn = False

    def _failed(self, what: str, error: OSError | None) -> JournalError:
        why = "the disk took only a part (full?)" if error is None else error.strerror or error
        return JournalError(
            f"cannot {what} the journal {self.path}: {why}; nothing new is granted until it can "
            "be written: make room there"
        )

    def _replay(self) -> tuple[list[dict[str, Any]], str | None]:
        content = _read_all(self._fd, self.path)
        records, good, fault = _decode_prefix(content)
        header = records[0] if records else {}
        version = header.get(_FORMAT_KEY)
        if isinstance(version, int) and version > _FORMAT:
            raise JournalError(
                f"the journal {self.path} is of format {version}, this GRN knows {_FORMAT}: use "
                "the newer GRN, or remove the file when no job of it runs any more"
            )
        report = None
        if fault is not None:
            report = (
                f"journal {self.path}: {fault}; the last {len(content) - good} of {len(content)} "
                f"bytes were cut off, {max(len(records) - 1, 0)} records before them are in use"
            )
        if version == _FORMAT and header.get("boot_id") == self._boot:
            self.size = good
            self._begin(cut=good != len(content))
            return [r for r in records[1:] if _FORMAT_KEY not in r], report
        if version == _FORMAT:
            report = (
                f"journal {self.path} is of an earlier boot: {len(records) - 1} records dropped, "
                "their processes are gone"
            )
        elif content and fault is None:
            report = f"journal {self.path} does not begin as one: {len(content)} bytes dropped"
        self._begin(cut=bool(content))
        return [], report

    def _begin(self, *, cut: bool) -> None:
        try:
            if cut:
                self._cut_torn_tail()
            if not self.size:
                self._put(b"")
        except JournalError:
            return  # the first append will say so; what was read is still worth having


def boot_id() -> str:
    """Return what names this boot of the machine; empty where the kernel does not say."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _open_own_file(path: str) -> int:
    try:
        fd = os.open(path, _OPEN, _PRIVATE)
    except OSError as error:
        raise JournalError(f"cannot open the journal {path}: {error.strerror}") from error
    try:
        _check_own_file(fd, path)
    except OSError as error:  # a JournalError is one, too
        os.close(fd)
        if isinstance(error, JournalError):
            raise
        raise JournalError(f"cannot look at the journal {path}: {error.strerror}") from error
    return fd


def _check_own_file(fd: int, path: str) -> None:
    found = os.fstat(fd)
    # In a shared folder somebody could have planted leases that were never granted.
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise JournalError(
            f"the journal {path} is not a file of uid {os.geteuid()}; remove it, or choose another "
            "path with --socket or GRN_SOCKET"
        )
    if stat.S_IMODE(found.st_mode) != _PRIVATE:
        os.fchmod(fd, _PRIVATE)


def _encode(record: Mapping[str, Any]) -> bytes:
    try:
        body: bytes = _pack(record)
    except (ValueError, OverflowError) as error:
        raise JournalError(f"a record that no journal can hold: {error}") from error
    if len(body) > MAX_RECORD_BYTES:
        raise JournalError(f"a record of {len(body)} bytes, the limit is {MAX_RECORD_BYTES}")
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _read_all(fd: int, path: str) -> bytes:
    try:
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}") from error


def _decode_prefix(content: bytes) -> tuple[list[dict[str, Any]], int, str | None]:
    """Return the records of the longest undamaged beginning, its length, and what ended it."""
    records: list[dict[str, Any]] = []
    at = 0
    while at < len(content):
        record, end, fault = _decode_one(content, at)
        if record is None:
            return records, at, f"record {len(records)} at byte {at} {fault}"
        records.append(record)
        at = end
    return records, at, None


def _decode_one(content: bytes, at: int) -> tuple[dict[str, Any] | None, int, str]:
    start = at + _HEAD.size
    if start > len(content):
        return None, at, "has a head that is cut short"
    length, checksum = _HEAD.unpack_from(content, at)
    end = start + length
    if not 0 < length <= MAX_RECORD_BYTES:
        return None, at, f"has an impossible length, {length}"
    if end > len(content):
        return None, at, "is cut short"
    body = content[start:end]
    if zlib.crc32(body) != checksum:
        return None, at, "does not match its checksum"
    try:
        record = msgpack.unpackb(
            body, raw=False, strict_map_key=False, unicode_errors="surrogateescape"
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None, at, "is no msgpack map"
    return (record, end, "") if isinstance(record, dict) else (None, at, "is no msgpack map")


def _discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # the next compaction overwrites it
        return
