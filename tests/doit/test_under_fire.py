"""A doit run whose broker is killed on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doit.dodofolder import DodoFolder
from tests.env import PATIENCE_S
from tests.reliability import fire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

_DODO = """
    @grn_task(memory={mib})
    def task_work():
        for n in range({tasks}):
            yield {{"name": str(n), "actions": [{line!r} + str(n)]}}
"""


@pytest.mark.parametrize(
    "runner", [("-n", "8"), ("-n", "8", "-P", "thread")], ids=["process", "thread"]
)
def test_each_task_is_done_once(
    new_env: Callable[..., BrokerEnv], tmp_path: Path, runner: tuple[str, ...]
) -> None:
    """Two hundred tasks under three brokers that are killed: each done once, no MiB given twice."""
    env = new_env(fire.DEVICES)
    dodos, logs = DodoFolder(env, tmp_path), tmp_path / "logs"
    logs.mkdir()
    dodos.dodo(_DODO.format(mib=fire.MIB, tasks=fire.TASKS, line=fire.command(logs, "")))
    doit = dodos.start(*runner)
    assert fire.kill_brokers(env, str(logs), lambda: doit.poll() is None) == 3
    assert doit.wait(8 * PATIENCE_S) == 0
    fire.judge(env, str(logs))
    dodos.close()
