"""The terminal while `grn top` has it: a screen of its own, keys one by one, no cursor.

Promises: whatever ends the program, but SIGKILL, the terminal is as it was: its mode, its cursor, and
what was on it. A frame is written at once, so that nothing flickers.
Must not: know what is drawn.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty

from rich.console import Console

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from rich.text import Text

__all__ = ["Screen"]

_BEGIN, _END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _NEXT_LINE, _CLEAR_REST = "\x1b[H", "\r\n", "\x1b[K"
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"
"""Terminals that know it show a frame when it is whole (synchronised output); others ignore it."""


class Screen:
    """Takes the terminal over with `taken`; draws lines on it."""

    def __init__(self) -> None:
        self._stdin = sys.stdin.fileno()
        self._console = Console(highlight=False)
        self._before: list[Any] = []

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return max(1, size.columns), max(1, size.lines)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a key was pressed."""
        return self._stdin

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Have the terminal; give it back in the end."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    def take(self) -> None:
        """Take the terminal over."""
        self._before = termios.tcgetattr(self._stdin)
        tty.setcbreak(self._stdin, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._write(_BEGIN)

    def give_back(self) -> None:
        """Let the terminal be as it was."""
        # First the mode: the terminal may be gone, and then nothing can be written.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)
        with contextlib.suppress(OSError):
            self._write(_END)

    def read(self) -> bytes:
        """Return what was typed; b'' if the terminal is gone."""
        return os.read(self._stdin, 4096)

    def show(self, lines: Sequence[Text]) -> None:
        """Draw a frame, each line in its place."""
        width, _ = self.size
        self._console.width = width  # not what COLUMNS says, which may be of another terminal
        with self._console.capture() as capture:
            for number, line in enumerate(lines):
                self._console.print(line, end="", no_wrap=True, overflow="crop")
                last = number == len(lines) - 1
                # At the last column a terminal waits with the next one: what clears would clear that.
                clear = _CLEAR_REST if line.cell_len < width else ""
                self._console.out(clear + ("" if last else _NEXT_LINE), end="", highlight=False)
        self._write(_HOLD + _HOME + capture.get() + _SHOW)

    @staticmethod
    def _write(text: str) -> None:
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
