"""How people name moments."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from grn.errors import UsageError
from grn.history.moments import parse_moment

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2026, 11, 30, 9, 15, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local time be UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", "2026-11-30 09:15"),
        ("90s", "2026-11-30 09:13:30"),
        ("2h", "2026-11-30 07:15"),
        ("1.5h", "2026-11-30 07:45"),
        ("3d", "2026-11-27 09:15"),
        ("2w", "2026-11-16 09:15"),
        ("today", "2026-11-30"),
        ("Yesterday", "2026-11-29"),
        ("yesterday 22:00", "2026-11-29 22:00"),
        ("today 8:05", "2026-11-30 08:05"),
        ("09:00", "2026-11-30 09:00"),
        ("9:15", "2026-11-30 09:15"),
        ("22:30:15", "2026-11-29 22:30:15"),
        ("2026-11-02", "2026-11-02"),
        ("2026-11-02 06:30", "2026-11-02 06:30"),
        ("2026-11-02T06:30", "2026-11-02 06:30"),
        ("2026-11-02T06:30:00+02:00", "2026-11-02 04:30"),
        ("2026-11-02t06:30z", "2026-11-02 06:30"),
        (" @1700000000 ", "2023-11-14 22:13:20"),
    ],
)
def test_is_read(text: str, moment: str) -> None:
    """Durations, days, times of day and ISO; a time of day is the last one that has been."""
    expected = datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()
    assert parse_moment(text, NOW) == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_without_a_zone_it_is_local_time(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Midnight is that of where the machine is, on the day of a change of the clock too."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    for day in ("2026-11-30", "2026-10-25", "2026-03-29"):
        said = time.localtime(parse_moment(f"{day} 12:00", NOW))
        assert time.strftime("%Y-%m-%d %H:%M", said) == f"{day} 12:00"


@pytest.mark.parametrize(
    "text",
    ["", "  ", "soon", "2026", "5", "5x", "s", "-2h", "25:00", "yesterday 7", "2026-13-01", "@x", "@nan", "tomorrow", "99999999999999999d"],
)  # fmt: skip
def test_what_is_no_moment_is_refused_with_what_would_do(text: str) -> None:
    """The message quotes the text and shows forms that are read."""
    with pytest.raises(UsageError, match="yesterday") as caught:
        parse_moment(text, NOW, what="--since")
    assert "--since" in caught.value.message
    assert repr(text) in caught.value.message
