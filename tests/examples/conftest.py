"""Each example runs once: the tests that look at what it did share one worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.hookimpl(
    tryfirst=True
)  # before xdist looks at the marks, also where only this folder is run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a module together, unless it is of a larger group itself."""
    for item in items:
        grouped = item.get_closest_marker("xdist_group") is not None
        if os.path.dirname(str(item.path)) == HERE and not grouped:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def screens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder for pictures: $GRN_TEST_SCREENS, else one that is thrown away."""
    folder = os.environ.get("GRN_TEST_SCREENS")
    if folder:
        return os.path.abspath(folder)
    made: Path = tmp_path_factory.mktemp("screens")
    return str(made)
