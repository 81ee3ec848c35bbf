"""A broker that serves its page, and a browser to look at it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.browser import GROUP, browser, screens
from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

__all__ = ["address_of", "browser", "screens"]

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests with a browser together."""
    for item in items:
        if str(item.path).startswith(HERE) and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(GROUP))


@pytest.fixture
def new_board(new_env: Callable[..., BrokerEnv]) -> Callable[..., BrokerEnv]:
    """Return a function that makes an environment whose broker serves its page on a free port."""
    pytest.importorskip(
        "aiohttp", reason="serves the dashboard: pip install 'grn-plugins[dashboard]'"
    )

    def make(devices: str = "sim:2x10000MiB", **more: object) -> BrokerEnv:
        return new_env(devices, **{"http": "127.0.0.1:0", **more})

    return make


@pytest.fixture
def address_of() -> Callable[[BrokerEnv], str]:
    """Return a function that tells where the page of an environment's last broker is."""

    def find(env: BrokerEnv) -> str:
        found = eventually(lambda: re.findall(r"dashboard url=(http://\S+/)", env.log()))
        return str(found[-1])

    return find
