"""The journal: what survives kill -9, damage, and a full disk."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.broker import journal as journal_module
from grn.broker.journal import Journal, boot_id
from grn.errors import JournalError
from tests.edges.journals import Disk, records, replayed, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the journal is to be."""
    return str(tmp_path / "broker.sock.journal")


def test_what_was_appended_is_replayed_in_order(path: str) -> None:
    """All records come back, across several opens, without a report."""
    written(path, records(3))
    written(path, records(2, start=3))
    assert replayed(path) == (records(5), None)


def test_a_new_journal_is_empty_and_private(path: str) -> None:
    """A missing file is no damage; the new one is for its user alone, whatever the umask."""
    before = os.umask(0)
    try:
        assert replayed(path) == ([], None)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_an_append_is_one_write(path: str) -> None:
    """Several records go in one system call, so all are in the journal or none is."""
    disk = Disk()
    journal, _, _ = Journal.open(path, write=disk.write)
    before = disk.writes
    journal.append(records(50))
    assert disk.writes == before + 1


def test_an_append_survives_kill_9(path: str) -> None:
    """A record is safe the moment that append returns, without any goodbye."""
    code = (
        "import os, sys\n"
        "from grn.broker.journal import Journal\n"
        "journal, _, _ = Journal.open(sys.argv[1])\n"
        "journal.append([{'ev': 'grant', 'lease': 'L0'}])\n"
        "os.kill(os.getpid(), 9)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code, path], check=False).returncode
        == -signal.SIGKILL
    )
    assert replayed(path) == (records(1), None)


def test_bytes_that_are_not_utf8_come_back(path: str) -> None:
    """A command with undecodable bytes is kept as it was."""
    odd = [{"command": os.fsdecode(b"run \xff\xfe")}]
    written(path, odd)
    assert replayed(path) == (odd, None)


def test_cut_at_every_byte_a_prefix_is_replayed(path: str) -> None:
    """However much of the end is missing, whole records before it count and appends go on."""
    written(path, records(40))
    with open(path, "rb") as file:
        content = file.read()
    ends = ends_of_records(content)
    for size in range(len(content)):
        with open(path, "wb") as file:
            file.write(content[:size])
        found, report = replayed(path)
        whole = max(sum(end <= size for end in ends) - 1, 0)
        assert found == records(whole), size
        assert (report is None) == (size == 0 or size in ends), size
        written(path, [{"ev": "later"}])
        assert replayed(path) == ([*records(whole), {"ev": "later"}], None)


def ends_of_records(content: bytes) -> list[int]:
    """Find where each record ends, the header first."""
    ends, at = [], 0
    while at < len(content):
        at += 8 + int.from_bytes(content[at : at + 4], "big")
        ends.append(at)
    return ends


def test_with_any_byte_flipped_a_prefix_is_replayed(path: str) -> None:
    """Damage anywhere ends the replay there; nothing raises and nothing is invented."""
    written(path, records(40))
    with open(path, "rb") as file:
        content = file.read()
    ends = ends_of_records(content)
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 0xFF
        with open(path, "wb") as file:
            file.write(flipped)
        found, report = replayed(path)
        whole = max(sum(end <= at for end in ends) - 1, 0)
        assert found == records(whole), at
        assert report is not None
        assert path in report


@pytest.mark.parametrize(
    "content",
    [b"\0" * 5000, b"\xff" * 5000, b"hello, world\n" * 100],
    ids=["zeros", "ones", "text"],
)
def test_a_file_that_is_no_journal_is_reported_and_replaced(path: str, content: bytes) -> None:
    """Content of another kind is dropped with a word, and the journal works."""
    with open(path, "wb") as file:
        file.write(content)
    found, report = replayed(path)
    assert found == []
    assert report is not None
    written(path, records(1))
    assert replayed(path) == (records(1), None)


def test_the_report_says_where_and_how_much(path: str) -> None:
    """Whoever reads it learns what was wrong, what was cut, and what is in use."""
    written(path, records(3))
    with open(path, "ab") as file:
        file.write(b"\0\0\0\x05half")
    _, report = replayed(path)
    assert report is not None
    assert "the last 8 of" in report
    assert "3 records before them are in use" in report


def test_an_earlier_boots_records_are_dropped(path: str) -> None:
    """After a reboot every process is gone, so every lease is."""
    written(path, records(4), boot="yesterday")
    found, report = replayed(path, boot="today")
    assert found == []
    assert report is not None
    assert "earlier boot: 4 records dropped" in report
    assert replayed(path, boot="today") == ([], None)


def test_the_boot_is_the_kernels(path: str) -> None:
    """By default the boot is the one that the kernel names."""
    written(path, records(1), boot=boot_id())
    assert boot_id()
    assert replayed(path) == (records(1), None)


def test_a_newer_format_is_refused_untouched(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that a newer GRN wrote is not misread, nor cut."""
    monkeypatch.setattr(journal_module, "_FORMAT", 2)
    written(path, records(1))
    monkeypatch.setattr(journal_module, "_FORMAT", 1)
    with open(path, "rb") as file:
        before = file.read()
    with pytest.raises(JournalError, match="format 2, this GRN knows 1"):
        Journal.open(path)
    with open(path, "rb") as file:
        assert file.read() == before


def fail_with(number: int) -> Callable[[Disk], None]:
    """Fail with this error."""

    def fail(disk: Disk) -> None:
        disk.error = number

    return fail


def fail_after(room: int) -> Callable[[Disk], None]:
    """Fail after so many bytes."""

    def fail(disk: Disk) -> None:
        disk.room = room

    return fail


FAILURES = pytest.mark.parametrize(
    "fail",
    [fail_with(errno.ENOSPC), fail_with(errno.EIO), fail_after(0), fail_after(1), fail_after(11)],
    ids=["ENOSPC", "EIO", "nothing written", "one byte written", "half a record written"],
)


@FAILURES
def test_a_failed_append_leaves_no_trace(path: str, fail: Callable[[Disk], None]) -> None:
    """It raises, earlier records stay, and appends work again once the disk does."""
    disk = Disk()
    journal, _, _ = Journal.open(path, write=disk.write)
    journal.append(records(2))
    fail(disk)
    with pytest.raises(JournalError, match=r"cannot write the journal .*make room"):
        journal.append(records(1, start=2))
    assert replayed(path) == (records(2), None)
    disk.error = disk.room = None
    journal.append(records(1, start=3))
    assert replayed(path) == ([*records(2), *records(1, start=3)], None)


def test_a_tail_that_cannot_be_cut_blocks_appends(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written behind a half record, where no replay would ever find it."""
    disk = Disk()
    halves: list[int] = []

    def write(fd: int, data: bytes) -> int:
        written = disk.write(fd, data)
        if written != len(data):
            halves.append(written)
        return written

    def cut(fd: int, size: int) -> None:
        if halves:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        ftruncate(fd, size)

    ftruncate = os.ftruncate
    journal, _, _ = Journal.open(path, write=write)
    journal.append(records(1, start=6))
    disk.room = 3
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", cut)
        with pytest.raises(JournalError, match="cannot repair"):
            journal.append(records(1))
        disk.room = None
        with pytest.raises(JournalError, match="cannot repair"):
            journal.append(records(1))
    journal.append(records(1, start=7))
    assert halves == [3]
    assert replayed(path) == (records(2, start=6), None)


def test_on_a_full_disk_the_old_records_are_still_read(path: str) -> None:
    """A broker that starts on a full disk keeps its leases and knows that it cannot write."""
    written(path, records(3))
    with open(path, "ab") as file:
        file.write(b"torn")
    disk = Disk()
    disk.error = errno.ENOSPC
    journal, found, _ = Journal.open(path, write=disk.write)
    assert found == records(3)
    with pytest.raises(JournalError):
        journal.append(records(1))


def test_a_journal_begun_on_a_full_disk_gets_its_header_later(path: str) -> None:
    """Where even the header could not be written, the first append that succeeds brings it."""
    disk = Disk()
    disk.error = errno.ENOSPC
    journal, _, _ = Journal.open(path, write=disk.write)
    disk.error = None
    journal.append(records(2))
    assert replayed(path) == (records(2), None)


def test_compaction_replaces_everything(path: str) -> None:
    """Only the snapshot and what is appended after it remain."""
    journal, _, _ = Journal.open(path)
    journal.append(records(500))
    size = journal.size
    journal.compact(records(2))
    journal.append(records(1, start=2))
    assert journal.size < size
    assert replayed(path) == (records(3), None)
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


@pytest.mark.parametrize("ends_well", [True, False])
def test_no_descriptor_is_left(path: str, *, ends_well: bool) -> None:
    """Of a journal that was opened, compacted, or could not be, and closed, perhaps twice."""
    before = os.listdir("/proc/self/fd")
    disk = Disk()
    journal, _, _ = Journal.open(path, write=disk.write)
    for count in range(3):
        if ends_well:
            journal.compact(records(count))
        else:
            disk.room = 3
            with pytest.raises(JournalError):
                journal.compact(records(count))
    journal.close()
    journal.close()
    assert os.listdir("/proc/self/fd") == before
    newer = journal_module._encode({journal_module._FORMAT_KEY: 99, "boot_id": boot_id()})
    with open(path, "wb") as file:
        file.write(newer)
    with pytest.raises(JournalError, match="of format 99"):
        Journal.open(path)
    assert os.listdir("/proc/self/fd") == before
    os.remove(path)
    os.mkfifo(path, 0o600)
    with pytest.raises(JournalError, match="is not a file of uid"):
        Journal.open(path)
    assert os.listdir("/proc/self/fd") == before


@FAILURES
def test_a_failed_compaction_keeps_the_old_journal(path: str, fail: Callable[[Disk], None]) -> None:
    """It raises, and the journal goes on as it was, without left-over files."""
    disk = Disk()
    journal, _, _ = Journal.open(path, write=disk.write)
    journal.append(records(5))
    fail(disk)
    with pytest.raises(JournalError, match=r"cannot compact .* the old one stays in use"):
        journal.compact(records(1))
    disk.error = disk.room = None
    journal.append(records(1, start=5))
    assert replayed(path) == (records(6), None)
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_compaction_heals_a_journal(path: str) -> None:
    """A snapshot that was written whole makes whatever failed before it irrelevant."""
    disk = Disk()
    journal, _, _ = Journal.open(path, write=disk.write)
    disk.room = 5
    with pytest.raises(JournalError):
        journal.append(records(1))
    disk.room = None
    journal.compact(records(3))
    assert replayed(path) == (records(3), None)


def test_an_interrupted_compaction_harms_nothing(path: str) -> None:
    """What a broker killed while compacting leaves behind is overwritten by the next compaction."""
    journal, _, _ = Journal.open(path)
    journal.append(records(2))
    with open(f"{path}.new", "wb") as file:
        file.write(b"half a snapshot" * 1000)
    journal.compact(records(1))
    assert replayed(path) == (records(1), None)


def test_a_record_too_large_is_refused_before_it_is_written(path: str) -> None:
    """A record that no replay would accept never gets into the journal."""
    journal, _, _ = Journal.open(path)
    with pytest.raises(JournalError, match="the limit is 1048576"):
        journal.append([{"command": "x" * (1 << 20)}])
    assert replayed(path) == ([], None)


@pytest.mark.parametrize("kind", ["folder", "symlink", "pipe", "strangers"])
def test_only_an_own_regular_file_is_a_journal(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can slip in leases through a file that they planted."""
    if kind == "folder":
        os.mkdir(path)
    elif kind == "symlink":
        os.symlink("/dev/null", path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        written(path, records(1))
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(JournalError, match="journal"):
        Journal.open(path)


def test_a_journal_that_others_could_read_is_closed_to_them(path: str) -> None:
    """It says who runs what."""
    written(path, records(1))
    os.chmod(path, 0o644)
    journal, _, _ = Journal.open(path)
    journal.close()
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_journal_whose_file_was_removed_is_made_again(path: str) -> None:
    """Its writer can notice, and writes all of it anew at its path, where a successor looks."""
    journal, _, _ = Journal.open(path)
    journal.append(records(1))
    assert journal.in_place
    os.unlink(path)
    assert not journal.in_place
    journal.compact(records(2))
    assert journal.in_place
    journal.append(records(1, start=2))
    journal.close()
    assert replayed(path) == (records(3), None)


def test_a_journal_of_another_broker_is_left_alone(path: str) -> None:
    """While the path is not ours, nothing replaces what is there; records are taken all the same."""
    journal, _, _ = Journal.open(path)
    os.unlink(path)
    written(path, records(3))
    journal.ours = False
    journal.append(records(1))
    journal.compact(records(1))
    assert replayed(path) == (records(3), None)
    journal.ours = True
    journal.compact(records(1))
    journal.close()
    assert replayed(path) == (records(1), None)
