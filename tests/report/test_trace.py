"""The trace is what Chrome's and Perfetto's readers take: by the Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from grn.report.data import device_list
from grn.report.source import HistoryFile
from grn.report.trace import trace
from tests.report.madehistory import START, lease_row

if TYPE_CHECKING:
    from tests.report.pages import Made

Event = dict[str, Any]


@pytest.fixture(scope="module")
def told(made: Made) -> dict[str, Any]:
    """The trace of the made history, through JSON."""
    with HistoryFile(made.history) as file:
        rows = file.rows(made.span, 1000)
        devices = device_list(file.device_rows(), rows, made.span)
    found: dict[str, Any] = json.loads(
        json.dumps(trace(rows, devices, now=made.span.until), allow_nan=False)
    )
    return found


def _of(told: dict[str, Any], phase: str) -> list[Event]:
    return [event for event in told["traceEvents"] if event["ph"] == phase]


def test_events_have_what_their_phase_needs(told: dict[str, Any]) -> None:
    """Each event has a name, a process and a thread; slices last, counters count, times are whole."""
    assert {event["ph"] for event in told["traceEvents"]} == {"M", "X", "C", "i"}
    for event in told["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
    assert all(isinstance(e["dur"], int) and e["dur"] > 0 for e in _of(told, "X"))
    assert all(isinstance(v, int) and v >= 0 for e in _of(told, "C") for v in e["args"].values())
    assert all(event["s"] == "t" for event in _of(told, "i"))


def test_processes_are_devices(told: dict[str, Any]) -> None:
    """Each device is a process with a name and a place."""
    names = {e["pid"]: e["args"]["name"] for e in _of(told, "M") if e["name"] == "process_name"}
    assert list(names.values()) == [f"device {n}: NVIDIA A30" for n in range(4)]
    order = [e["args"]["sort_index"] for e in _of(told, "M") if e["name"] == "process_sort_index"]
    assert order == sorted(order)


def test_each_lease_is_a_slice(told: dict[str, Any], made: Made) -> None:
    """As many slices as leases, with the numbers of the lease beside it."""
    slices = {event["args"]["id"]: event for event in _of(told, "X")}
    assert set(slices) == set(made.data["leases"]["id"])
    assert {"booked_mib", "peak_mib", "outcome"} <= set(slices["a1b2c3-1"]["args"])
    ooms = [e for e in slices.values() if e["args"]["outcome"] == "oom"]
    assert len(ooms) == len(_of(told, "i")) > 0


def test_slices_of_a_lane_follow_one_another(told: dict[str, Any]) -> None:
    """No two slices of one lane overlap, and every lane has a name."""
    lanes = defaultdict(list)
    for event in _of(told, "X"):
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    named = {(e["pid"], e["tid"]) for e in _of(told, "M") if e["name"] == "thread_name"}
    assert set(lanes) <= named


def test_counters_fit_the_device_and_end_at_zero(told: dict[str, Any]) -> None:
    """Booked never exceeds a device, and when all is over nothing is counted."""
    by_counter = defaultdict(list)
    for event in _of(told, "C"):
        by_counter[event["pid"], event["name"]].append(event)
    assert {name for _, name in by_counter} == {"booked MiB", "measured MiB"}
    for (_, name), events in by_counter.items():
        assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
        assert events[-1]["args"]["MiB"] == 0
        if name == "booked MiB":
            assert max(e["args"]["MiB"] for e in events) <= 24 * 1024


def test_leases_of_several_devices_and_of_none() -> None:
    """A lease of two devices is a slice on both; one without a device has a place of its own."""
    rows: list[dict[str, Any]] = [
        {
            **dict.fromkeys(("ended_at", "freed_at", "outcome", "curve", "booked_mib", "probe")),
            **row,
        }
        for row in (
            lease_row(id="a-1", type="t", granted_at=START, devices="G0 G1", booked_mib=5),
            lease_row(id="a-2", type="cpu", granted_at=START + 1),
        )
    ]
    for row in rows:
        for name in ("engine", "policy", "uid", "pid", "peak_mib", "source", "waited_s", "ran_s",
                     "exit_code", "signal", "cpu_s", "rss_mib"):  # fmt: skip
            row.setdefault(name, None)
    devices = [{"uuid": u, "index": n, "model": None} for n, u in enumerate(("G0", "G1"))]
    told = trace(rows, devices, now=START + 60)
    assert [e["pid"] for e in _of(told, "X") if e["args"]["id"] == "a-1"] == [1, 2]
    assert [(e["pid"], e["dur"]) for e in _of(told, "X") if e["args"]["id"] == "a-2"] == [
        (3, 59_000_000)
    ]


def test_probe_counts_for_what_it_held_when_others_begin() -> None:
    """What is booked never exceeds the device, though a probe is booked all of it at first."""
    names = ("freed_at", "outcome", "curve", "engine", "policy", "uid", "pid", "source", "waited_s",
             "ran_s", "exit_code", "signal", "cpu_s", "rss_mib")  # fmt: skip
    both = {
        **dict.fromkeys(names),
        "type": "t",
        "devices": "G0",
        "ended_at": START + 100,
        "peak_mib": 3000,
    }
    rows = [
        lease_row(id="a-1", granted_at=START, booked_mib=10_000, probe=1, **both),
        lease_row(id="a-2", granted_at=START + 50, booked_mib=7000, probe=0, **both),
    ]
    told = trace(rows, [{"uuid": "G0", "index": 0, "model": None}], now=START + 200)
    levels = [(e["ts"], e["args"]["MiB"]) for e in _of(told, "C") if e["name"] == "booked MiB"]
    assert levels[0] == (0, 10_000)
    assert max(mib for _, mib in levels) == 10_000
    assert levels[-1] == (100_000_000, 0)
