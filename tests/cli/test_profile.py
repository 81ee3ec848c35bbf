"""What `grn profiles show` makes of a profile, as text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from grn.cli.profile import notes, tables
from grn.cli.table import print_tables
from grn.rules.estimate import Margin, Profile
from grn.rules.report import profiles_report

if TYPE_CHECKING:
    from collections.abc import Callable

    Shown = Callable[[Profile], str]

DAY_S = 86400.0
BEGAN = 1.7e9


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return a function that shows a profile 80 columns wide, as words with one space between."""
    monkeypatch.setenv("COLUMNS", "80")

    def show(profile: Profile) -> str:
        (report,) = profiles_report([profile], Margin())
        print_tables(tables(report), notes(report))
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        return " ".join(text.split())

    return show


def learnt(*peaks: tuple[int, str], **last: Any) -> Profile:
    """Return a profile of one run a day."""
    profile = Profile("python train.py " + "--option 1 " * 12, "NVIDIA A100-SXM4-80GB")
    for day, (mib, source) in enumerate(peaks):
        more = last if day == len(peaks) - 1 else {}
        profile.succeeded(mib, 10.0 * (day + 1), source, at=BEGAN + day * DAY_S, **more)
    return profile


def date(at: float) -> str:
    """Write a date as people here read it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def test_the_estimate_and_what_it_rests_on(shown: Shown) -> None:
    """What the next run books, the largest peak, and what that figure is worth."""
    text = shown(learnt((10240, "sampled"), (9216, "accounting")))
    assert "next run books 10.5 GiB (settled)" in text
    assert "largest peak 10 GiB, sampled: the most that was seen; it may have held more" in text


def test_every_recent_peak_has_its_source_and_date(shown: Shown) -> None:
    """One line for each run, the newest first."""
    text = shown(learnt((1024, "device-delta"), (2048, "accounting")))
    newest = f"2 GiB {date(BEGAN + DAY_S)} accounting"
    oldest = f"1 GiB {date(BEGAN)} device-delta"
    assert f"{newest} {oldest}" in text
    assert f"measured runs 2, {date(BEGAN)} to {date(BEGAN + DAY_S)}" in text


def test_a_censored_peak_is_said(shown: Shown) -> None:
    """That a run had to do with less can be seen."""
    assert "went on with less" in shown(learnt((1024, "sampled"), censored=True))


def test_the_memory_of_a_run_is_shown_up_to_its_maximum(shown: Shown) -> None:
    """Eleven lines, from the least that was held to the most."""
    profile = learnt((1024, "sampled"))
    profile.quantiles_mib = [*range(0, 1000, 100), 1024]
    text = shown(profile)
    assert "0 % 0 MiB 10 % 100 MiB 20 % 200 MiB" in text
    assert "90 % 900 MiB 100 % 1 GiB" in text


def test_durations_and_ends_are_counted(shown: Shown) -> None:
    """How long runs took and how they ended, in one line each."""
    profile = learnt((1024, "sampled"), (1024, "sampled"), (1024, "sampled"))
    profile.failed("oom", 1.0, oom_at_mib=1024)
    text = shown(profile)
    assert "took 10 s to 30 s, median 20 s" in text
    assert "ends 3 ok, 1 oom" in text


def test_two_sizes_under_one_name_are_warned_of(shown: Shown) -> None:
    """The cure is named: types of their own."""
    text = shown(learnt((1024, "sampled"), (1024, "sampled"), (2048, "sampled")))
    assert "the largest peak is 2.0 times the median" in text
    assert "--type" in text


def test_preallocation_is_warned_of(shown: Shown) -> None:
    """A figure that is a framework's habit is not taken for need."""
    profile = learnt((60000, "sampled"))
    assert "warning" not in shown(profile)
    profile.preallocated = True
    assert "looks like preallocation" in shown(profile)


def test_an_unmeasured_type_shows_what_there_is(shown: Shown) -> None:
    """Nothing that is not known is shown as 0."""
    profile = Profile("job", "T4")
    profile.failed("failed", 1.0)
    text = shown(profile)
    assert "next run books a device alone (unmeasured)" in text
    assert "ends 1 failed" in text
    assert "MiB" not in text


def test_a_size_that_was_set_is_told_apart_from_what_was_measured(shown: Shown) -> None:
    """What a person said has no source among measurements."""
    text = shown(Profile("job", "T4", set_mib=4096))
    assert "set by hand 4 GiB" in text
    assert "largest peak" not in text
