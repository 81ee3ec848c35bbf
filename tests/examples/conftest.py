"""Each example runs once: the tests that look at what it did share one worker."""

from __future__ import annotations

import os

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a module together."""
    for item in items:
        if os.path.dirname(str(item.path)) == HERE:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
