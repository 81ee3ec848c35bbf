"""Rows of cells as lines of a fixed width: columns that are empty or have no room are left out.

Pure. The last column takes what is left, and is cut off; the others never are.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from grn.cli.table import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Cell", "Column", "Grid"]

_GAP = 2
_LEAST_LAST = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and how it is drawn."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `right` aligns right; the lower its `rank`, the later it is left out."""

    name: str
    right: bool = False
    rank: int = 0


class Grid:
    """A table that is laid out once for all of its rows, of which some are drawn."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[Cell]],
        width: int,
        *,
        shorten: Callable[[str, int], str],
    ) -> None:
        """Choose the columns for which there is room; `shorten` makes the last one's cells fit."""
        self._columns = columns
        self._rows = rows
        self._width = width
        self._shorten = shorten
        self._sizes = [
            max((cell_len(row[at].text) for row in rows), default=0) for at in range(len(columns))
        ]
        self._shown = self._chosen()

    def _chosen(self) -> list[int]:
        fixed = range(len(self._columns) - 1)
        shown = [at for at in fixed if self._sizes[at]]
        least = min(_LEAST_LAST, self._sizes[-1])
        for at in sorted(shown, key=lambda at: self._columns[at].rank, reverse=True):
            if self._used(shown) + least <= self._width:
                break
            shown.remove(at)
        return shown

    def _used(self, shown: Sequence[int]) -> int:
        return sum(self._size(at) + _GAP for at in shown)

    def _size(self, at: int) -> int:
        return max(self._sizes[at], len(self._columns[at].name))

    def heading(self) -> Text:
        """Return the line of the columns' names."""
        return self._line([Cell(column.name, "grey62") for column in self._columns])

    def row(self, number: int) -> Text:
        """Return the line of one row."""
        return self._line(self._rows[number])

    def _line(self, cells: Sequence[Cell]) -> Text:
        text = Text(no_wrap=True)
        for at in self._shown:
            cell, size = cells[at], self._size(at)
            blank = " " * (size - cell_len(cell.text))
            if self._columns[at].right:
                text.append(blank)
            text.append(clean(cell.text), cell.style)
            text.append(" " * _GAP if self._columns[at].right else blank + " " * _GAP)
        room = self._width - text.cell_len
        text.append(self._shorten(clean(cells[-1].text), room), cells[-1].style)
        text.truncate(self._width, overflow="crop")
        return text
