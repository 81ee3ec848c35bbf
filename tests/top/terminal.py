"""A program on a real pseudo-terminal, and what a person would see on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Terminal:
    """Runs a program with a terminal of its own as its controlling one; `screen` is what is on it."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        """All that the program has written."""
        self._ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environ, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
        )

    def resize(self, columns: int, lines: int) -> None:
        """Change the window's size; the program is told."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def press(self, keys: str) -> None:
        """Type something."""
        os.write(self._ours, keys.encode())

    def read(self, within_s: float) -> bool:
        """Take in what the program writes; `False` if it was nothing in this time."""
        data = self.read_blindly(within_s)
        self.draw(data)
        return bool(data)

    def draw(self, data: bytes) -> None:
        """Have on the screen what this does to it."""
        self._stream.feed(data)

    def read_blindly(self, within_s: float) -> bytes:
        """Return what the program writes, and leave the screen as it is: to draw takes its time."""
        if not select.select([self._ours], [], [], within_s)[0]:
            return b""
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # EIO: the other side is closed
            return b""
        self.written += data
        return data

    @property
    def text(self) -> str:
        """Return what is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, condition: Callable[[str], Any], what: str = "") -> str:
        """Wait until what is on the screen is so; return it.

        Raises:
            AssertionError: it did not become so.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.text):
            self.read(0.1)
            assert time.monotonic() < deadline, f"not seen: {what}\n{self.text}"
        return self.text

    def shows(self, *parts: str) -> str:
        """Wait until all of these are on the screen."""
        return self.until(lambda text: all(part in text for part in parts), repr(parts))

    def lacks(self, part: str) -> str:
        """Wait until this is not on the screen."""
        return self.until(lambda text: part not in text, f"without {part!r}")

    def end(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the program's end; return its status as `Popen` has it."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            self.read(0.05)
            assert time.monotonic() < deadline, f"it has not ended:\n{self.text}"
        while self.read(0.0):
            pass
        return self.process.returncode

    @property
    def given_back(self) -> bool:
        """Whether the terminal's mode, cursor and screen are what they were before."""
        restored = termios.tcgetattr(self._theirs) == self.before
        left = self.written.rfind(b"\x1b[?1049l") > self.written.rfind(b"\x1b[?1049h")
        cursor = self.written.rfind(b"\x1b[?25h") > self.written.rfind(b"\x1b[?25l")
        return restored and left and cursor

    def close(self) -> None:
        """End the program, if it lives, and the terminal."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def svg(self, title: str) -> str:
        """Return a picture of the screen."""
        console = Console(
            record=True,
            width=self.screen.columns,
            force_terminal=True,
            color_system="truecolor",
            file=open(os.devnull, "w", encoding="utf-8"),  # noqa: SIM115 - closed with the console
        )
        with console.file:
            for y in range(self.screen.lines):
                console.print(self._line(y), overflow="crop", no_wrap=True)
        return console.export_svg(title=title)

    def _line(self, y: int) -> Text:
        text = Text()
        for x in range(self.screen.columns):
            cell = self.screen.buffer[y][x]
            text.append(
                cell.data,
                Style(
                    color=_colour(cell.fg),
                    bgcolor=_colour(cell.bg),
                    bold=cell.bold,
                    reverse=cell.reverse,
                ),
            )
        return text


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name.lower()):
        return f"#{name}"
    return {"brown": "yellow"}.get(name, name)


def grn_top(*words: str) -> list[str]:
    """Return the command."""
    return [sys.executable, "-m", "grn", "top", *words]
