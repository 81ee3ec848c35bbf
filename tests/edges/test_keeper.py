"""The keeper of profiles: what it has not written yet, and what it cannot understand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker.keeper import ProfileKeeper
from grn.broker.store import ProfileStore
from grn.cli.stored import StoredProfiles
from grn.errors import JournalError, UsageError
from grn.rules.estimate import Margin, Profile
from grn.rules.profiles import ProfileBook, merge
from grn.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL = "Some 10 GiB"
GOOD = {"window": [[2000, "sampled", None, False]], "runs": 1}
BAD: list[dict[str, Any]] = [
    {"window": None},
    {"window": [5]},
    {"window": [[]]},
    {"window": [["x", "sampled", None, False]]},
    {"window": [[-3]]},
    {"window": [[3000]], "set_mib": "big"},
    {"window": [[3000]], "runs": None},
    {"durations_s": [None]},
    {"outcomes": 7},
    {"peaks": 7},
]


class Kept:
    """A keeper on a loop that never runs, with what it calls."""

    def __init__(self, folder: Path) -> None:
        self.said: list[object] = []
        self.loop = asyncio.new_event_loop()
        self.book = ProfileBook(Margin(0, 0))
        self.store = ProfileStore(str(folder / "profiles.sqlite"))
        self.keeper = ProfileKeeper(
            self.loop,
            self.book,
            self.store,
            max_types=10,
            models=[MODEL],
            failed=self.said.append,
            kept=lambda: self.said.append("kept"),
        )


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """A keeper with an empty store."""
    found = Kept(tmp_path)
    yield found
    found.store.close()
    found.loop.close()


def test_it_lags_until_what_was_learnt_is_written(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker must not leave meanwhile: what is in memory only would be lost with it."""
    kept.book.of("t", MODEL).succeeded(2000, 1.0, "sampled")
    kept.keeper.learnt("t", MODEL)
    assert kept.keeper.lags
    full = JournalError("no room")

    def put_many(*_: object) -> None:
        raise full

    with monkeypatch.context() as broken:
        broken.setattr(kept.store, "put_many", put_many)
        kept.keeper.keep()
    assert kept.said == [full]
    assert kept.keeper.lags
    kept.keeper.keep()
    assert kept.said == [full, "kept"]
    assert not kept.keeper.lags


@pytest.mark.parametrize("record", BAD, ids=str)
def test_a_record_that_is_not_understood_is_measured_anew(
    kept: Kept, record: dict[str, Any]
) -> None:
    """It is named, hides nothing else, and can be forgotten: by name and with all others."""
    for words in ({"type": "odd"}, {}):
        kept.store.put_many({("odd", MODEL): record, ("t", MODEL): GOOD})
        assert kept.book.find("odd", MODEL) is None
        listed = kept.keeper.edit({"action": "list"})
        assert [profile["type"] for profile in listed] == ["t"]
        assert "'odd'" in kept.keeper.problem
        kept.keeper.edit({"action": "forget", **words})
        assert kept.store.of_type("odd") == {}
        assert kept.keeper.problem == ""
    with pytest.raises(UsageError, match="no profile of type 'odd'"):
        kept.keeper.edit({"action": "forget", "type": "odd"})


@pytest.mark.parametrize("record", BAD, ids=str)
def test_nor_is_it_in_the_way_without_a_broker(
    kept: Kept, record: dict[str, Any], tmp_path: Path
) -> None:
    """The file can be looked at and healed by the same commands."""
    settings = Settings(state_dir=str(tmp_path))
    for job_type in ("odd", None):
        kept.store.put_many({("odd", MODEL): record, ("t", MODEL): GOOD})
        with StoredProfiles(settings) as stored:
            assert [profile["type"] for profile in stored.profiles()] == ["t"]
            stored.profiles("forget", type=job_type)
        assert kept.store.of_type("odd") == {}


# -- two brokers, one store ---------------------------------------------------------------------------


def _run(at: Kept, mib: int, *, when: float, model: str = MODEL) -> None:
    at.book.of("t", model).succeeded(mib, 1.0, "sampled", at=when)
    at.keeper.learnt("t", model)
    at.keeper.keep()


def test_what_two_brokers_learn_adds_up(kept: Kept, tmp_path: Path) -> None:
    """One broker for each mask, or a home folder on two machines: neither writes the other's peak away."""
    other = Kept(tmp_path)
    try:
        _run(kept, 2000, when=1.0)
        _run(other, 2000, when=2.0)
        _run(kept, 6000, when=3.0)
        _run(other, 2500, when=4.0)
        assert other.book.estimate_mib("t", MODEL, factor=1.0) == 6000
        third = Kept(tmp_path)
        profile = third.book.find("t", MODEL)
        assert profile is not None
        assert [(peak.at, peak.mib) for peak in profile.window] == [
            (1.0, 2000),
            (2.0, 2000),
            (3.0, 6000),
            (4.0, 2500),
        ]
        third.store.close()
        third.loop.close()
    finally:
        other.store.close()
        other.loop.close()


def test_one_broker_is_not_disturbed_by_itself(kept: Kept) -> None:
    """Its own word replaces its own word: what it has forgotten of a window does not come back."""
    for number in range(25):
        _run(kept, 9000 if number == 0 else 1000 + number, when=float(number))
    profile = kept.book.find("t", MODEL)
    assert profile is not None
    assert len(profile.window) == 20
    assert max(profile.peaks) == 1024
    assert profile.raised_mib == 0
    again = kept.store.of_type("t")[("t", MODEL)]
    assert len(again["window"]) == 20


def test_what_another_broker_forgot_is_begun_anew(kept: Kept, tmp_path: Path) -> None:
    """A profile that is gone from the store is written as it is known here."""
    other = Kept(tmp_path)
    _run(kept, 2000, when=1.0)
    other.keeper.edit({"action": "forget", "type": "t"})
    other.store.close()
    other.loop.close()
    _run(kept, 2100, when=2.0)
    assert kept.store.of_type("t")[("t", MODEL)]["runs"] == 2


def test_of_two_words_about_one_type_the_larger_need_counts() -> None:
    """Sizes that were set, raised or bumped, and peaks that no window has room for."""
    mine, theirs = Profile("t", MODEL), Profile("t", MODEL)
    for number in range(20):
        mine.succeeded(1000, 1.0, "sampled", at=100.0 + number)
    theirs.succeeded(8000, 1.0, "sampled", at=1.0)
    theirs.failed("oom", 1.0, oom_at_mib=9000)
    theirs.set_mib = 500
    merge(mine, theirs)
    assert (mine.raised_mib, mine.bump_mib, mine.set_mib, mine.ooms) == (8000, 11700, 500, 1)
    assert (mine.runs, len(mine.window), mine.first_at, mine.last_at) == (20, 20, 1.0, 119.0)
    assert mine.estimate_mib(Margin(0, 0)) == 11700
