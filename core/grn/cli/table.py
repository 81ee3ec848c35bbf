"""Tables on standard output: with lines and colour on a terminal, plain and aligned elsewhere.

Promises: at most `width()` columns wherever the words allow it, and nothing is cut off but what a table
says may be: names of jobs, which are shortened to one line. The last column gives way first: it is wrapped, or shortened, then moves to lines of its own below each row. Where the other
columns do not fit either, each row becomes a paragraph of "name value" pairs. No
control character of a job's name or command reaches the terminal; no escape sequence without a
terminal, no colour under `NO_COLOR`.
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
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Table", "clean", "format_seconds", "print_tables", "shortened", "width"]

ELLIPSIS = "..."
GAP = "  "
RICH_GAP = 2  # columns between two of a table that has lines
BELOW = "    "  # before what moved below its row
LEAST_LAST_COLUMN = 24  # narrower than this, wrapping makes a column of syllables
LEAST_NAME = 20  # of a name that is shortened


@dataclass(slots=True)
class Table:
    """A title, the columns' names, and rows of as many cells.

    A name that starts with '>' aligns right. Where all names are empty, no heading is shown.
    `shorten` makes the first line of a cell in the last column fit into so many characters; without
    it, that is wrapped like the rest.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    shorten: Callable[[str, int], str] | None = None


def width() -> int:
    """Columns to fill: `COLUMNS`, else the terminal's, else 80."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def clean(text: str) -> str:
    """Replace what is not printable (escape sequences, undecodable bytes) by its escaped form."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shortened(text: str, room: int) -> str:
    """Cut a text in its middle, so that it fits; more is kept of its beginning than of its end."""
    if len(text) <= room:
        return text
    end = (room - len(ELLIPSIS)) // 3
    begin = room - len(ELLIPSIS) - end
    return text[:begin] + ELLIPSIS + text[len(text) - end :]


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
        print("\n\n".join("\n".join([*_title(table), *_lines(table)]) for table in full))
    for note in notes:
        print(textwrap.fill(clean(note), width(), subsequent_indent=GAP, break_on_hyphens=False))


def _cells(row: Sequence[str]) -> list[str]:
    return ["\n".join(map(clean, cell.split("\n"))) for cell in row]


def _title(table: Table) -> list[str]:
    return _wrapped(clean(table.title), width()) if table.title else []


def _lines(table: Table) -> Iterable[str]:
    """Lay a table out in plain text, in the first of three ways for which there is room."""
    rows = [_cells(row) for row in table.rows]
    sizes = _sizes(table, rows)
    used = sum(sizes[:-1]) + len(GAP) * (len(sizes) - 1)
    if used + min(_least(table), sizes[-1]) <= width():
        return _beside(table, rows, sizes, used)
    if used - len(GAP) <= width():
        return _below(table, rows, sizes)
    return _paragraphs(table, rows)


def _least(table: Table) -> int:
    return LEAST_LAST_COLUMN if table.shorten is None else LEAST_NAME


def _last(table: Table, cell: str, room: int) -> list[str]:
    """Return the lines of a cell in the last column."""
    if table.shorten is None:
        return _wrapped(cell, room)
    name, newline, rest = cell.partition("\n")
    return [table.shorten(name, room), *(_wrapped(rest, room) if newline else ())]


def _headed(table: Table, rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return [_names(table), *rows] if any(table.columns) else list(rows)


def _names(table: Table) -> list[str]:
    return [name.removeprefix(">") for name in table.columns]


def _sizes(table: Table, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is, where none gives way."""
    columns = zip(_names(table), *rows, strict=True)
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]


def _aligned(table: Table, row: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Fill all cells up to their columns' widths, except the last one's."""
    return [
        cell.rjust(size) if name.startswith(">") else cell.ljust(size)
        for cell, size, name in zip(row[:-1], sizes, table.columns, strict=False)
    ]


def _beside(
    table: Table, rows: Sequence[Sequence[str]], sizes: Sequence[int], used: int
) -> Iterator[str]:
    """One line for each row, the last column wrapped in what is left of it."""
    last = sizes[-1] if table.columns[-1].startswith(">") else 0
    for row in _headed(table, rows):
        first, *more = _last(table, row[-1], width() - used)
        yield GAP.join([*_aligned(table, row, sizes), first.rjust(last)]).rstrip()
        yield from (" " * used + line for line in more)


def _below(table: Table, rows: Sequence[Sequence[str]], sizes: Sequence[int]) -> Iterator[str]:
    """One line for each row, and the last column, which needs no heading, on the lines below it."""
    headings = len(_headed(table, rows)) - len(rows)
    for number, row in enumerate(_headed(table, rows)):
        yield GAP.join(_aligned(table, row, sizes)).rstrip()
        if number >= headings:
            yield from (BELOW + line for line in _last(table, row[-1], width() - len(BELOW)))


def _paragraphs(table: Table, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A paragraph for each row: what it is about, its other cells by name, the last column."""
    room = width() - len(BELOW)
    for row in rows:
        about, *others = (
            f"{name} {cell}".strip() for name, cell in zip(_names(table), row[:-1], strict=False)
        )
        yield from _wrapped(about, width())
        last = _last(table, row[-1], room)
        yield from (BELOW + line for line in [*_filled(others, room), *last])


def _filled(pairs: Sequence[str], room: int) -> Iterator[str]:
    """Put as many pairs on a line as fit: a line ends between two, not within one."""
    line = ""
    for pair in pairs:
        if line and len(line) + len(GAP) + len(pair) > room:
            yield line
            line = ""
        line = f"{line}{GAP}{pair}" if line else pair
    if line:
        yield line


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
        for line in _title(table):
            console.print(Text(line, style="bold"))
        rows = [_cells(row) for row in table.rows]
        *fixed, last = _sizes(table, rows)
        room = console.width - sum(fixed) - len(fixed) * RICH_GAP
        if min(_least(table), last) > room:
            console.print(Text("\n".join(_lines(table))), soft_wrap=True)  # rich would crop numbers
            continue
        shown = RichTable(
            box=box.SIMPLE_HEAD,
            show_header=any(table.columns),
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
        for row in rows:
            cells = [*row[:-1], "\n".join(_last(table, row[-1], room))]
            shown.add_row(*map(Text, cells))  # Text: a job's name is not markup
        console.print(shown)
