"""The keeper of profiles: what it has not written yet, and what it cannot understand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker.keeper import ProfileKeeper
from grn.broker.store import ProfileStore
from grn.cli.stored import StoredProfiles
from grn.errors import JournalError, UsageError
from grn.rules.estimate import Margin
from grn.rules.profiles import ProfileBook
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

    def put_many(_profiles: object) -> None:
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
