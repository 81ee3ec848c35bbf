"""Which records are found, and how the index is used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import JournalError, UsageError
from grn.history import reader
from grn.history.filters import Filters, literal_prefix, matcher
from grn.history.reader import History
from tests.history.conftest import BEGAN

if TYPE_CHECKING:
    from pathlib import Path

    from tests.history.conftest import Book

_NOBODY = 65534


def found(book: Book, last: int | None = None, **filters: Any) -> list[str]:
    """Return the numbers of the leases that are found, in their order."""
    with History(book.path) as history:
        leases = list(history.leases(Filters(**filters), last))
    return [lease.id.removeprefix("ab12cd-") for lease in leases]


def test_the_newest_is_first(book: Book) -> None:
    """As many as are asked for, in the order of their grant."""
    for _ in range(5):
        book.add()
    assert found(book, 3) == ["5", "4", "3"]
    assert found(book) == ["5", "4", "3", "2", "1"]


def test_the_grant_counts_not_the_order_of_writing(book: Book) -> None:
    """A record that was written late stands where it was granted; one without a moment is last."""
    book.add(granted_at=BEGAN + 10)
    book.add(granted_at=None, ended_at=None)
    book.add(granted_at=BEGAN + 5)
    assert found(book) == ["1", "3", "2"]
    assert found(book, type="t*") == ["1", "3", "2"]


def test_types_by_name_and_glob(book: Book) -> None:
    """A name is one type; a glob is all that match, together in the order of their grant."""
    for name in ("train", "train-b", "eval", "train-a", "trai", "TRAIN"):
        book.add(type=name)
    assert found(book, type="train") == ["1"]
    assert found(book, type="train*") == ["4", "2", "1"]
    assert found(book, type="train*", last=2) == ["4", "2"]
    assert found(book, type="*a*") == ["5", "4", "3", "2", "1"]
    assert found(book, type="train-[ab]") == ["4", "2"]
    assert found(book, type="nothing*") == []


def test_a_type_that_holds_wildcards_itself(book: Book) -> None:
    """What `--ignore-arg` leaves in a name can be written as it is."""
    book.add(type="python a[1].py *")
    assert found(book, type="python a[1].py *") == ["1"]


def test_many_types_are_walked_in_order_too(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """More types than are merged, or than are looked at: the answer is the same."""
    for number in range(40):
        book.add(type=f"train-{number % 20:02}", uid=number % 3)
    expected = found(book, type="train-1*", uid=1)
    assert expected == [str(n + 1) for n in reversed(range(40)) if n % 20 >= 10 and n % 3 == 1]
    monkeypatch.setattr(reader, "_MERGED", 5)
    assert found(book, type="train-1*", uid=1) == expected
    monkeypatch.setattr(reader, "_JUMPS", 5)
    assert found(book, type="train-1*", uid=1) == expected


def test_a_glob_with_a_prefix_uses_the_index_of_types(book: Book) -> None:
    """Neither to find the types nor to read their leases is the table walked through."""
    for number in range(30):
        book.add(type=f"t{number % 5}")
    plans: list[str] = []
    with History(book.path) as history:
        db = history._db

        def plan(statement: str) -> None:
            if statement.startswith("SELECT"):
                plans.append(statement)

        db.set_trace_callback(plan)
        assert len(list(history.leases(Filters(type="t[12]"), 4))) == 4
        db.set_trace_callback(None)
        assert plans
        for statement in plans:
            steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert all("INDEX lease_type" in step for step in steps), (statement, steps)


@pytest.mark.parametrize(
    "filters",
    [{}, {"since": BEGAN, "until": BEGAN + 99}, {"type": "train", "since": BEGAN}, {"outcome": "oom"}, {"outcome": "running"}],
)  # fmt: skip
def test_the_newest_are_found_without_sorting_all(book: Book, filters: dict[str, Any]) -> None:
    """What is walked first comes from an index in the order that is wanted."""
    statements: list[str] = []
    with History(book.path) as history:
        history._db.set_trace_callback(statements.append)
        list(history.leases(Filters(**filters)))
        history._db.set_trace_callback(None)
        steps = [row[3] for row in history._db.execute(f"EXPLAIN QUERY PLAN {statements[0]}")]
    assert all("INDEX" in step for step in steps), steps


def test_the_other_filters(book: Book) -> None:
    """User, engine, outcome, label and device; all that are given must hold."""
    book.add(uid=1000, engine="doit", devices="GPU-a GPU-b", label="seed 1")
    book.add(uid=1001, engine="run", devices="GPU-b", label="seed 2", outcome="oom")
    book.add_running(uid=1000, engine="run", devices="GPU-ab")
    assert found(book, uid=1000) == ["3", "1"]
    assert found(book, engine="run") == ["3", "2"]
    assert found(book, outcome="oom") == ["2"]
    assert found(book, outcome="running") == ["3"]
    assert found(book, label="seed ?") == ["2", "1"]
    assert found(book, devices=("GPU-b",)) == ["2", "1"]
    assert found(book, devices=("GPU-a",)) == ["1"]
    assert found(book, devices=("GPU-a", "GPU-ab")) == ["3", "1"]
    assert found(book, devices=()) == []
    assert found(book, uid=1000, engine="run") == ["3"]


def test_a_span_of_time_has_all_that_ran_in_it(book: Book) -> None:
    """What was granted in it, then what had been granted before and went on."""
    book.add(granted_at=BEGAN, ended_at=BEGAN + 1000)
    book.add(granted_at=BEGAN + 1, ended_at=BEGAN + 2)
    book.add_running(granted_at=BEGAN + 3, type="other")
    book.add(granted_at=BEGAN + 100, ended_at=BEGAN + 101)
    book.add(granted_at=BEGAN + 200, ended_at=BEGAN + 300)
    assert found(book, since=BEGAN + 50) == ["5", "4", "3", "1"]
    assert found(book, since=BEGAN + 50, until=BEGAN + 150) == ["4", "3", "1"]
    assert found(book, since=BEGAN + 50, until=BEGAN + 60) == ["3", "1"]
    assert found(book, since=BEGAN + 50, type="t*") == ["5", "4", "1"]
    assert found(book, until=BEGAN + 1) == ["2", "1"]
    assert found(book, since=BEGAN + 9999) == ["3"]


def test_a_lease_is_found_by_a_part_of_its_id(book: Book) -> None:
    """Whole, by its beginning, or by the number that it ends with."""
    for _ in range(12):
        book.add()
    book.add(id="ff00aa-12")
    book.add(id="ff00aa-99")
    with History(book.path) as history:
        assert history.lease("ab12cd-1").id == "ab12cd-1"
        assert history.lease("ff00aa-9").id == "ff00aa-99"
        assert history.lease("7").id == "ab12cd-7"
        assert history.lease("99").id == "ff00aa-99"
        with pytest.raises(UsageError, match="ab12cd-12, ff00aa-12"):
            history.lease("12")
        with pytest.raises(UsageError, match=r"ab12cd-1, ab12cd-10, .*, \.\.\."):
            history.lease("ab")
        for nobody in ("13", "xx", "ab12cd-1%", ""):
            with pytest.raises(UsageError, match="no lease"):
                history.lease(nobody)


def test_what_is_unknown_is_none(book: Book) -> None:
    """A record with nothing but its name has nothing else."""
    book.execute("INSERT INTO lease (seq, id, type) VALUES (1, 'x-1', 't')")
    with History(book.path) as history:
        lease = history.lease("x-1")
    told = lease.as_json()
    assert {name for name, value in told.items() if value is not None} == {
        "seq", "id", "type", "label", "devices", "running",
    }  # fmt: skip
    assert lease.running


def test_it_is_read_while_the_broker_writes(book: Book) -> None:
    """A record that is written while somebody reads is there at the next look."""
    book.add()
    with History(book.path) as history:
        assert len(list(history.leases())) == 1
        book.add()
        assert len(list(history.leases())) == 2


def test_it_is_read_where_nobody_may_write(book: Book) -> None:
    """A folder that is not ours, after the broker has left: nothing is made in it."""
    book.add()
    book.close()
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(book.path, folder)
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555)  # noqa: S103 - others read it, nobody writes
        assert _leases_seen_by_nobody(path) == 1
        assert os.listdir(folder) == [os.path.basename(path)]
        os.chmod(folder, 0o700)


def _leases_seen_by_nobody(path: str) -> int:
    """Count in a child, which is no superuser."""
    pid = os.fork()
    if not pid:
        status = 99
        try:
            if os.geteuid() == 0:
                os.setuid(_NOBODY)
            with History(path) as history:
                status = len(list(history.leases()))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_file_that_is_just_being_made_is_empty(folder: str) -> None:
    """Between its making and its tables there is nothing to be read, and no error."""
    path = os.path.join(folder, "history.sqlite")
    sqlite3.connect(path).close()
    with open(path, "wb"), History(path) as history:
        assert list(history.leases()) == []
        assert history.devices() == []
        with pytest.raises(UsageError):
            history.lease("x")


def test_a_newer_history_is_refused(book: Book) -> None:
    """Its form is not known here."""
    book.execute("PRAGMA user_version = 99")
    with pytest.raises(JournalError, match="schema 99"):
        History(book.path)


def test_a_damaged_file_is_an_error_that_names_it(book: Book) -> None:
    """Not a traceback, and not an empty history."""
    book.close()
    with open(book.path, "r+b") as file:
        file.write(b"no database at all" * 100)
    with pytest.raises(JournalError, match=r"history\.sqlite"):
        History(book.path)


def test_prefixes_and_patterns() -> None:
    """What all names begin with that a glob matches, and which it matches: case counts."""
    assert literal_prefix("train*") == "train"
    assert literal_prefix("a?b*") == "a"
    assert literal_prefix("[ab]") == ""
    assert literal_prefix("plain") == "plain"
    assert matcher("Train*")("Train 1\n2")
    assert not matcher("Train*")("train")


@pytest.mark.parametrize("kind", ["pipe", "folder", "below a file", "no name"])
def test_what_is_no_file_is_said_at_once(tmp_path: Path, kind: str) -> None:
    """SQLite would wait for somebody who writes to the pipe."""
    path = tmp_path / "history.sqlite"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "below a file":
        path.write_text("")
    place = {"below a file": path / "x", "no name": f"{path}\0"}.get(kind, path)
    with pytest.raises(JournalError, match="cannot read the history"):
        History(str(place))
