"""Moments as people name them: `2h`, `yesterday`, `22:00`, `2026-11-29T22:00`.

Pure: now is an argument. Promises: what names no zone is local time; what cannot be read is a
`UsageError` that shows what would do. A time of day alone is the last one that has been.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

from grn.errors import UsageError
from grn.rules.units import parse_duration_s

__all__ = ["EXAMPLES", "parse_moment"]

EXAMPLES = "2h, 3d, today, yesterday, 22:00, 'yesterday 22:00', 2026-11-29 or 2026-11-29T22:00"
_WEEK_S = 7 * 86400
_TOO_LATE = 253402300800.0
"""The year 10000, which no calendar here can write."""
_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_moment(text: str, now: float, *, what: str = "time") -> float:
    """Return the moment that `text` names, in seconds since 1970.

    A duration (`90s`, `2h`, `3d`, `1w`) is so long before `now`; `today` and `yesterday` are the day's
    beginning, or with a time of day (`yesterday 22:00`) that moment of it; `@1764450000` is taken
    as it is.

    Raises:
        UsageError: it is none of these.
    """
    said = text.strip().lower()
    found = _named(said, now) if said else None
    if found is None or not 0 <= found < _TOO_LATE:  # not a number is neither
        raise UsageError(f"{what} {text!r} is not a moment: write {EXAMPLES}")
    return found


def _named(said: str, now: float) -> float | None:
    if said == "now":
        return now
    day, _, clock = said.partition(" ")
    readings = (
        _since_1970(said),
        _ago(said, now),
        _on_day(day, clock.strip(), now),
        _iso(said),
        _last_time_it_was(said, now),
    )
    return next((moment for moment in readings if moment is not None), None)


def _since_1970(said: str) -> float | None:
    if not said.startswith("@"):
        return None
    try:
        return float(said[1:])
    except ValueError:
        return None


def _ago(said: str, now: float) -> float | None:
    if said[-1] not in "smhdw":  # a bare number is a year or a mistake, not so many seconds
        return None
    try:
        if said.endswith("w"):
            return now - parse_duration_s(said[:-1]) * _WEEK_S
        return now - parse_duration_s(said)
    except UsageError:
        return None


def _on_day(day: str, clock: str, now: float) -> float | None:
    if day not in _DAYS_AGO:
        return None
    at = _time_of_day(clock) if clock else time()
    if at is None:
        return None
    return _local(_day_of(now) - timedelta(days=_DAYS_AGO[day]), at)


def _iso(said: str) -> float | None:
    if "-" not in said:  # "20261129" and "2026" are read by fromisoformat, and seldom meant
        return None
    try:
        return datetime.fromisoformat(said.upper()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _last_time_it_was(said: str, now: float) -> float | None:
    at = _time_of_day(said)
    if at is None:
        return None
    today = _day_of(now)
    moment = _local(today, at)
    return moment if moment <= now else _local(today - timedelta(days=1), at)


def _time_of_day(said: str) -> time | None:
    if ":" not in said:
        return None
    try:
        return time.fromisoformat(said.zfill(5) if said.count(":") == 1 else said)
    except ValueError:
        return None


def _day_of(now: float) -> date:
    return datetime.fromtimestamp(now).date()  # noqa: DTZ006 - the local day is meant


def _local(day: date, at: time) -> float:
    return datetime.combine(day, at).timestamp()
