"""What the scenes share: `grn run` in an environment of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from grn.client import Client
from tests.env import wait_gone
from tests.scenarios.ondemand import broker_pid
from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.env import BrokerEnv


@pytest.fixture
def new_run(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[Callable[..., GrnRun]]:
    """Return a function that makes a `GrnRun` with devices of its own.

    With `on_demand=True` no broker runs until a client starts one; `broker_environ` is what only
    the broker finds in its environment; other keywords are settings.
    """
    made: list[tuple[GrnRun, bool]] = []

    def make(
        devices: str = "sim:1x10000MiB",
        *,
        on_demand: bool = False,
        broker_environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> GrnRun:
        env = new_env(devices, start=False, **{"sample_fast": 0.05, **settings})
        if on_demand:
            env.log_path = f"{env.socket}.log"
        else:
            env.start(env={**env.environ, **(broker_environ or {})})
        folder = tmp_path / f"work{len(made)}"
        os.mkdir(folder)
        run = GrnRun(env, folder)
        made.append((run, on_demand))
        return run

    yield make
    for run, on_demand in made:
        run.close()
        pid = broker_pid(run) if on_demand else None
        if pid is not None:
            with Client(run.env.settings) as client:
                client.stop()
            wait_gone(pid)
