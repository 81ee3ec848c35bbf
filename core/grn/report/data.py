"""The data of the page: the history of a span, by columns, so that ten thousand leases stay small.

Promises: unknown stays null; texts are bounded; what was left out for its length is counted and said.
Form (`schema` 1): texts stand once in `words` and are meant by their number; times are whole
milliseconds, `granted` as the step from the lease before, the others as durations; a column that is
null in every lease is one null. The page's own reader of this is `page/data.js`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from grn.report.source import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from grn.report.source import HistoryFile

__all__ = [
    "CAUSES",
    "MOST_LEASES",
    "SCHEMA",
    "Words",
    "device_list",
    "lease_columns",
    "report_data",
]

SCHEMA = 1
MOST_LEASES = 20_000
"""Of more, the newest are drawn: a page of 5 MB is the most that opens at once on a phone."""
CAUSES = ("probe", "fragmentation", "head")

_MOST_BINS = 1440
_MINUTE_S = 60
_MOST_TEXT = 300
_MOST_EVENTS = 500
_MOST_TYPES = 500
_EVENTS = ("broker", "device", "disk", "refused")
_CURVE = 11
_SECOND_MS = 1000


class Words:
    """Texts by number, each of them once."""

    def __init__(self) -> None:
        self.list: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int | None:
        """Return the number of a text, cut to a bounded length."""
        if text is None:
            return None
        short = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
        if short not in self._numbers:
            self._numbers[short] = len(self.list)
            self.list.append(short)
        return self._numbers[short]


class Maker(NamedTuple):
    """Who made the page, and when."""

    host: str
    version: str
    now: float


def report_data(
    history: HistoryFile,
    span: Span,
    maker: Maker,
    *,
    learnt: Iterable[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    limit: int = MOST_LEASES,
) -> dict[str, Any]:
    """Read all that the page shows of a span. `learnt` is what is known of types."""
    words = Words()
    leases = history.rows(span, limit)
    totals = history.totals(span)
    devices = device_list(history.device_rows(), leases, span)
    extent = _extent(history, span, leases, maker.now)
    step_s = _step_s(extent)
    kinds = {kind for kind, *_ in totals[:_MOST_TYPES]}
    return {
        "schema": SCHEMA,
        "host": maker.host,
        "version": maker.version,
        "made_at": round(maker.now, 3),
        "since": span.since,
        "until": min(span.until, maker.now),
        "leases_in_all": sum(count for _, _, count, _ in totals),
        "devices": devices,
        "leases": lease_columns(leases, [device["uuid"] for device in devices], words),
        "totals": [
            [words.number(kind), words.number(outcome), count, peak]
            for kind, outcome, count, peak in totals
            if kind in kinds
        ],
        "types_in_all": len({kind for kind, *_ in totals}),
        "learnt": [_known(profile) for profile in learnt if profile["type"] in kinds],
        "usage": _usage(history, extent, step_s, devices),
        "lost": _lost(history, extent, step_s),
        "events": [_event(*event) for event in history.events(span, _EVENTS, _MOST_EVENTS)],
        "notes": list(notes),
        "words": words.list,
    }


def device_list(
    known: Iterable[tuple[Any, ...]], leases: Sequence[Mapping[str, Any]], span: Span
) -> list[dict[str, Any]]:
    """Return the devices that were there or were used in the span, those without an index last."""
    used = {uuid for lease in leases for uuid in lease["devices"].split()}
    known = list(known)
    # A broker notes all its devices at once, when it starts or one of them changes.
    last = max((seen_at for *_, seen_at in known), default=0.0)
    found: dict[str, dict[str, Any]] = {
        uuid: {
            "uuid": uuid,
            "index": index,
            "model": model,
            "total_mib": total,
            "capacity_mib": cap,
        }
        for uuid, index, model, total, cap, seen_at in known
        if uuid in used or seen_at >= min(span.since, last)
    }
    for lease in leases:
        for uuid in lease["devices"].split():
            if uuid not in found:
                found[uuid] = {
                    "uuid": uuid, "index": None, "model": None, "total_mib": None, "capacity_mib": None
                }  # fmt: skip
    return list(found.values())


def lease_columns(
    leases: Sequence[Mapping[str, Any]], uuids: Sequence[str], words: Words
) -> dict[str, Any]:
    """Turn leases, in order of granting, into columns."""
    place = {uuid: number for number, uuid in enumerate(uuids)}
    base = leases[0]["granted_at"] if leases else 0.0
    granted = [round((lease["granted_at"] - base) * _SECOND_MS) for lease in leases]
    columns: dict[str, list[Any]] = {
        "id": [lease["id"] for lease in leases],
        "granted": [now - before for before, now in zip([0, *granted], granted, strict=False)],
        "ended": [_between(lease, "granted_at", "ended_at") for lease in leases],
        "freed": [_between(lease, "ended_at", "freed_at") for lease in leases],
        "waited": [_ms(lease["waited_s"]) for lease in leases],
        "ran": [_ms(lease["ran_s"]) for lease in leases],
        "devices": [[place[uuid] for uuid in lease["devices"].split()] for lease in leases],
        "curve": [_curve(lease["curve"]) for lease in leases],
        "cpu_s": [None if lease["cpu_s"] is None else round(lease["cpu_s"], 1) for lease in leases],
    }
    for name in ("type", "label", "engine", "policy", "outcome", "source"):
        columns[name] = [words.number(lease[name]) for lease in leases]
    for name in (
        "uid", "pid", "priority", "gpus", "booked_mib", "probe", "exit_code", "signal", "peak_mib",
        "rss_mib",
    ):  # fmt: skip
        columns[name] = [lease[name] for lease in leases]
    thin = {
        name: None if all(value is None for value in column) else column
        for name, column in columns.items()
    }
    return {"count": len(leases), "base": round(base, 3), **thin}


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds * _SECOND_MS)


def _between(lease: Mapping[str, Any], first: str, last: str) -> int | None:
    if lease[first] is None or lease[last] is None:
        return None
    return max(0, round(float(lease[last] - lease[first]) * _SECOND_MS))


def _curve(text: str | None) -> list[int | None] | None:
    """Return ten steps and the maximum; None if the column holds anything else."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, list) or len(found) != _CURVE:
        return None
    return [round(value) if isinstance(value, (int, float)) else None for value in found]


def _extent(
    history: HistoryFile, span: Span, leases: Sequence[Mapping[str, Any]], now: float
) -> Span:
    """Return the part of the span in which anything happened, from a whole minute on."""
    first_use, last_use = history.usage_extent(span)
    begins = [first_use] if first_use is not None else []
    ends = [last_use + _MINUTE_S] if last_use is not None else []
    if leases:
        begins.append(leases[0]["granted_at"])
        ends += [lease["freed_at"] or lease["ended_at"] or now for lease in leases]
    since = max(span.since, min(begins, default=span.since))
    until = min(span.until, now, max(ends, default=span.until))
    whole = math.floor(since / _MINUTE_S) * _MINUTE_S
    return Span(float(whole), max(until, whole + _MINUTE_S))


def _step_s(extent: Span) -> int:
    minutes = (extent.until - extent.since) / _MINUTE_S
    return _MINUTE_S * max(1, math.ceil(minutes / _MOST_BINS))


def _usage(
    history: HistoryFile, extent: Span, step_s: int, devices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return means over bins of `step_s`, by device; minutes without a row count as nothing held."""
    per_bin = step_s // _MINUTE_S
    rows: dict[str, dict[int, tuple[Any, ...]]] = defaultdict(dict)
    bins: set[int] = set()
    for number, uuid, minutes, *means in history.usage(extent, step_s):
        share = min(1.0, minutes / per_bin)
        held = [None if mean is None else round(mean * share) for mean in means[:3]]
        rows[uuid][number] = (*held, None if means[3] is None else round(means[3], 1))
        bins.add(number)
    order = sorted(bins)
    return {
        "base": extent.since,
        "step_s": step_s,
        "bins": order,
        "devices": [_columns_of(rows.get(device["uuid"]), order) for device in devices],
    }


def _columns_of(
    rows: Mapping[int, tuple[Any, ...]] | None, order: Sequence[int]
) -> dict[str, list[Any]] | None:
    if rows is None:
        return None
    missing = (0, 0, 0, None)
    columns = zip(*(rows.get(number, missing) for number in order), strict=True)
    names = ("booked", "measured", "foreign", "utilisation")
    return dict(zip(names, map(list, columns), strict=True))


def _lost(history: HistoryFile, extent: Span, step_s: int) -> dict[str, Any]:
    sums: dict[int, dict[str, float]] = defaultdict(dict)
    for number, cause, mib_s in history.lost(extent, step_s):
        sums[number][cause] = mib_s
    order = sorted(sums)
    columns = {cause: [round(sums[number].get(cause, 0)) for number in order] for cause in CAUSES}
    return {"base": extent.since, "step_s": step_s, "bins": order, **columns}


def _known(profile: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("device_model", "estimate_mib", "peak_mib", "runs", "source", "state")
    return {"type": _bounded(profile["type"]), **{key: profile[key] for key in keys}}


def _event(at: float, name: str, data: str) -> dict[str, Any]:
    """Return what the page shows of an event: short texts and numbers, by the event's own keys."""
    try:
        found = json.loads(data)
    except ValueError:
        found = {}
    shown: dict[str, Any] = {"at": at, "event": name}
    keep: Callable[[Any], bool] = lambda value: isinstance(value, (str, int, float))  # noqa: E731
    if isinstance(found, dict):
        shown |= {
            key: _bounded(value) if isinstance(value, str) else value
            for key, value in found.items()
            if keep(value) and key not in ("at", "event", "schema")
        }
    return shown


def _bounded(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
