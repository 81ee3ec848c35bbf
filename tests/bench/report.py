"""What the page costs: ten thousand leases in a real browser, and a live page to the broker.

The page is opened from a file in a headless Chromium; "open" is from the start of the navigation until a
frame after everything is drawn. The live pages are connections that read all they are sent, as a
browser's do, while a lease ends and another one begins every half second.
"""

from __future__ import annotations

import http.client
import os
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from grn.history.schema import FILE_NAME
from tests.bench import stage
from tests.bench.command import wall_s
from tests.bench.figures import Figure, median
from tests.bench.upkeep import cpu_s
from tests.browser import chromium
from tests.report.madehistory import START, make_history

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure"]

_LEASES, _DEVICES = 10_000, 16
_HELD, _PAGES = 200, 3
_OPEN_LIMIT_S, _WEIGHT_LIMIT_MIB, _CPU_LIMIT = 3.0, 5.0, 5.0
_TURN_S = 0.5
_DRAWN = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"""


def measure(*, quick: bool) -> list[Figure]:
    """Make a page and open it several times; then look at the broker with live pages."""
    with stage.private() as folder:
        last = make_history(os.path.join(folder, FILE_NAME), _LEASES, devices=_DEVICES)
        page = os.path.join(folder, "page.html")
        moments = ["--since", f"@{START - 60:.0f}", "--until", f"@{last + 60:.0f}"]
        words = [*stage.grn_command(), "report", "-o", page, *moments]
        made = wall_s(words, stage.environment_in(folder))
        weight = os.path.getsize(page) / 2**20
        about = f"{_LEASES:,} leases on {_DEVICES} devices"
        figures = [
            Figure("report", "weight of the page", weight, "MiB", _WEIGHT_LIMIT_MIB, about),
            Figure("report", "grn report", made, "s", None, about),
            _opened(page, about, rounds=2 if quick else 7),
        ]
    return [*figures, *_live(seconds=4 if quick else 20)]


def _opened(page: str, about: str, *, rounds: int) -> Figure:
    path, what = chromium(), "open the page"
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        path = None
    if path is None:
        why = "needs Chromium, and playwright"
        return Figure("report", what, None, "s", _OPEN_LIMIT_S, about, note=why)
    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(rounds):
            window = browser.new_page(viewport={"width": 1240, "height": 900})
            window.goto(f"file://{page}", wait_until="load")
            times.append(window.evaluate(_DRAWN) / 1000)
            window.close()
        version = browser.version
        browser.close()
    note = f"Chromium {version}, slowest of {rounds}: {max(times):.2f} s"
    return Figure(
        "report", what, median(times), "s", _OPEN_LIMIT_S, about, note=note, raw={"s": times}
    )


def _live(*, seconds: float) -> list[Figure]:
    """Measure what the broker spends with no page, then with some."""
    with stage.broker(f"sim:{_DEVICES}x80GiB", flags=("--http", "127.0.0.1:0")) as broker:
        client = broker.client()
        for n in range(
            12
        ):  # types that are known, as on most days: unknown ones are looked at closely
            client.profiles("set", type=f"type {n}", memory_mib=4096)
        held = [client.acquire(f"type {n % 12}", memory_mib=4096) for n in range(_HELD)]
        pids = [broker.process.pid]

        def share() -> float:
            before, began = cpu_s(pids), time.monotonic()
            while time.monotonic() - began < seconds:
                held.pop(0).release()
                held.append(client.acquire("type 0", memory_mib=4096))
                time.sleep(_TURN_S)
            return 100 * (cpu_s(pids) - before) / (time.monotonic() - began)

        without = share()
        with ExitStack() as pages:
            for _ in range(_PAGES):
                pages.enter_context(_page(_address(broker)))
            time.sleep(1.0)  # each is told the last day first
            with_pages = share()
        client.close()
    about = f"{_HELD} leases on {_DEVICES} devices, one of them new each {_TURN_S} s; no page: {without:.2f} %"
    return [
        Figure(
            "report",
            f"broker with {_PAGES} live pages, of a core",
            with_pages,
            "%",
            _CPU_LIMIT,
            about,
        )
    ]


def _address(broker: stage.Stage) -> str:
    with open(os.path.join(broker.folder, "log"), encoding="utf-8") as log:
        return re.findall(r"dashboard url=http://([^/]+)/", log.read())[-1]


@contextmanager
def _page(address: str) -> Iterator[None]:
    """Read what a live page is sent, in a thread, until the end."""
    line = http.client.HTTPConnection(address)
    line.request("GET", "/stream")
    answer: Any = line.getresponse()
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set() and answer.read1(1 << 16):
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield
    ended.set()
    reader.join(30)
    line.close()
