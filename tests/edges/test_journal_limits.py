"""The journal's limits: the largest record, what ends a replay and how it is named, what is never cut."""

from __future__ import annotations

import errno
import os
import re
import zlib
from typing import TYPE_CHECKING

import msgpack
import pytest

from grn.broker import journal as journal_module
from grn.broker.journal import Journal, boot_id
from grn.errors import JournalError
from tests.edges.journals import Disk, records, replayed, written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the journal is to be."""
    return str(tmp_path / "broker.sock.journal")


def test_what_cannot_be_looked_at_is_not_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others could read it, and that cannot be changed: it is said why, and nothing stays open."""
    written(path, records(1))
    os.chmod(path, 0o644)
    before = os.listdir("/proc/self/fd")

    def refuse(_fd: int, _mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(
        JournalError, match=r"cannot look at the journal .*: Operation not permitted"
    ):
        Journal.open(path)
    assert os.listdir("/proc/self/fd") == before


def test_a_healthy_journal_is_only_appended_to(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut where nothing was torn: not when it is new, compacted, or was mended."""
    disk = Disk()
    torn, _, _ = Journal.open(path, write=disk.write)
    disk.room = 3
    with pytest.raises(JournalError):
        torn.append(records(1))
    disk.room = None
    fresh, _, _ = Journal.open(f"{path}.other")

    def refuse(_fd: int, _size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "ftruncate", refuse)
    for journal in (torn, fresh):
        journal.append(records(1))
        journal.compact(records(2))
        journal.append(records(1, start=2))
        assert replayed(journal.path) == (records(3), None)


def test_a_new_journal_has_its_header_at_once(path: str) -> None:
    """A broker that dies before its first grant leaves a journal that says what it is."""
    journal, _, _ = Journal.open(path)
    assert journal.size == os.path.getsize(path) > 0
    journal.close()
    assert replayed(path) == ([], None)


def test_where_the_kernel_does_not_say_the_boot_has_no_name(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then records are taken to be of this boot."""
    monkeypatch.setattr(journal_module, "_BOOT_ID", "/nonexistent")
    assert boot_id() == ""
    written(path, records(2))
    assert replayed(path) == (records(2), None)


def test_the_largest_record_and_the_smallest(path: str) -> None:
    """Both come back; one byte more is refused."""
    limit = journal_module.MAX_RECORD_BYTES
    room = limit - len(msgpack.packb({"label": "x" * 70_000})) + 70_000
    content = [{}, {"label": "x" * room}, {"cores": {1: 2}}]
    assert len(msgpack.packb(content[1])) == limit
    written(path, content)
    assert replayed(path) == (content, None)
    journal, _, _ = Journal.open(path)
    with pytest.raises(JournalError, match=f"a record of {limit + 1} bytes, the limit is {limit}"):
        journal.append([{"label": "x" * (room + 1)}])


def _framed(body: bytes) -> bytes:
    return journal_module._HEAD.pack(len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize(
    ("tail", "fault"),
    [
        (bytes(journal_module._HEAD.size), "has an impossible length, 0"),
        (_framed(b"\xc1"), "is no msgpack map"),
        (_framed(b"\x01"), "is no msgpack map"),
        (_framed(b"\x80")[:-1], "byte [0-9]+ is cut short"),
        (_framed(b"\x80")[:-2], "has a head that is cut short"),
    ],
)
def test_what_ends_a_replay_is_named(path: str, tail: bytes, fault: str) -> None:
    """Blocks of zeros, what is no record, half of one: what is before it is in use."""
    written(path, records(2))
    with open(path, "ab") as file:
        file.write(tail)
    found, report = replayed(path)
    assert found == records(2)
    assert report is not None
    assert re.search(fault, report)
    assert replayed(path) == (records(2), None)


def test_records_without_a_beginning_are_no_journal(path: str) -> None:
    """They may be of anybody's; it is said how much is dropped."""
    with open(path, "wb") as file:
        file.write(_framed(msgpack.packb({"ev": "grant", "lease": "L0"})))
    os.chmod(path, 0o600)
    found, report = replayed(path)
    assert found == []
    assert report is not None
    assert re.search("does not begin as one: [0-9]+ bytes dropped", report)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ": No space left on device; nothing"),
        (OSError("odd"), ": odd; nothing"),
    ],
)
def test_the_disks_own_words_are_said(path: str, error: OSError, why: str) -> None:
    """Once, and also where there are only words of another kind."""
    journal, _, _ = Journal.open(path)

    def write(_fd: int, _data: bytes) -> int:
        raise error

    journal._write = write
    with pytest.raises(JournalError) as caught:
        journal.append(records(1))
    assert why in str(caught.value)
    os.remove(path)
    assert journal.in_place is False
