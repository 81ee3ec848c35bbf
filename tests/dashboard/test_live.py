"""The live page, in a real browser, on a real broker."""

from __future__ import annotations

import os
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tests.browser import Window, open_window

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser

    from tests.env import BrokerEnv

    NewBoard = Callable[..., BrokerEnv]
    AddressOf = Callable[[BrokerEnv], str]

HOSTILE = "</script><img src=x onerror=alert(1)>"


def _until(window: Window, condition: str, *args: Any) -> None:
    window.page.wait_for_function(condition, arg=args[0] if args else None)


def _shows(window: Window, place: str, text: str) -> None:
    _until(
        window, "([at, text]) => document.querySelector(at).innerText.includes(text)", [place, text]
    )


def _lie_on_one_another(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Tell whether two blocks have a time and a height in common; ends are stamped a moment late."""
    together_s = min(a["to"], b["to"]) - max(a["from"], b["from"])
    common = [min(p[1], q[1]) - max(p[0], q[0]) for p in a["parts"] for q in b["parts"]]
    return together_s > 0.25 and max(common) > 1


def test_page_follows_a_job_through_its_life(
    browser: Browser, new_board: NewBoard, address_of: AddressOf, screens: str
) -> None:
    """A job that waits is shown with its reason, then as it runs, then as it ended; no step by hand."""
    env = new_board("sim:1x10000MiB")
    window = open_window(browser, address_of(env))
    _shows(window, "#running", "No job runs.")
    talker = env.talker()
    first = talker.acquire("train", memory_mib=7000, label="first of all")
    _shows(window, "#running", "first of all")
    asked = talker.ask("train", memory_mib=5000, label="waits its turn")
    _shows(window, "#waiting", "waits its turn")
    assert "5000 MiB" in window.page.inner_text("#waiting")
    assert "6.84 GiB of 9.77 GiB booked" in window.page.inner_text("#bars")
    window.page.screenshot(path=os.path.join(screens, "dashboard-simulated.png"))
    talker.release(first, exit_code=3)
    second = talker.granted(asked)
    _shows(window, "#running", "waits its turn")
    _shows(window, "#recent", "failed (3)")
    _shows(window, "#waiting", "Nobody waits.")
    talker.release(second)
    _shows(window, "#running", "No job runs.")
    assert {box["id"] for box in window.boxes()} == {first["lease"], second["lease"]}
    assert set(window.asked_for()) <= {f"{address_of(env)}stream"}
    assert window.complaints == []


def test_pointing_at_a_block_that_grows(
    browser: Browser, new_board: NewBoard, address_of: AddressOf
) -> None:
    """On the live timeline, too, the tip is about the lease under the pointer; its end moves on."""
    env = new_board("sim:1x10000MiB")
    window = open_window(browser, address_of(env))
    lease = env.talker().acquire("train", memory_mib=7000, label="grows")
    _until(window, "() => window.grn.boxes().length > 0")
    ends = "window.grn.page.timeline.rows.rows[0].blocks[0].to"
    before = window.page.evaluate(ends)
    _until(window, f"(before) => {ends} > before + 1", before)
    window.page.evaluate("document.querySelector('#rows').scrollIntoView({ block: 'center' })")
    window.page.click("[data-do=all]")
    (box,) = window.boxes()
    window.page.mouse.move(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
    tip = window.page.inner_text("#tip")
    assert f"lease\n{lease['lease']}" in tip
    assert "grows" in tip
    assert "running" in tip
    assert window.complaints == []


def test_page_comes_back_with_the_broker(
    browser: Browser, new_board: NewBoard, address_of: AddressOf
) -> None:
    """Without a broker the page says so; the next one at its address is found, with what ran before."""
    env = new_board("sim:1x10000MiB")
    window = open_window(browser, address_of(env))
    talker = env.talker()
    lease = talker.acquire("train", memory_mib=7000, label="before")
    talker.release(lease)
    _shows(window, "#recent", "before")
    env.environ["GRN_HTTP"] = address_of(env).removeprefix("http://").rstrip("/")
    env.stop()
    _shows(window, "#link", "no connection to the broker")
    env.start()
    _shows(window, "#link", "live")
    # The next broker remembers nothing of it; the history does.
    _shows(window, "#leases-table", "before")
    assert {box["id"] for box in window.boxes()} == {lease["lease"]}
    # That a connection was refused meanwhile is what the browser notes.
    assert [text for text in window.complaints if "ERR_" not in text] == []


def test_hostile_names_are_only_text(
    browser: Browser, new_board: NewBoard, address_of: AddressOf
) -> None:
    """Names of jobs that are markup are shown as they are, running, waiting and ended."""
    env = new_board("sim:1x10000MiB")
    window = open_window(browser, address_of(env))
    talker = env.talker()
    lease = talker.acquire(HOSTILE, memory_mib=7000, label=f"run {HOSTILE}")
    talker.ask(HOSTILE, memory_mib=7000, label=f"wait {HOSTILE}")
    _shows(window, "#running", f"run {HOSTILE}")
    _shows(window, "#waiting", f"wait {HOSTILE}")
    talker.release(lease)
    _shows(window, "#recent", f"run {HOSTILE}")
    assert window.page.evaluate("document.images.length") == 0
    assert window.complaints == []


def test_phone_has_no_sideways_scroll(
    browser: Browser, new_board: NewBoard, address_of: AddressOf, screens: str
) -> None:
    """At 360 pixels nothing sticks out of the live page."""
    env = new_board("sim:2x10000MiB")
    window = open_window(browser, address_of(env), "phone")
    talker = env.talker()
    for number in range(5):
        talker.ask("python train.py --model resnet", memory_mib=4000, label=f"job {number}")
    _shows(window, "#waiting", "job 4")
    _shows(window, "#running", "job 3")
    assert window.overflows() == []
    window.page.screenshot(path=os.path.join(screens, "dashboard-phone.png"), full_page=True)
    assert window.complaints == []


def test_what_begins_beside_another_never_lies_on_it(
    browser: Browser, new_board: NewBoard, address_of: AddressOf
) -> None:
    """Leases that come while others run have their own place, in whatever order they are told of."""
    env = new_board("sim:1x10000MiB")
    window = open_window(browser, address_of(env))
    talker = env.talker()
    held = [talker.acquire("a", memory_mib=3000)]
    _until(window, "() => window.grn.boxes().length >= 1")
    for number in range(2, 8):
        if len(held) == 3:
            talker.release(held.pop(1))
        held.append(talker.acquire(f"type {number}", memory_mib=3000))
        _until(window, "(wanted) => window.grn.boxes().length >= wanted", number)
    row = window.page.evaluate("""() => {
      const row = window.grn.page.timeline.rows.rows[0];
      const plain = ({ lease, from, to, parts }) => ({ id: lease.id, from, to, parts });
      return { top: row.top, blocks: row.blocks.map(plain) };
    }""")
    assert row["top"] == 10_000
    assert [pair for pair in combinations(row["blocks"], 2) if _lie_on_one_another(*pair)] == []
    assert window.complaints == []
