"""Tables on standard output: with lines and colour on a terminal, plain and aligned elsewhere.

Promises: at most `width()` columns wherever the words allow it, the last column is wrapped, nothing is
cut off; no control character of a job's name or command reaches the terminal; no escape sequence
without a terminal, no colour under `NO_COLOR`.
Must not: know what the cells mean.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Table", "clean", "format_seconds", "print_tables", "width"]

GAP = "  "
LEAST_LAST_COLUMN = 24  # narrower than this, wrapping makes a column of syllables


@dataclass(slots=True)
class Table:
    """A title, the columns' names, and rows of as many cells; a name that starts with '>' aligns right."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


def width() -> int:
    """Columns to fill: `COLUMNS`, else the terminal's, else 80."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def clean(text: str) -> str:
    """Replace what is not printable (escape sequences, undecodable bytes) by its escaped form."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def format_seconds(seconds: float) -> str:
    """Write a duration for people: '12 s', '5 min', '1.5 h'."""
    if seconds < 100:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def print_tables(tables: Sequence[Table], notes: Sequence[str] = ()) -> None:
    """Print the tables that have rows, a blank line between, then the notes as paragraphs."""
    # A job's name may hold what the locale's encoding lacks; a table is no reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    full = [table for table in tables if table.rows]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _print_rich(full)
    elif full:
        print("\n\n".join(_plain(table) for table in full))
    for note in notes:
        print(textwrap.fill(clean(note), width(), subsequent_indent=GAP, break_on_hyphens=False))


def _cells(row: Sequence[str]) -> list[str]:
    return ["\n".join(map(clean, cell.split("\n"))) for cell in row]


def _plain(table: Table) -> str:
    rows = [_cells(row) for row in table.rows]
    names = [name.removeprefix(">") for name in table.columns]
    right = [name.startswith(">") for name in table.columns]
    *sizes, _last = (max(map(len, column)) for column in zip(names, *rows, strict=True))
    used = sum(sizes) + len(GAP) * len(sizes)
    room = max(LEAST_LAST_COLUMN, width() - used)
    lines = [table.title] if table.title else []
    for row in (names, *rows):
        head = [
            cell.rjust(size) if to_right else cell.ljust(size)
            for cell, size, to_right in zip(row, sizes, right, strict=False)
        ]
        first, *more = _wrapped(row[-1], room)
        lines.append(GAP.join([*head, first]).rstrip())
        lines.extend(" " * used + line for line in more)
    return "\n".join(lines)


def _wrapped(text: str, room: int) -> list[str]:
    return [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(part, room, break_on_hyphens=False) or [""]
    ]


def _print_rich(tables: Sequence[Table]) -> None:
    from rich import box  # noqa: PLC0415 - heavy, and needed on a terminal only
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, width=width())
    for number, table in enumerate(tables):
        if number:
            console.print()
        shown = RichTable(
            title=table.title or None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for name in table.columns:
            shown.add_column(
                name.removeprefix(">"),
                justify="right" if name.startswith(">") else "left",
                overflow="fold",
                no_wrap=name is not table.columns[-1],
            )
        for row in table.rows:
            shown.add_row(*map(Text, _cells(row)))  # Text: a job's name is not markup
        console.print(shown)
