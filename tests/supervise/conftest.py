"""What the tests of the supervisor share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv


@pytest.fixture
def grn_run(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[GrnRun]:
    """Return a `GrnRun` with two simulated devices of 8000 MiB."""
    runner = GrnRun(new_env("sim:2x8000MiB"), tmp_path)
    yield runner
    runner.close()
