"""The profile store: kept across opens, damage set aside, limits obeyed."""

from __future__ import annotations

import os
import sqlite3
import stat
from typing import TYPE_CHECKING

import pytest

from grn.broker.store import ProfileStore
from grn.errors import JournalError

if TYPE_CHECKING:
    from pathlib import Path

A100, T4 = "A100", "T4"


class Clock:
    """A clock that is one second further each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Go on by a second."""
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the store is to be; its folder is missing."""
    return str(tmp_path / "state" / "profiles.sqlite")


def reopened(path: str) -> dict[tuple[str, str], dict[str, object]]:
    """Load everything with a store that is opened for it."""
    store = ProfileStore(path)
    found = store.load(100)
    store.close()
    return found


def test_profiles_are_kept(path: str) -> None:
    """What was put is there after the next open, per type and device model."""
    store = ProfileStore(path)
    store.put_many({("train", A100): {"peaks": [1, 2]}, ("train", T4): {"peaks": [3]}})
    store.put_many({("train", T4): {"peaks": [3, 4], "ok": True}})
    store.close()
    assert reopened(path) == {
        ("train", A100): {"peaks": [1, 2]},
        ("train", T4): {"peaks": [3, 4], "ok": True},
    }


def test_the_newest_come_first_up_to_the_limit(path: str) -> None:
    """A limit keeps the profiles that were used last."""
    store = ProfileStore(path, clock=Clock())
    for name in ("a", "b", "c"):
        store.put_many({(name, T4): {}})
    store.put_many({("a", T4): {}})
    assert [key[0] for key in store.load(2)] == ["a", "c"]
    assert store.prune(1) == 2
    assert [key[0] for key in store.load(9)] == ["a"]


def test_a_type_is_forgotten_on_one_model_or_on_all(path: str) -> None:
    """Forgetting says how many profiles went."""
    store = ProfileStore(path)
    store.put_many({("x", A100): {}, ("x", T4): {}, ("y", T4): {}, ("z", T4): {}})
    assert store.delete("x") == 2
    assert store.delete("y", A100) == 0
    assert store.delete("y", T4) == 1
    assert list(store.load(9)) == [("z", T4)]


def test_types_with_bytes_that_are_not_utf8_are_kept(path: str) -> None:
    """A command with undecodable bytes is a type like any other."""
    odd = os.fsdecode(b"run \xff")
    store = ProfileStore(path)
    store.put_many({(odd, T4): {"label": odd}})
    assert reopened(path) == {(odd, T4): {"label": odd}}
    assert store.delete(odd) == 1


def test_folder_and_files_are_private(path: str) -> None:
    """The folder that is made is 0700, and each file in it 0600, under any umask."""
    before = os.umask(0)
    try:
        store = ProfileStore(path)
        store.put_many({("x", T4): {}})
    finally:
        os.umask(before)
    folder = os.path.dirname(path)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    modes = {
        stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) for name in os.listdir(folder)
    }
    assert modes == {0o600}


def test_two_stores_can_be_open(path: str) -> None:
    """A reader beside the broker sees what was committed."""
    store, other = ProfileStore(path), ProfileStore(path)
    store.put_many({("x", T4): {}})
    assert list(other.load(9)) == [("x", T4)]


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_file_that_is_no_database_is_set_aside(
    path: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The store starts empty and works; the old file is kept under another name, and it is said."""
    os.mkdir(os.path.dirname(path))
    for number in (1, 2):
        with open(path, "wb") as file:
            file.write(content)
        store = ProfileStore(path)
        assert store.load(9) == {}
        store.put_many({("x", T4): {}})
        store.close()
        with open(f"{path}.corrupt-{number}", "rb") as file:
            assert file.read() == content
        assert f"{path}.corrupt-{number}" in store.problem
    assert f"set_aside={path}.corrupt-1" in caplog.text


def test_damage_inside_is_found_at_the_start(path: str) -> None:
    """Overwritten pages do not wait to be read until a job depends on them."""
    store = ProfileStore(path)
    store.put_many({(f"type {n}", T4): {"data": "x" * 200} for n in range(500)})
    store.close()
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 20000)
    assert reopened(path) == {}
    assert os.path.exists(f"{path}.corrupt-1")


def test_damage_while_open_begins_anew(path: str) -> None:
    """A file that is damaged under a running broker costs the profiles, not the broker."""
    store = ProfileStore(path)
    store.put_many({("x", T4): {}})
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store._db.execute("PRAGMA writable_schema = ON")
    store._db.execute("UPDATE sqlite_schema SET rootpage = 99 WHERE name = 'profiles'")
    store._db.execute("PRAGMA writable_schema = RESET")
    store._db.commit()
    store.put_many({("y", T4): {}})
    assert list(store.load(9)) == [("y", T4)]
    assert f"{path}.corrupt-1" in store.problem
    assert os.path.exists(f"{path}.corrupt-1")


def test_a_sound_store_has_no_problem(path: str) -> None:
    """Nothing is said of a store of which nothing was lost."""
    store = ProfileStore(path)
    store.put_many({("x", T4): {}})
    store.load(9)
    assert store.problem == ""


def test_an_unreadable_profile_is_left_out(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """One bad entry is named and does not hide the others."""
    store = ProfileStore(path)
    store.put_many({("x", T4): {}, ("y", T4): {}})
    with store._db as db:
        db.execute("UPDATE profiles SET data = x'c1' WHERE type = 'x'")
    assert list(store.load(9)) == [("y", T4)]
    assert list(store.load(9)) == [("y", T4)]
    assert caplog.text.count("profile-unreadable type=x") == 1
    assert "1 profile(s)" in store.problem
    assert "'x'" in store.problem


def test_an_unreadable_profile_that_was_learnt_anew_is_no_problem(path: str) -> None:
    """What replaces the bad entry ends the warning."""
    store = ProfileStore(path)
    store.put_many({("x", T4): {}})
    with store._db as db:
        db.execute("UPDATE profiles SET data = x'c1'")
    assert store.of_type("x") == {}
    store.put_many({("x", T4): {"runs": 1}})
    assert store.problem == ""
    assert store.of_type("x") == {("x", T4): {"runs": 1}}


def test_a_newer_schema_is_refused_untouched(path: str) -> None:
    """A file of a newer version is neither misread nor changed."""
    ProfileStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")
    with pytest.raises(JournalError, match="schema 2, this GRN knows 1"):
        ProfileStore(path)
    assert not os.path.exists(f"{path}.corrupt-1")


def test_a_full_disk_is_a_journal_error_and_passes(path: str) -> None:
    """The old profiles stay, and writing works again when there is room."""
    store = ProfileStore(path)
    store.put_many({("x", T4): {"v": 1}})
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalError, match="full; make room"):
        store.put_many({("x", T4): {"v": 2}, ("big", T4): {"data": "x" * 100_000}})
    assert store.load(9) == {("x", T4): {"v": 1}}
    store._db.execute("PRAGMA max_page_count = 100000")
    store.put_many({("x", T4): {"v": 3}})
    assert store.load(9) == {("x", T4): {"v": 3}}


def test_a_read_only_disk_is_a_journal_error(path: str) -> None:
    """Profiles can still be read; writing says what is wrong."""
    store = ProfileStore(path)
    store.put_many({("x", T4): {}})
    store._db.execute("PRAGMA query_only = ON")
    with pytest.raises(JournalError, match="readonly database; make room or make it writable"):
        store.put_many({("y", T4): {}})
    assert list(store.load(9)) == [("x", T4)]


@pytest.mark.parametrize("kind", ["folder", "symlink"])
def test_something_else_in_its_place_is_refused(path: str, kind: str) -> None:
    """A folder or a symlink is not opened, with a message that names the cure."""
    os.mkdir(os.path.dirname(path))
    if kind == "folder":
        os.mkdir(path)
    else:
        os.symlink("elsewhere", path)
    with pytest.raises(JournalError, match=r"cannot open the profile store .*GRN_STATE_DIR"):
        ProfileStore(path)
