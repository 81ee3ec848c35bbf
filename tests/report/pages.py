"""Makes pages of histories as `grn report` does, at a moment of the test's choice."""

from __future__ import annotations

from typing import Any, NamedTuple

from grn.report.data import Maker, report_data
from grn.report.page import render
from grn.report.source import HistoryFile, Span

__all__ = ["Made", "data_of", "make_page"]


class Made(NamedTuple):
    """A history, the page of it, and the data in that page."""

    history: str
    page: str
    data: dict[str, Any]
    span: Span

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"file://{self.page}"


def data_of(history: str, since: float, until: float, **options: Any) -> dict[str, Any]:
    """Return the data of a page that is made at `until`."""
    with HistoryFile(history) as file:
        return report_data(file, Span(since, until), Maker("box", "0.0", until), **options)


def make_page(history: str, path: str, since: float, until: float, **options: Any) -> Made:
    """Write a page; return what it was made of."""
    data = data_of(history, since, until, **options)
    with open(path, "wb") as file:
        file.write(render(data, title="GRN report of box"))
    return Made(history, path, data, Span(since, until))
