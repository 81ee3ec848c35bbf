"""Looks at an example in a browser: at the live page while it runs, at its report when it has ended.

Without a browser, or the packages for it, nothing is looked at, and `Seen.why_not` says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.browser import Window, chromium, launched, open_window

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from playwright.sync_api import Browser

__all__ = ["Browsing", "Seen"]

_WIDE = {"x": 0, "y": 0, "width": 1240}
_TALL = 1500
_GLANCE_EVERY_S = 0.5


class Seen(NamedTuple):
    """What was there to be seen."""

    why_not: str
    """Why nothing was looked at; '' if something was."""
    live_ids: set[str]
    """The leases on the timeline of the live page, in the end."""
    report_ids: set[str]
    """Those on the timeline of the report."""
    together: int
    """The most leases that the live page showed at once as running."""
    complaints: list[str]
    """Errors of any kind that the browser noted."""


class Browsing:
    """A context around the run of an example; `glance` now and then while it runs."""

    def __init__(self, environ: dict[str, str], screens: str, name: str) -> None:
        """Look at the broker of this environment, to which GRN_HTTP is added."""
        self._environ = environ
        self._screens = screens
        self._name = name
        self._log = f"{environ['GRN_SOCKET']}.log"
        self._path = chromium()
        self._stack = ExitStack()
        self._browser: Browser | None = None
        self._live: Window | None = None
        self._together = 0
        self.seen: Seen | None = None
        environ["GRN_HTTP"] = "127.0.0.1:0"

    @property
    def _why_not(self) -> str:
        if self._path is None:
            return "no Chromium here"
        missing = [name for name in ("playwright", "aiohttp") if find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else ""

    def __enter__(self) -> Browsing:  # noqa: PYI034 - a test's own
        if not self._why_not:
            assert self._path is not None
            self._browser = self._stack.enter_context(launched(self._path))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def glance(self) -> None:
        """Look at the live page, once there is one; take a picture whenever more run than before."""
        if self._browser is None:
            return
        if self._live is None:
            address = _address(self._log)
            if address:
                self._live = open_window(self._browser, address)
            return
        running = self._running(self._live)
        if running > self._together:
            self._together = running
            self._picture(self._live, f"{self._name}-dashboard")

    @staticmethod
    def _running(window: Window) -> int:
        shown = "document.querySelectorAll('#running tbody tr').length"
        return int(window.page.evaluate(shown))

    def _picture(self, window: Window, name: str) -> None:
        height = window.page.evaluate("document.documentElement.scrollHeight")
        clip: Any = {**_WIDE, "height": min(height, _TALL)}
        path = os.path.join(self._screens, f"{name}.png")
        window.page.screenshot(path=path, full_page=True, clip=clip)

    def run(self, argv: list[str], within_s: float) -> tuple[int, str]:
        """Run a command in this environment, glancing all the while; return status and output.

        Raises:
            TimeoutError: it takes longer; it has been killed.
        """
        with tempfile.TemporaryFile() as output:
            run = subprocess.Popen(
                argv, env=self._environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                for _ in range(int(within_s / _GLANCE_EVERY_S)):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        run.wait(_GLANCE_EVERY_S)
                        break
                    self.glance()
                else:
                    raise TimeoutError(f"{argv} has not ended after {within_s} s")
            finally:
                run.kill()
                run.wait()
            output.seek(0)
            return run.returncode, output.read().decode(errors="replace")

    def report(self, ended: int) -> None:
        """Look at both pages when so many leases have ended."""
        if self._browser is None:
            self.seen = Seen(self._why_not, set(), set(), 0, [])
            return
        assert self._live is not None, "the example's broker has served no page"
        self._live.page.wait_for_function(
            "(wanted) => window.grn.page.model.leases.filter((one) => one.freed !== null).length >= wanted",
            arg=ended,
        )
        page = os.path.join(self._screens, f"{self._name}-report.html")
        written = _written(self._environ, page, ended, self._live)
        assert written >= ended, f"{written} leases in the history, {ended} have ended"
        report = open_window(self._browser, f"file://{page}")
        self._picture(report, f"{self._name}-report")
        self.seen = Seen(
            "",
            {box["id"] for box in self._live.boxes()},
            {box["id"] for box in report.boxes()},
            self._together,
            [*self._live.complaints, *report.complaints],
        )


def _address(log: str) -> str:
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            found = re.findall(r"dashboard url=(http://\S+/)", file.read())
    except FileNotFoundError:
        return ""
    return str(found[-1]) if found else ""


def _written(environ: Mapping[str, str], page: str, wanted: int, live: Window) -> int:
    """Make the report; again, if the history was not written to the end yet."""
    for _ in range(30):
        said = subprocess.run(
            ["grn", "report", "-o", page], env=environ, capture_output=True, text=True, check=True
        ).stdout
        count = int(re.findall(r": (\d+) leases", said)[0])
        if count >= wanted:
            return count
        live.page.wait_for_timeout(500)
    return count
