"""A status line under the output of several commands, on a terminal.

Promises: refreshed at most five times a second; taken off before any other line is written and put
back after it, so labelled lines are never cut; gone at the end.
rich is loaded when the line is first shown: a run that is over before then does without.
"""

from __future__ import annotations

import io
import os

from grn.cli.reports import ManyJobs
from grn.supervise.job import OVER, RUNNING, WAITING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from grn.supervise.job import Job
    from grn.supervise.loop import Loop
    from grn.supervise.outputs import Outputs

__all__ = ["Progress"]

_PAUSE_S = 0.2
_ERASE = b"\r\x1b[2K"
_FEWEST_COLUMNS = 20


class Progress(ManyJobs):
    """Says less in lines than `ManyJobs`, and shows the state of all in one."""

    def __init__(self, outputs: Outputs, loop: Loop, jobs: Sequence[Job]) -> None:
        super().__init__(outputs, quiet=False)
        self._screen = outputs.stderr
        self._loop = loop
        self._jobs = jobs
        self._begun_s = loop.now()
        self._shown = b""
        self._left = len(jobs)
        self._console: Console | None = None
        loop.later(_PAUSE_S, self._refresh)

    def waits(self, jobs: int, reason: str) -> None:
        """Nothing: the line shows it."""

    def started(self, job: Job) -> None:
        """Nothing: the line shows it."""

    def ended(self, job: Job) -> None:
        """Say how, and take the line off after the last."""
        super().ended(job)
        self._left -= 1

    def _refresh(self) -> None:
        if not self._left:
            return
        line = self._render()
        # Whoever wrote since took the old line off; otherwise it is replaced only if it changed.
        if (line != self._shown or not self._screen.undo) and not self._screen.queued:
            self._screen.write(line)
            self._screen.undo = _ERASE
            self._shown = line
        self._loop.later(_PAUSE_S, self._refresh)

    def _render(self) -> bytes:
        console = self._console or self._open_console()
        columns = max(_FEWEST_COLUMNS, _columns() - 1)
        with console.capture() as capture:
            console.print(self._line(), end="", width=columns, no_wrap=True, crop=True)
        return capture.get().encode("utf-8", "backslashreplace")

    def _open_console(self) -> Console:
        from rich.console import Console  # noqa: PLC0415 - see above

        plain = bool(os.environ.get("NO_COLOR"))
        self._console = Console(file=io.StringIO(), force_terminal=True, no_color=plain)
        return self._console

    def _line(self) -> Text:
        from rich.text import Text  # noqa: PLC0415 - see above

        count = {RUNNING: 0, WAITING: 0}
        good = bad = 0
        for job in self._jobs:
            if job.state == OVER:
                good += job.status == 0
                bad += job.status != 0
            elif job.state in count:
                count[job.state] += 1
        seconds = self._loop.now() - self._begun_s
        return Text.assemble(
            (f"{good + bad}/{len(self._jobs)} done", "bold"),
            (f"  {count[RUNNING]} running", "green" if count[RUNNING] else "dim"),
            (f"  {count[WAITING]} waiting", "yellow" if count[WAITING] else "dim"),
            (f"  {bad} failed", "bold red" if bad else "dim"),
            (f"  {seconds:.0f} s", "dim"),
            (self._why(), "dim"),
            overflow="ellipsis",
        )

    def _why(self) -> str:
        waiting = next((job for job in self._jobs if job.state == WAITING and job.reason), None)
        return f"  {waiting.reason}" if waiting is not None else ""


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns
    except OSError:  # it was hung up
        return 0
