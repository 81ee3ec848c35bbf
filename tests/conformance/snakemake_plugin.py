"""For pytest (`-p snakemake_plugin`): Snakemake's tests run by `--executor grn`.

Wherever a test leaves the choice to Snakemake, which is its local executor, ours takes its place; and each
job that wishes for no GPU is made to wish for a little of one, so that all of them negotiate. Nothing is
changed unless GRN_CONFORMANCE says so. GRN_CONFORMANCE_EVERY leaves each Nth test only, whichever executor runs them.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]


@pytest.hookimpl(trylast=True)  # when all other choices are made
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a spread of the tests."""
    every = int(os.environ.get("GRN_CONFORMANCE_EVERY") or 1)
    kept = items[::every]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_configure() -> None:
    """Put our executor in the local one's place."""
    if not os.environ.get("GRN_CONFORMANCE"):
        return
    from snakemake.api import DAGApi

    from grn_plugins.snakemake import executor
    from grn_plugins.snakemake.request import Ask

    execute, ask_of_job = DAGApi.execute_workflow, executor.ask_of_job

    @functools.wraps(execute)
    def by_ours(api: Any, executor: str = "local", *args: Any, **options: Any) -> Any:
        return execute(api, "grn" if executor == "local" else executor, *args, **options)

    def some(job: Any, chosen: Any) -> Ask:
        return ask_of_job(job, chosen) or Ask(gpus=1, memory_mib=1)

    DAGApi.execute_workflow = by_ours
    executor.ask_of_job = some
