"""The history's file: what is kept of a row, for how long, and what survives damage and a full disk."""

from __future__ import annotations

import os
import sqlite3
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grn.errors import JournalError
from grn.history.rows import COLUMNS, merge, wished_row
from grn.history.schema import SCHEMA_VERSION
from grn.history.writer import Batch, HistoryWriter
from grn.rules.model import Owner, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    NewWriter = Callable[..., HistoryWriter]

DAY_S = 86400.0
NOW = 1000 * DAY_S


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the history is."""
    return str(tmp_path / "state" / "history.sqlite")


@pytest.fixture
def writer(path: str) -> Iterator[NewWriter]:
    """Open the history; closed at the end."""
    made: list[HistoryWriter] = []

    def make(*, days: int = 90, mib: int = 512, now: float = NOW) -> HistoryWriter:
        made.append(HistoryWriter(path, days=days, mib=mib, clock=lambda: now))
        return made[-1]

    yield make
    for each in made:
        each.close()


def lease(number: int, **columns: Any) -> dict[str, dict[str, Any]]:
    """Return the row of a lease that has ended, by its id."""
    usual = {"type": "t", "granted_at": NOW - 10, "ended_at": NOW - 5, "freed_at": NOW - 5}
    return {f"a-{number}": {"id": f"a-{number}", **usual, **columns}}


def rows(path: str, query: str = "SELECT * FROM lease ORDER BY seq") -> list[dict[str, Any]]:
    """Read rows as maps without what is unknown."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return [{k: row[k] for k in row.keys() if row[k] is not None} for row in db.execute(query)]  # noqa: SIM118 - of a sqlite3.Row
    finally:
        db.close()


def test_a_record_is_completed(path: str, writer: NewWriter):
    """What a later row does not tell stays; what it tells counts, but for when it began."""
    keeper = writer()
    keeper.write(Batch(leases=lease(1, label="mine", booked_mib=5, ended_at=None, freed_at=None)))
    keeper.write(Batch(leases=lease(1, label="", granted_at=1.0, outcome="ok", peak_mib=3)))
    (row,) = rows(path)
    assert (row["label"], row["booked_mib"], row["granted_at"]) == ("mine", 5, NOW - 10)
    assert (row["outcome"], row["peak_mib"], row["ended_at"]) == ("ok", 3, NOW - 5)


def test_a_row_without_a_type_completes_and_makes_none(path: str, writer: NewWriter):
    """A lease of which nothing else is known has no record."""
    keeper = writer()
    keeper.write(Batch(leases=lease(1, freed_at=None)))
    later = {"a-1": {"id": "a-1", "freed_at": 7.0}, "a-2": {"id": "a-2", "freed_at": 8.0}}
    keeper.write(Batch(leases=later))
    assert [(row["id"], row["freed_at"]) for row in rows(path)] == [("a-1", 7.0)]


NUMBERS = [c for c in COLUMNS[6:] if c not in ("policy", "devices", "outcome", "source", "curve")]
VALUES = st.dictionaries(st.sampled_from(NUMBERS), st.one_of(st.none(), st.integers(1, 9)))


@given(st.lists(VALUES, min_size=1, max_size=6))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_known_is_overwritten_by_nothing(path: str, told: list[dict[str, Any]]):
    """However a record comes together, it has of each column the word that counts."""
    with_path = f"{path}-{os.urandom(4).hex()}"
    keeper = HistoryWriter(with_path, days=10**6, mib=512)
    try:
        for each in told:
            row = {"id": "a-1", "type": "t"}
            merge(row, each)
            keeper.write(Batch(leases={"a-1": row}))
    finally:
        keeper.close()
    (found,) = rows(with_path)
    for column in NUMBERS:
        known = [each[column] for each in told if each.get(column) is not None]
        first = column in ("granted_at", "freed_at")
        expected = (known[0] if first else known[-1]) if known else None
        assert found.get(column) == expected


def test_bytes_that_are_no_text_are_kept_in_words(path: str, writer: NewWriter):
    """A command may hold bytes that are not UTF-8."""
    request = Request(1, os.fsdecode(b"a\xffb"), Owner(1, 1), label="Zürich")
    writer().write(Batch(leases=lease(1, **wished_row(request))))
    (row,) = rows(path)
    assert row["type"] == "a\\udcffb"
    assert row["label"] == "Zürich"


def test_the_file_is_private(path: str, writer: NewWriter):
    """Only its owner reads what ran, also in the files beside it."""
    writer().write(Batch(leases=lease(1)))
    folder = os.path.dirname(path)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    for name in os.listdir(folder):
        assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600


# -- bounds ---------------------------------------------------------------------------------------


def test_what_is_too_old_goes(path: str, writer: NewWriter):
    """Records, events and minutes before the last days; what runs stays, however old."""
    old = NOW - 100 * DAY_S
    leases = {
        **lease(1, granted_at=old),
        **lease(2, granted_at=old, ended_at=None, freed_at=None),
        **lease(3),
    }
    events = [(old, "refused", "{}"), (NOW, "refused", "{}")]
    usage = [(old, "d", 1.0, 1.0, 0.0, None), (NOW, "d", 1.0, 1.0, 0.0, 50.0)]
    lost = [(old, "probe", 1.0), (NOW, "probe", 1.0)]
    writer(days=90).write(Batch(leases=leases, events=events, usage=usage, lost=lost))
    assert [row["id"] for row in rows(path)] == ["a-2", "a-3"]
    for query in ("SELECT at FROM event", "SELECT at FROM usage", "SELECT at FROM lost"):
        assert [row["at"] for row in rows(path, query)] == [NOW]


def test_the_file_does_not_outgrow_its_bound(path: str, writer: NewWriter):
    """Of too much, what was recorded first goes, until the rest fits; the file shrinks with it."""
    keeper = writer(mib=1)
    for part in range(12):
        leases: dict[str, Any] = {}
        for number in range(1000 * part, 1000 * part + 1000):
            leases |= lease(number, label="x" * 200)
        keeper.write(Batch(leases=leases))
    for _ in range(20):
        keeper._looked_at = 0.0
        keeper.write(Batch(leases=lease(12000)))
    left = [int(row["id"].partition("-")[2]) for row in rows(path)]
    assert 500 < len(left) < 12000
    assert left == list(range(left[0], 12001))
    (pages,) = rows(
        path, "SELECT page_count * page_size AS bytes FROM pragma_page_count, pragma_page_size"
    )
    assert pages["bytes"] < 1.5 * 2**20


# -- succession -----------------------------------------------------------------------------------


def test_what_a_predecessor_left_open_is_closed(path: str, writer: NewWriter):
    """Its own leases that are held no more, and all from before the machine was started; no others."""
    running = {"ended_at": None, "freed_at": None}
    keeper = writer()
    before_boot = {"b-1": {**lease(1, **running)["a-1"], "id": "b-1", "granted_at": 5.0}}
    others = {"c-1": {**lease(1, **running)["a-1"], "id": "c-1"}}
    mine = {**lease(1, **running), **lease(2, **running), **lease(3, freed_at=None, outcome="ok")}
    keeper.write(Batch(leases={**mine, **before_boot, **others}))
    known = {"first": "a-", "last": "a.", "held": '["a-2"]', "at": NOW, "boot": 100.0}
    keeper.write(Batch(succession=known))
    found = {row["id"]: row for row in rows(path)}
    assert (found["a-1"]["outcome"], found["a-1"]["ended_at"]) == ("lost", NOW)
    assert "ended_at" not in found["a-2"]
    assert (found["a-3"]["outcome"], found["a-3"]["freed_at"]) == ("ok", NOW)
    assert (found["b-1"]["outcome"], found["b-1"]["ended_at"]) == ("lost", 100.0)
    assert "ended_at" not in found["c-1"]


# -- trouble --------------------------------------------------------------------------------------


def test_a_damaged_file_is_set_aside(path: str, writer: NewWriter):
    """A new one is begun with what was to be written, and it is said where the old one is."""
    keeper = writer()
    keeper.write(Batch(leases=lease(1)))
    keeper.close()
    with open(path, "r+b") as file:
        file.write(b"this is no database, whatever it was before")
    again = writer()
    again.write(Batch(leases=lease(2)))
    assert [row["id"] for row in rows(path)] == ["a-2"]
    assert f"{path}.corrupt-1" in again.problem
    assert os.path.exists(f"{path}.corrupt-1")


def test_a_file_of_a_newer_grn_is_left_alone(path: str, writer: NewWriter):
    """It is refused with the reason, and not touched."""
    keeper = writer()
    keeper.write(Batch(leases=lease(1)))
    keeper.close()
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(JournalError, match="newer GRN"):
        writer().write(Batch(leases=lease(2)))
    assert [row["id"] for row in rows(path)] == ["a-1"]


def test_a_full_disk_loses_nothing_that_is_written_again(path: str, writer: NewWriter):
    """All of a batch or nothing is there; afterwards the same batch goes in."""
    keeper = writer()
    keeper.write(Batch(leases=lease(1)))
    assert keeper._db is not None
    (pages,) = keeper._db.execute("PRAGMA page_count").fetchone()
    keeper._db.execute(f"PRAGMA max_page_count = {pages}")
    much: dict[str, Any] = {}
    for number in range(2, 200):
        much |= lease(number, label="x" * 1000)
    with pytest.raises(JournalError, match="full; make room"):
        keeper.write(Batch(leases=much))
    assert len(rows(path)) == 1
    keeper._db.execute("PRAGMA max_page_count = 100000")
    keeper.write(Batch(leases=much))
    assert len(rows(path)) == 199


def test_a_folder_that_cannot_be_written(tmp_path: Path):
    """It is an error with the path, not a crash."""
    (tmp_path / "file").touch()
    keeper = HistoryWriter(str(tmp_path / "file" / "history.sqlite"), days=90, mib=512)
    with pytest.raises(JournalError, match="cannot keep the history"):
        keeper.write(Batch(leases=lease(1)))
