"""Damage to a journal of real leases: a beginning of it is in use, the rest is reported.

What `tests/edges/test_journal.py` checks with records that mean nothing is checked here up to the
books: whatever is left of the file, they are those of some moment that was, never over capacity.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker.journal import Journal
from tests.reliability import histories
from tests.reliability.faultydisk import FAULTS, FaultyOs, Life

if TYPE_CHECKING:
    from pathlib import Path

BOOT = "one"
RECORDS = 24


@pytest.fixture(scope="module")
def day() -> list[dict[str, Any]]:
    """Return the records of a day, as they come back from the file."""
    return histories.decoded(histories.written(histories.day(1, RECORDS), BOOT))[1:]


@pytest.fixture(scope="module")
def content(day: list[dict[str, Any]]) -> bytes:
    """Return the file of that day."""
    return histories.written(day, BOOT)


@pytest.fixture(scope="module")
def ends(content: bytes) -> list[int]:
    """Return where each record ends, the header first."""
    found, at = [], 0
    while at < len(content):
        at += 8 + int.from_bytes(content[at : at + 4], "big")
        found.append(at)
    return found


def opened(path: str, content: bytes) -> tuple[list[dict[str, Any]], str | None]:
    """Open a journal of this content."""
    with open(path, "wb") as file:
        file.write(content)
    journal, found, report = Journal.open(path, boot=BOOT)
    journal.close()
    return found, report


def test_every_beginning_gives_books_that_hold(day: list[dict[str, Any]]) -> None:
    """After any number of records the books are whole, and those with the end are the last ones."""
    held = [histories.books(day[:count]) for count in range(len(day) + 1)]
    assert held[0] == {}
    assert max(map(len, held)) > 3
    for before, after, record in zip(held, held[1:], day, strict=False):
        changed = {x for x in before.keys() | after.keys() if before.get(x) != after.get(x)}
        assert changed <= {record.get("lease")}


def test_cut_at_every_byte(
    tmp_path: Path, day: list[dict[str, Any]], content: bytes, ends: list[int]
) -> None:
    """The records that are whole are replayed, and it is reported whenever anything was cut off."""
    path = str(tmp_path / "journal")
    for size in range(len(content)):
        found, report = opened(path, content[:size])
        whole = max(sum(end <= size for end in ends) - 1, 0)
        assert found == day[:whole], size
        assert (report is None) == (size == 0 or size in ends), size


def test_every_byte_flipped(
    tmp_path: Path, day: list[dict[str, Any]], content: bytes, ends: list[int]
) -> None:
    """The records before the damage are replayed, the damage is reported."""
    rng = random.Random(5)  # noqa: S311 - damage, not secrets
    path = str(tmp_path / "journal")
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= rng.randrange(1, 256)
        found, report = opened(path, bytes(damaged))
        assert found == day[: max(sum(end <= at for end in ends) - 1, 0)], at
        assert report is not None


def test_blocks_lost_or_mixed_up(tmp_path: Path, content: bytes, day: list[dict[str, Any]]) -> None:
    """Zeros, other blocks and repeats anywhere leave a beginning; nothing is made up."""
    rng = random.Random(6)  # noqa: S311 - the same
    path = str(tmp_path / "journal")
    known = [repr(record) for record in day]
    for _ in range(1000):
        damaged = bytearray(content)
        at, size = rng.randrange(len(content)), rng.choice((1, 7, 64, 512, 4096))
        other = rng.randrange(len(content))
        damaged[at : at + size] = rng.choice(
            (bytes(size), content[other : other + size], b"", rng.randbytes(size))
        )
        found, _ = opened(path, bytes(damaged))
        # A block of whole records may be lost or told twice: what is told was told once.
        assert all(repr(record) in known for record in found)
        histories.fresh_machine().restore(found, 0.0)


_WORSE = (None, -1, 1 << 62, 1.5, "", "x", [], [1], {"a": 1}, True, b"\xff", ["GPU-0", "GPU-0"])


def test_a_record_without_its_fields_is_skipped_and_reported(day: list[dict[str, Any]]) -> None:
    """Each field of each record left out, and replaced by each wrong value: never an exception.

    What is restored keeps every promise of the books, and a record that was not taken in is named.
    """
    rng = random.Random(7)  # noqa: S311 - the same
    reported = 0
    for number, record in enumerate(day):
        for key in record:
            for value in (..., *rng.sample(_WORSE, 3)):
                changed = {k: v for k, v in record.items() if k != key}
                if value is not ...:
                    changed[key] = value
                machine = histories.fresh_machine()
                start = max(0, number - 8)
                said = machine.restore([*day[start:number], changed, *day[number + 1 :][:4]], 0.0)
                reported += bool(said)
                assert all("skipped" in line for line in said)
                machine.check_invariants()
                assert machine.draining == {
                    x.id for x in machine.leases.values() if x.state == "draining"
                }
    assert reported > 300


def test_a_skipped_record_costs_nobody_else(day: list[dict[str, Any]]) -> None:
    """Leases before and behind it are restored; the report says which record, and what of it."""
    grants = [record for record in day if record["ev"] == "grant"][:3]
    broken = {key: value for key, value in grants[1].items() if key != "owner"}
    machine = histories.fresh_machine()
    said = machine.restore([grants[0], broken, grants[2]], 0.0)
    assert list(machine.leases) == [grants[0]["lease"], grants[2]["lease"]]
    assert said == ["record 2 of the journal (grant) is skipped: owner: None"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("lasting", [0, 4])
def test_the_nth_operation_on_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, lasting: int
) -> None:
    """For n from 1 to 200: what was acknowledged is there, what was not is not, nothing raises."""
    failed = 0
    for at in range(1, 201):
        disk = FaultyOs(at, fault, lasting=lasting)
        life = Life(str(tmp_path / f"j{at}"))
        life.run(disk, monkeypatch)
        failed += disk.failed
        assert all(life.path in said for said in life.said)
        assert len(life.kept) >= 5
    assert failed > 190
