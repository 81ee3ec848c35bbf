"""A real headless Chromium for the tests of pages, and what they ask of it.

Without one, or without the package that drives it, these tests are skipped with the reason. Screenshots
go to the folder in GRN_TEST_SCREENS, else to the test's own.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

__all__ = [
    "GROUP",
    "Window",
    "browser",
    "chromium",
    "launched",
    "lies_over",
    "needs",
    "open_window",
    "screens",
    "screens_in",
]

GROUP = "browser"
"""Tests with a browser run in one worker: several at once would starve two cores."""
PATIENCE_MS = 60_000
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SCREENS = {
    "wide": {"viewport": {"width": 1240, "height": 900}},
    "dark": {"viewport": {"width": 1240, "height": 900}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 360, "height": 740},
        "device_scale_factor": 2,
        "has_touch": True,
        "is_mobile": True,
    },
}


def chromium() -> str | None:
    """Return the browser to use: GRN_TEST_CHROMIUM, else what is in the path."""
    given = os.environ.get("GRN_TEST_CHROMIUM")
    return given or next((path for name in _NAMES if (path := shutil.which(name))), None)


def needs() -> str:
    """Return the path of the browser, or skip the test."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in GRN_TEST_CHROMIUM")
    pytest.importorskip("playwright.sync_api", reason="drives Chromium: pip install playwright")
    return path


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """Run a browser; no event loop of one's own can run in this thread meanwhile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Its sandbox needs rights that a container's root does not have.
        made = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module."""
    with launched(needs()) as made:
        yield made


def screens_in(folder: Path) -> str:
    """Return the folder for screenshots: GRN_TEST_SCREENS, else this one."""
    chosen = os.environ.get("GRN_TEST_SCREENS") or str(folder)
    os.makedirs(chosen, exist_ok=True)
    return chosen


@pytest.fixture
def screens(tmp_path: Path) -> str:
    """Return the folder for screenshots of a test."""
    return screens_in(tmp_path)


class Window(NamedTuple):
    """A page, and what it complained of."""

    page: Page
    complaints: list[str]

    def asked_for(self) -> list[str]:
        """Return the addresses of all that was loaded beside the page itself."""
        found: list[str] = self.page.evaluate(
            "performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        return found

    def boxes(self) -> list[dict[str, Any]]:
        """Return where each block of the timeline is: id, device, x, y, w, h in the window."""
        found: list[dict[str, Any]] = self.page.evaluate("window.grn.boxes()")
        return found

    def overflows(self) -> list[str]:
        """Name what makes the page wider than its window; what scrolls by itself may be wider."""
        found: list[str] = self.page.evaluate(
            """() => {
              const wide = document.documentElement.clientWidth;
              if (document.documentElement.scrollWidth <= wide) return [];
              return [...document.querySelectorAll("body *")]
                .filter((one) => !one.closest(".scroll") && one.getBoundingClientRect().right > wide + 0.5)
                .map((one) => `${one.tagName}#${one.id}`).concat("page");
            }"""
        )
        return found


def open_window(browser: Browser, address: str, kind: str = "wide", **options: Any) -> Window:
    """Open an address in a window of its own and note errors of any kind; times are in UTC."""
    wishes: dict[str, Any] = {**_SCREENS[kind], "timezone_id": "UTC", **options}
    page = browser.new_context(**wishes).new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []

    def told(message: Any) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"{message.type}: {message.text}")

    page.on("console", told)
    page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
    page.on(
        "dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss())
    )
    page.goto(address, wait_until="load")
    page.wait_for_function("window.grn !== undefined")
    return Window(page, complaints)


def lies_over(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Tell whether two blocks of one row cover the same spot, by more than a hair."""
    hair = 0.05
    return (
        a["device"] == b["device"]
        and min(a["x"] + a["w"], b["x"] + b["w"]) - max(a["x"], b["x"]) > hair
        and min(a["y"] + a["h"], b["y"] + b["h"]) - max(a["y"], b["y"]) > hair
    )
