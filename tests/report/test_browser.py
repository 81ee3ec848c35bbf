"""The page of a report, in a real browser."""

from __future__ import annotations

import os
import re
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from grn.report.source import HistoryFile
from tests.browser import lies_over, open_window
from tests.report.madehistory import START, lease_row, write_history
from tests.report.pages import Made, make_page

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!-- \u2028 \x07"
DEVICE = ("GPU-1", 0, HOSTILE[:60], 10_000, 10_000, START)


def _leases_by_id(made: Made) -> dict[str, dict[str, object]]:
    with HistoryFile(made.history) as file:
        return {row["id"]: row for row in file.rows(made.span, 1000)}


def test_page_draws_every_lease(browser: Browser, made: Made, screens: str) -> None:
    """All leases are on the timeline, nothing is loaded from elsewhere, and nothing goes wrong."""
    window = open_window(browser, made.address)
    assert {box["id"] for box in window.boxes()} == set(_leases_by_id(made))
    assert window.page.inner_text("#figures dd").startswith("300")
    window.page.screenshot(path=os.path.join(screens, "report-wide.png"), full_page=True)
    assert window.asked_for() == []
    assert window.complaints == []


def test_blocks_never_lie_on_one_another(browser: Browser, made: Made) -> None:
    """No two blocks of a row share a spot, and none stands above its device."""
    window = open_window(browser, made.address)
    boxes = window.boxes()
    by_device = {box["device"]: [b for b in boxes if b["device"] == box["device"]] for box in boxes}
    assert len(by_device) == 4
    for own in by_device.values():
        assert [(a["id"], b["id"]) for a, b in combinations(own, 2) if lies_over(a, b)] == []
    rows = window.page.evaluate(
        "window.grn.page.timeline.rows.rows.map((row) => [row.top, row.device.total_mib])"
    )
    assert all(top == total for top, total in rows)


def test_height_is_the_booking(browser: Browser, made: Made) -> None:
    """All pieces of a lease together are as high as what was booked for it."""
    window = open_window(browser, made.address)
    leases = _leases_by_id(made)
    heights: dict[str, float] = {}
    for box in window.boxes():
        heights[box["id"]] = heights.get(box["id"], 0.0) + box["h"]
    row = window.page.evaluate("window.grn.page.timeline.rows.rows[0]")
    for name, height in heights.items():
        booked = leases[name]["booked_mib"]
        assert isinstance(booked, int)
        # Each piece is drawn at least one pixel high.
        assert height == pytest.approx(booked * row["height"] / row["top"], abs=3)


def test_pointing_shows_the_lease(browser: Browser, made: Made, screens: str) -> None:
    """The tip is about the lease under the pointer: its label, numbers and end."""
    window = open_window(browser, made.address)
    leases = _leases_by_id(made)
    large = [b for b in window.boxes() if b["w"] > 12 and b["h"] > 12 and b["y"] + b["h"] < 880]
    assert len(large) > 20
    for box in large[:: len(large) // 12]:
        window.page.mouse.move(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
        tip = window.page.inner_text("#tip")
        lease = leases[box["id"]]
        assert f"lease\n{box['id']}" in tip
        assert str(lease["label"] or lease["type"]) in tip
        assert f"device {box['device']}" in tip
    window.page.screenshot(path=os.path.join(screens, "report-tip.png"))
    window.page.mouse.move(3, 3)
    assert window.page.is_hidden("#tip")
    assert window.complaints == []


def test_keys_reach_every_lease(browser: Browser, made: Made) -> None:
    """From the first lease of a row, the right arrow goes through all of them, and each is said."""
    window = open_window(browser, made.address)
    page = window.page
    page.focus("#rows")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    said = []
    row = [b["id"] for b in window.boxes() if b["device"] == 0]
    in_row = list(dict.fromkeys(row))
    for _ in in_row:
        said.append(page.evaluate("window.grn.page.timeline.chosen.lease.id"))
        assert page.inner_text("#said")
        page.keyboard.press("ArrowRight")
    assert sorted(said) == sorted(in_row)
    page.keyboard.press("ArrowDown")
    assert page.evaluate("window.grn.page.timeline.chosen.device") == 1
    page.keyboard.press("Escape")
    assert page.is_hidden("#chosen")


def test_zoom_shows_less_time(browser: Browser, made: Made) -> None:
    """Plus narrows what is shown, All brings everything back, and dragging moves it."""
    page = open_window(browser, made.address).page
    span = "window.grn.page.view.to - window.grn.page.view.from"
    whole = page.evaluate(span)
    page.click("[data-do=in]")
    assert page.evaluate(span) == pytest.approx(whole / 2)
    before = page.evaluate("window.grn.page.view.from")
    at = page.locator("#rows").bounding_box()
    assert at is not None
    page.mouse.move(at["x"] + 700, at["y"] + 100)
    page.mouse.down()
    page.mouse.move(at["x"] + 500, at["y"] + 100, steps=4)
    page.mouse.up()
    assert page.evaluate("window.grn.page.view.from") > before
    page.click("[data-do=all]")
    assert page.evaluate(span) == pytest.approx(whole)


def test_phone_has_no_sideways_scroll(browser: Browser, made: Made, screens: str) -> None:
    """At 360 pixels nothing sticks out, and a tap tells of the lease."""
    window = open_window(browser, made.address, "phone")
    assert window.overflows() == []
    box = max(window.boxes(), key=lambda b: min(b["w"], 60) * b["h"])
    window.page.evaluate("(y) => window.scrollTo(0, y - 200)", box["y"])
    box = next(b for b in window.boxes() if b["id"] == box["id"])
    window.page.touchscreen.tap(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
    assert f"lease\n{box['id']}" in window.page.inner_text("#chosen")
    assert window.overflows() == []
    window.page.screenshot(path=os.path.join(screens, "report-phone.png"))
    assert window.complaints == []


def test_dark_screen_gets_a_dark_page(browser: Browser, made: Made, screens: str) -> None:
    """The page is dark where the system is, and on paper it is light."""
    window = open_window(browser, made.address, "dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert window.page.evaluate(paper) == "rgb(20, 24, 29)"
    window.page.screenshot(path=os.path.join(screens, "report-dark.png"))
    window.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert window.page.evaluate(paper) == "rgb(255, 255, 255)"
    window.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert window.page.evaluate(paper) == "rgb(20, 24, 29)"
    assert window.complaints == []


def test_page_prints(browser: Browser, made: Made, screens: str) -> None:
    """It can be printed, without the buttons, on a few sheets."""
    window = open_window(browser, made.address)
    pdf = window.page.pdf(path=os.path.join(screens, "report.pdf"), format="A4")
    sheets = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 2 <= sheets <= 12
    window.page.emulate_media(media="print")
    assert window.page.is_hidden(".tools")
    assert window.overflows() == []
    assert window.complaints == []


def test_hostile_names_are_only_text(browser: Browser, tmp_path: Path, history_path: str) -> None:
    """A label that is markup is shown as it is, everywhere, and nothing in it runs."""
    lease = {
        "type": HOSTILE, "devices": "GPU-1", "booked_mib": 4000, "peak_mib": 3000, "outcome": "oom",
        "engine": "<b>x</b>", "source": "<i>", "waited_s": 1.0, "ran_s": 50.0,
    }  # fmt: skip
    rows = [
        lease_row(
            seq=n,
            id=f"x<y>-{n}",
            label=label,
            granted_at=START + n,
            ended_at=START + n + 50,
            **lease,
        )
        for n, label in enumerate((HOSTILE, HOSTILE.encode() + b"\xff"))
    ]
    event = '{"type": "<script>", "message": "</script><img src=y onerror=alert(2)>"}'
    write_history(history_path, rows, [DEVICE], events=[(1, START + 5, "refused", event)])
    made = make_page(history_path, str(tmp_path / "page.html"), START - 10, START + 100)
    window = open_window(browser, made.address)
    assert "</script…" in window.page.inner_text("#kinds")
    for place in ("#ooms-table", "#types-table", "#leases-table", "#events-table"):
        assert "</script><img src=" in window.page.inner_text(place)
    box = window.boxes()[0]
    window.page.mouse.click(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
    assert "</script><img src=x onerror=alert(1)>" in window.page.inner_text("#chosen")
    assert window.page.evaluate("document.images.length") == 0
    assert window.page.evaluate("document.scripts.length") == 2
    assert window.page.evaluate("document.querySelectorAll('b:not(.key), i').length") == 0
    assert window.complaints == []


def test_running_lease_lasts_until_the_page_was_made(
    browser: Browser, tmp_path: Path, history_path: str
) -> None:
    """A lease without an end reaches to the end; one of which nothing is known is drawn as well."""
    rows = [
        lease_row(seq=1, id="a-1", type="t", granted_at=START, devices="GPU-1", booked_mib=100),
        lease_row(seq=2, id="a-2", type="t", granted_at=START + 5, devices="GPU-gone"),
        lease_row(seq=3, id="a-3", type="cpu", granted_at=START + 6, ended_at=START + 8),
    ]
    write_history(history_path, rows, [DEVICE])
    made = make_page(history_path, str(tmp_path / "page.html"), START - 10, START + 100)
    window = open_window(browser, made.address)
    ends = {b["id"]: b["x"] + b["w"] for b in window.boxes()}
    assert ends["a-1"] == pytest.approx(ends["a-2"], abs=1)
    assert ends["a-3"] < ends["a-1"] / 2
    assert "running" in window.page.inner_text("#leases-table")
    assert window.complaints == []


def test_nothing_ran(browser: Browser, tmp_path: Path, history_path: str) -> None:
    """A span without a lease makes a page that says so."""
    write_history(history_path, [], [DEVICE])
    made = make_page(history_path, str(tmp_path / "page.html"), START - 10, START + 100)
    window = open_window(browser, made.address)
    assert "No lease was granted" in window.page.inner_text("#leases-table")
    assert window.complaints == []


def test_filter_finds_words(browser: Browser, made: Made) -> None:
    """The table of leases shows those that have all words, and says how many."""
    page = open_window(browser, made.address).page
    page.fill("#filter", "memory distil")
    wanted = [
        lease
        for lease in _leases_by_id(made).values()
        if lease["outcome"] == "oom" and "distil" in f"{lease['type']} {lease['label']}"
    ]
    assert page.locator("#leases-table tbody tr").count() == len(wanted)
    assert page.inner_text("#filtered").startswith(f"{len(wanted)} of 300")


def test_probe_makes_room_when_others_begin(
    browser: Browser, tmp_path: Path, history_path: str
) -> None:
    """A probe whose need was foreseen while it ran is as high as it held from then on."""
    ended = {"ended_at": START + 100, "type": "t", "devices": "GPU-1", "outcome": "ok"}
    rows = [
        lease_row(
            seq=1, id="probe", granted_at=START, booked_mib=10_000, peak_mib=3000, probe=1, **ended
        ),
        lease_row(
            seq=2, id="beside", granted_at=START + 50, booked_mib=7000, peak_mib=3000, **ended
        ),
    ]
    write_history(history_path, rows, [DEVICE])
    made = make_page(history_path, str(tmp_path / "page.html"), START - 10, START + 100)
    window = open_window(browser, made.address)
    boxes = window.boxes()
    assert [box["id"] for box in boxes] == ["probe", "probe", "beside"]
    assert not [(a, b) for a, b in combinations(boxes, 2) if lies_over(a, b)]
    whole, narrow, beside = boxes
    assert narrow["h"] == pytest.approx(0.3 * whole["h"], abs=1)
    assert beside["h"] == pytest.approx(0.7 * whole["h"], abs=1)
    assert narrow["x"] == pytest.approx(beside["x"], abs=0.5)
    for box in (whole, narrow):
        window.page.mouse.move(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
        assert "lease\nprobe" in window.page.inner_text("#tip")
    assert window.complaints == []
