"""What is known of one job type, as text for people: `grn profiles show TYPE`.

Promises: every number that a booking rests on is shown with where it comes from; a figure that is not
known is shown as such; it fits 80 columns.
Must not: estimate or judge; the warnings are the broker's.
"""

from __future__ import annotations

import time

from grn.cli.table import Table, format_seconds
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["notes", "tables"]

SOURCES = {
    "accounting": "recorded by the driver",
    "in-process": "reported by the job itself",
    "sampled": "the most that was seen; it may have held more between two looks",
    "device-delta": "the rise of the device's total while the job was alone on it",
}


def tables(profile: Mapping[str, Any]) -> list[Table]:
    """Arrange a profile: what is booked and why, the recent peaks, and the last run's memory."""
    return [
        Table(profile["type"], ("", ""), _facts(profile)),
        Table(
            "peaks of the last runs, newest first",
            (">peak", "ended", "source"),
            [_peak_row(peak) for peak in reversed(profile.get("peaks", ()))],
        ),
        Table(
            "memory of the last run that was followed",
            (">share of the time", ">held at most"),
            [
                (f"{percent} %", format_mib(mib))
                for percent, mib in profile.get("quantiles_mib", {}).items()
            ],
        ),
    ]


def notes(profile: Mapping[str, Any]) -> list[str]:
    """Say what a person should look at before trusting the estimate."""
    return [f"warning: {text}" for text in profile.get("warnings", ())]


def _facts(profile: Mapping[str, Any]) -> list[Sequence[str]]:
    facts = {
        "device model": profile["device_model"],
        "next run books": _estimate(profile),
        "largest peak": _largest(profile),
        "set by hand": _size(profile.get("set_mib")),
        "measured runs": _runs(profile),
        "took": _durations(profile["durations_s"]),
        "ends": _counted(profile["outcomes"]),
    }
    return [(name, fact) for name, fact in facts.items() if fact]


def _estimate(profile: Mapping[str, Any]) -> str:
    mib = profile["estimate_mib"]
    known = "a device alone" if mib is None else format_mib(mib)
    return f"{known} ({profile['state']})"


def _largest(profile: Mapping[str, Any]) -> str:
    source = profile["source"]
    if source is None:
        return ""
    return f"{format_mib(profile['peak_mib'])}, {source}: {SOURCES.get(source, source)}"


def _size(mib: int | None) -> str:
    return "" if mib is None else format_mib(mib)


def _runs(profile: Mapping[str, Any]) -> str:
    first, last = profile.get("first_at"), profile.get("last_at")
    if first is None or last is None:
        return str(profile["runs"])
    if _date(first) == _date(last):
        return f"{profile['runs']}, {_date(last)}"
    return f"{profile['runs']}, {_date(first)} to {_date(last)}"


def _durations(durations_s: Sequence[float]) -> str:
    if not durations_s:
        return ""
    ordered = sorted(durations_s)
    at = (0, (len(ordered) - 1) // 2, -1)
    shortest, median, longest = (format_seconds(ordered[i]) for i in at)
    return median if shortest == longest else f"{shortest} to {longest}, median {median}"


def _counted(outcomes: Sequence[str]) -> str:
    """Count the recent ends: '18 ok, 2 oom'."""
    kinds = dict.fromkeys(outcomes)
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds)


def _peak_row(peak: Mapping[str, Any]) -> Sequence[str]:
    at = "-" if peak["at"] is None else _date(peak["at"])
    more = "; it met an out-of-memory and went on with less" if peak["censored"] else ""
    return format_mib(peak["mib"]), at, peak["source"] + more


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
