"""State files of every release are read by this one; see `tests.reliability.states`."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from grn import paths
from grn.broker.journal import boot_id
from tests.reliability import histories
from tests.reliability.states.__main__ import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

STATES = os.path.join(os.path.dirname(__file__), "states")
RELEASES = sorted(x for x in os.listdir(STATES) if os.path.isdir(os.path.join(STATES, x)))
RELEASES = [x for x in RELEASES if not x.startswith("_")]


@pytest.fixture(params=RELEASES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a copy of the files of one release, as private as they were."""
    folder = str(tmp_path / "kept")
    shutil.copytree(os.path.join(STATES, request.param), folder)
    for place in (folder, os.path.join(folder, "queue")):
        os.chmod(place, 0o700)
    return folder


def test_an_older_releases_files_say_the_same(kept: str) -> None:
    """Leases, profiles and the queue are read as the release read them that wrote them."""
    with open(os.path.join(kept, "expected.json"), encoding="ascii") as file:
        expected = json.load(file)
    assert expected["leases"]
    assert expected["profiles"]
    assert len(expected["jobs"]) == 3
    assert read(kept) == expected


def test_a_broker_starts_on_an_older_releases_files(
    kept: str, new_env: Callable[..., BrokerEnv]
) -> None:
    """It takes the journal over (nobody of it lives any more), and knows what was learnt."""
    env = new_env("sim:4x16000MiB", start=False, state_dir=kept)
    with open(os.path.join(kept, "journal"), "rb") as file:
        records = histories.decoded(file.read())[1:]
    with open(paths.beside(env.socket).journal, "wb") as file:
        file.write(histories.written(records, boot_id()))
    env.start()
    status = env.status()
    assert status["leases"] == []
    assert not any("journal" in warning for warning in status["warnings"])
    assert {x["type"] for x in env.talker().profiles()} >= {"train", "caf\udce9"}
