"""`grn profiles`, with a broker and without one."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker.store import FILE_NAME, ProfileStore
from grn.rules.estimate import Profile
from grn.rules.profiles import to_record

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Grn = Callable[..., subprocess.CompletedProcess[str]]
    Listed = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def listed(grn: Grn) -> Listed:
    """Return the profiles that `grn profiles WORDS --json` prints."""

    def run(*words: str) -> list[dict[str, Any]]:
        done = grn("profiles", *words, "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["schema"] == 1
        profiles: list[dict[str, Any]] = answer["profiles"]
        return profiles

    return run


@pytest.mark.usefixtures("broker")
def test_set_is_settled_for_every_model(listed: Listed) -> None:
    """What was set is the estimate on each device model, without a margin."""
    listed("set", "train", "--memory", "3GiB")
    (profile,) = listed()
    assert (profile["type"], profile["estimate_mib"]) == ("train", 3072)
    assert (profile["state"], profile["device_model"]) == ("settled", "Simulated 8 GiB")


@pytest.mark.usefixtures("broker")
def test_show_is_about_one_type(listed: Listed) -> None:
    """`show` prints that type only."""
    for name in ("one", "two"):
        listed("set", name, "--memory", "1GiB")
    assert [profile["type"] for profile in listed("show", "two")] == ["two"]


def test_show_tells_what_the_estimate_rests_on(env: BrokerEnv, grn: Grn) -> None:
    """Peaks with source and date, and the memory of the last run, as the last broker left them."""
    profile = Profile("train", "T4")
    profile.succeeded(3072, 12.0, "device-delta", at=1.7e9)
    profile.quantiles_mib = [1024] * 10 + [3072]
    store = ProfileStore(os.path.join(env.environ["GRN_STATE_DIR"], FILE_NAME))
    store.put_many({("train", "T4"): to_record(profile)})
    store.close()
    done = grn("profiles", "show", "train")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "largest peak 3 GiB, device-delta" in words
    assert "2023-11-1" in words
    assert "100 % 3 GiB" in words


@pytest.mark.usefixtures("broker")
def test_forget_one_and_all(listed: Listed) -> None:
    """`forget TYPE` keeps the others, `forget --all` keeps none."""
    for name in ("one", "two", "three"):
        listed("set", name, "--memory", "1GiB")
    listed("forget", "two")
    assert {profile["type"] for profile in listed()} == {"one", "three"}
    assert listed("forget", "--all") == []
    assert listed() == []


@pytest.mark.usefixtures("broker")
def test_a_mistyped_type_names_the_nearest(grn: Grn, listed: Listed) -> None:
    """A type that is not known is a usage error with what was probably meant."""
    listed("set", "python train.py", "--memory", "1GiB")
    done = grn("profiles", "show", "python trian.py")
    assert done.returncode == 2
    assert "did you mean 'python train.py'" in done.stderr


def test_what_was_learnt_is_there_without_a_broker(env: BrokerEnv, listed: Listed) -> None:
    """After the broker has left, profiles can be listed, changed and forgotten; none is started."""
    env.start()
    listed("set", "train", "--memory", "3GiB")
    env.stop()
    assert listed()[0]["estimate_mib"] == 3072
    listed("set", "train", "--memory", "4GiB")
    assert listed()[0]["estimate_mib"] == 4096
    listed("forget", "train")
    assert listed() == []
    assert not os.path.exists(env.socket)


def test_a_change_without_a_broker_reaches_the_next_one(env: BrokerEnv, listed: Listed) -> None:
    """What is set while no broker runs is known to the next broker."""
    listed("set", "train", "--memory", "4GiB", "--device-model", "Simulated 8 GiB")
    env.start()
    assert listed()[0]["estimate_mib"] == 4096


def test_nothing_learnt_is_said(env: BrokerEnv, grn: Grn) -> None:
    """Without any profile the text says so, and no file is made by looking."""
    done = grn("profiles")
    assert (done.returncode, "Nothing was learnt" in done.stdout) == (0, True)
    assert not os.path.exists(env.environ["GRN_STATE_DIR"])


@pytest.mark.parametrize(
    "words",
    [
        ["forget"],
        ["forget", "train", "--all"],
        ["set", "train"],
        ["set", "train", "--memory", "much"],
        ["shwo", "train"],
    ],
)
def test_bad_words_are_usage_errors(grn: Grn, words: list[str]) -> None:
    """What cannot be meant ends with 2, prints nothing on stdout, and no traceback."""
    done = grn("profiles", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
