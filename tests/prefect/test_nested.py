"""Tasks that submit tasks: what runs inside a lease shares it, and nothing waits for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prefect")

from prefect import flow

from grn_plugins.prefect import GRNTaskRunner
from tests.prefect import work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

pytestmark = pytest.mark.xdist_group("prefect")


def test_outer_tasks_without_a_device(broker: Callable[..., BrokerEnv]):
    """Eight tasks that hold nothing each wait for one that wants a share: all end."""
    env = broker("sim:1x8000MiB")

    @flow(task_runner=GRNTaskRunner())
    def eight() -> list[int]:
        return [future.result() for future in work.outer_on_cpu.map(range(8))]

    assert eight() == list(range(8))
    assert not env.status()["leases"]


def test_inner_tasks_share_the_outer_lease(broker: Callable[..., BrokerEnv]):
    """They run in its process, on its device, also where each wants all of it."""
    env = broker("sim:1x8000MiB")

    @flow(task_runner=GRNTaskRunner())
    def sharing() -> list[dict[str, Any]]:
        return list(work.outer.submit(1).result())

    outer, small, whole = sharing()
    assert {each["pid"] for each in (small, whole)} == {outer["pid"]}
    assert {each["lease"] for each in (small, whole)} == {outer["lease"]}
    assert not env.status()["leases"]


def test_an_inner_task_that_can_never_fit(broker: Callable[..., BrokerEnv]):
    """It is told so at once, with the numbers; nothing hangs."""
    broker()

    @flow(task_runner=GRNTaskRunner())
    def too_much() -> str:
        future = work.outer_of_more.submit()
        future.wait()
        return str(future.state.message)

    assert "1 device(s) with 1000 MiB each" in too_much()
