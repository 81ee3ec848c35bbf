"""What Prefect shows of tasks and their leases: states, logs, events, assets, a table."""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import BrokerEnv, eventually

pytest.importorskip("prefect")

from prefect import flow
from prefect.context import FlowRunContext

from grn_plugins.prefect import GRNTaskRunner
from tests.prefect import work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.prefect.asking import Api

pytestmark = pytest.mark.xdist_group("prefect")


def test_a_task_that_waits(broker: Callable[..., BrokerEnv], api: Api):
    """It is Pending with the broker's reason; its run time does not count the wait; a table has both."""
    env = broker("sim:1x8000MiB")
    path = os.path.join(env.folder, "hold")
    ids: dict[str, Any] = {}

    def look() -> None:
        """Let the first one end when the second is seen to wait."""
        try:
            eventually(lambda: _name(api, ids.get("waits")) == "WaitingForGPU")
        finally:
            work.touch(f"{path}.end")

    looker = threading.Thread(target=look)

    @flow(task_runner=GRNTaskRunner(memory="whole"))
    def waiting() -> None:
        looker.start()
        holds = work.hold.submit(path)
        eventually(lambda: os.path.exists(f"{path}.holds"))
        waits = work.tell.submit()
        ids["waits"], ids["flow"] = waits.task_run_id, _flow_run_id()
        holds.result()
        waits.result()

    waiting()
    looker.join()
    eventually(lambda: _name(api, ids["waits"]) == "Completed")
    states = api.states_of(ids["waits"])
    names = [state["name"] for state in states]
    assert names == ["Pending", "Running", "WaitingForGPU", "Running", "Completed"]
    assert "leased whole by lease" in states[2]["message"]
    assert "GPU 0" in states[3]["message"]
    run = api.task_run(ids["waits"])
    waited = _seconds(states[3]) - _seconds(states[2])
    assert run["total_run_time"] < waited + 0.5 + (_seconds(states[4]) - _seconds(states[3]))
    assert run["total_run_time"] <= 0.01 + sum(
        _seconds(states[end]) - _seconds(states[end - 1]) for end in (2, 4)
    )
    (table,) = api.artifacts_of(ids["flow"])
    rows = json.loads(table["data"])
    assert len(rows) == 2
    assert {row["booked"] for row in rows} == {"8000 MiB"}
    assert rows[0]["lease"] != rows[1]["lease"]


def _name(api: Api, run_id: object) -> str:
    if run_id is None:
        return ""
    try:
        return str(api.task_run(run_id)["state_name"])
    except OSError:  # it is not known yet
        return ""


def _seconds(state: dict[str, Any]) -> float:
    return datetime.fromisoformat(state["timestamp"]).timestamp()


def _flow_run_id() -> Any:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return context.flow_run.id


def test_what_bodies_say(broker: Callable[..., BrokerEnv], api: Api):
    """Logs, prints, events and assets of bodies and of tasks nested in them reach Prefect."""
    broker()
    ids: dict[str, Any] = {}

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def talking(word: str) -> dict[str, Any]:
        ids["flow"] = _flow_run_id()
        told = work.talk.submit(word)
        nested = work.talk_twice.submit()
        long = work.log_much.submit(200_000)
        asset = work.make_asset.submit()
        found = dict(told.result())
        ids["told"], ids["nested"], ids["outer"] = (
            told.task_run_id,
            nested.result(),
            nested.task_run_id,
        )
        long.result()
        asset.result()
        return found

    found = talking("hello")
    assert found["task"] == str(ids["told"])
    assert found["parameters"] == {"word": "hello"}

    def logged() -> bool:
        logs = api.logs_of(ids["flow"])
        wanted = {"logged hello", "printed hello", "outer logs", "logged nested", "printed nested"}
        return wanted <= set(logs) and any(len(log) == 200_000 for log in logs)

    eventually(logged)
    (spoken,) = eventually(lambda: api.events_of("grn.test.hello"))
    related = {each["prefect.resource.id"] for each in spoken["related"]}
    assert f"prefect.task-run.{ids['told']}" in related
    assert f"prefect.flow-run.{ids['flow']}" in related
    (nested,) = eventually(lambda: api.events_of("grn.test.nested"))
    related = {each["prefect.resource.id"] for each in nested["related"]}
    assert f"prefect.task-run.{ids['nested']}" in related
    assert eventually(lambda: _name(api, ids["nested"]) == "Completed")
    made = eventually(lambda: api.events_of("grn://test/model"))
    assert made[0]["payload"] == {"loss": 0.5}


def test_a_task_that_gets_its_device_at_once(broker: Callable[..., BrokerEnv], api: Api):
    """It costs no state of its own: what it held is in the log."""
    broker()
    ids: dict[str, Any] = {}

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def at_once() -> None:
        ids["flow"] = _flow_run_id()
        future = work.add.submit(1)
        ids["task"] = future.task_run_id
        future.result()

    at_once()
    eventually(lambda: _name(api, ids["task"]) == "Completed")
    names = [state["name"] for state in api.states_of(ids["task"])]
    assert [name for name in names if name != "WaitingForGPU"][-2:] == ["Running", "Completed"]
    eventually(lambda: any("Held GPU" in log for log in api.logs_of(ids["flow"])))
