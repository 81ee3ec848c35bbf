"""The pytest plugin of the conformance run: a server, and a choice of tests.

It is loaded in the process that runs Prefect's tests, and knows nothing of which runner they get.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from prefect.testing.fixtures import asserting_events_worker, reset_worker_events
from prefect.testing.utilities import prefect_test_harness

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["asserting_events_worker", "reset_worker_events"]


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    """Have one server with an empty database for all tests."""
    with prefect_test_harness(server_startup_timeout=240):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about another runner's private parts."""
    words = [word for word in os.environ["GRN_CONFORMANCE_PRIVATE"].split(",") if word]
    chosen, left = [], []
    for item in items:
        private = any(word in item.name for word in words)
        private = private or _needs_its_cluster(item)
        (left if private else chosen).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = chosen


def _needs_its_cluster(item: pytest.Item) -> bool:
    suite = item.nodeid.split("::")[1]
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return suite in {"TestDaskTaskRunner", "TestRayTaskRunner"} and "task_runner" not in fixtures
