"""The data of a page: small, complete, and honest about what is unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grn.report.data import device_list
from grn.report.page import as_json
from grn.report.source import HistoryFile, Span
from tests.report.madehistory import START, lease_row, make_history, write_history
from tests.report.pages import Made, data_of

DEVICE = ("GPU-1", 0, "A30", 24_000, 23_000, START)


def _leases(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the columns as the page does."""
    columns = data["leases"]
    granted = columns["base"]
    found = []
    for number in range(columns["count"]):
        granted += columns["granted"][number] / 1000
        lease = {
            name: column[number]
            for name, column in columns.items()
            if isinstance(column, list) and name != "granted"
        }
        words = {
            name: None if lease.get(name) is None else data["words"][lease[name]]
            for name in ("type", "label", "engine", "outcome", "source")
        }
        found.append({**lease, **words, "granted_at": granted})
    return found


def test_columns_hold_every_lease(made: Made) -> None:
    """What the history knows of each lease can be read back from the columns."""
    with HistoryFile(made.history) as file:
        rows = file.rows(made.span, 1000)
    read = _leases(made.data)
    assert [lease["id"] for lease in read] == [row["id"] for row in rows]
    for lease, row in zip(read, rows, strict=True):
        for name in ("type", "label", "engine", "outcome", "booked_mib", "peak_mib", "exit_code"):
            assert lease[name] == row[name]
        assert lease["granted_at"] == pytest.approx(row["granted_at"], abs=0.01)
        assert lease["ended"] / 1000 == pytest.approx(
            row["ended_at"] - row["granted_at"], abs=0.002
        )
        assert lease["curve"] == json.loads(row["curve"])
        assert [made.data["devices"][n]["uuid"] for n in lease["devices"]] == [row["devices"]]


def test_unknown_stays_unknown(history_path: str) -> None:
    """A lease of which only its grant is known has null everywhere else, and no column is made of 0."""
    row = lease_row(seq=1, id="a-1", type="t", granted_at=START, devices="GPU-1")
    write_history(history_path, [row], [DEVICE])
    columns = data_of(history_path, START - 1, START + 10)["leases"]
    for name in (
        "ended",
        "freed",
        "waited",
        "ran",
        "booked_mib",
        "peak_mib",
        "outcome",
        "curve",
        "cpu_s",
    ):
        assert columns[name] is None, name


def test_span_takes_what_overlaps_it(history_path: str) -> None:
    """A lease belongs to the span if any part of its life does; what has not ended, always."""
    times = {"before": (-50, -10), "into": (-10, 5), "within": (10, 20), "out-of": (90, 200), "after": (100, 110)}  # fmt: skip
    rows = [
        lease_row(seq=n, id=name, type="t", granted_at=START + begin, ended_at=START + end)
        for n, (name, (begin, end)) in enumerate(times.items())
    ]
    rows.append(lease_row(seq=9, id="runs", type="t", granted_at=START - 99))
    rows.append(
        lease_row(seq=10, id="drained", type="t", granted_at=START - 30, ended_at=START - 9, freed_at=START + 1)
    )  # fmt: skip
    write_history(history_path, rows, [])
    data = data_of(history_path, START, START + 100)
    assert set(data["leases"]["id"]) == {"into", "within", "out-of", "runs", "drained"}
    assert data["leases_in_all"] == 5


def test_only_the_newest_are_drawn_and_all_are_counted(history_path: str) -> None:
    """Beyond the limit the newest leases stay; totals count all."""
    last = make_history(history_path, 200)
    data = data_of(history_path, START - 1, last + 1, limit=50)
    assert data["leases"]["count"] == 50
    assert data["leases"]["id"][-1] == "a1b2c3-200"
    assert data["leases_in_all"] == 200 == sum(number for _, _, number, _ in data["totals"])


def test_long_texts_are_bounded(history_path: str) -> None:
    """A label of a megabyte does not make a page of a megabyte."""
    row = lease_row(seq=1, id="a", type="t" * 5000, label="x" * 1_000_000, granted_at=START)
    event = json.dumps({"message": "m" * 100_000, "nested": {"a": 1}})
    write_history(history_path, [row], [], events=[(1, START, "refused", event)])
    assert len(as_json(data_of(history_path, START - 1, START + 1))) < 5000


def test_damaged_columns_are_left_out(history_path: str) -> None:
    """A curve or an event that is no such thing is shown as unknown, and the page is made."""
    curves = ["{", "[1, 2]", '{"a": 1}', "null", '["a", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]']
    rows = [
        lease_row(seq=n, id=f"a-{n}", type="t", granted_at=START + n, curve=curve)
        for n, curve in enumerate(curves)
    ]
    write_history(
        history_path, rows, [], events=[(1, START, "device", "not json"), (2, START, "disk", "[]")]
    )
    data = data_of(history_path, START - 1, START + 99)
    assert data["leases"]["curve"] == [None, None, None, None, [None, *range(1, 11)]]
    assert [event["event"] for event in data["events"]] == ["device", "disk"]


def test_usage_is_averaged_over_longer_spans(history_path: str) -> None:
    """Many days are told in few steps whose means keep the sum; a minute without a row counts as 0."""
    minutes = range(0, 14 * 1440, 2)  # every second minute
    usage = [(START + 60 * m, "GPU-1", 1000.0, 600.0, 0.0, 50.0) for m in minutes]
    write_history(history_path, [], [DEVICE], usage=usage)
    data = data_of(history_path, START, START + 14 * 86400)
    told = data["usage"]
    assert len(told["bins"]) <= 1440
    assert told["step_s"] > 60
    own = told["devices"][0]
    held = sum(own["booked"]) * told["step_s"]
    assert held == pytest.approx(1000.0 * 60 * len(minutes), rel=0.02)
    assert sum(own["measured"]) / sum(own["booked"]) == pytest.approx(0.6, rel=0.01)
    assert {round(value) for value in own["utilisation"]} == {50}


def test_lost_capacity_keeps_its_sum(history_path: str) -> None:
    """MiB times seconds by cause are summed up, whatever the step."""
    lost = [(START + 60 * m, cause, 100.0 + m) for m in range(3000) for cause in ("probe", "head")]
    write_history(
        history_path,
        [],
        [DEVICE],
        lost=lost,
        usage=[(START, "GPU-1", 1, 1, 0, None), (START + 60 * 2999, "GPU-1", 1, 1, 0, None)],
    )
    told = data_of(history_path, START, START + 60 * 3001)["lost"]
    assert sum(told["probe"]) == pytest.approx(sum(100 + m for m in range(3000)), rel=1e-3)
    assert sum(told["fragmentation"]) == 0


def test_devices_are_those_of_the_span() -> None:
    """A device that was there or was used is shown; one of an earlier set-up is not."""
    known = [
        ("old", 0, "A", 1, 1, START - 500),
        ("old-but-used", 1, "A", 1, 1, START - 500),
        ("idle", 2, "A", 1, 1, START - 100),
    ]
    leases = [lease_row(devices="old-but-used never-told")]
    found = device_list(known, leases, Span(START, START + 10))
    assert [device["uuid"] for device in found] == ["old-but-used", "idle", "never-told"]


def test_json_cannot_end_its_element() -> None:
    """Whatever is in it, the text has no character that means anything in HTML, and is ASCII."""
    text = "</script><!-- & \u2028 \U0001f600 \ud800"
    made = as_json({"words": [text]})
    assert not set("<>&") & set(made)
    assert made.isascii()
    assert json.loads(made) == {"words": [text]}
