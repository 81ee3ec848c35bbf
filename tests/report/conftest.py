"""A made history, a page of it, and a browser."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from grn.history.schema import FILE_NAME
from tests.browser import GROUP, browser, screens
from tests.report.madehistory import START, make_history
from tests.report.pages import Made, make_page

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["browser", "screens"]

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with a browser together."""
    for item in items:
        if str(item.path).startswith(HERE) and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(GROUP))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A history of 300 leases on four devices, and the page of it."""
    folder = tmp_path_factory.mktemp("made")
    path = str(folder / FILE_NAME)
    last = make_history(path, 300)
    return make_page(path, str(folder / "report.html"), START - 60, last + 60)


@pytest.fixture
def history_path(tmp_path: Path) -> str:
    """Return where a history may be made."""
    return str(tmp_path / FILE_NAME)
