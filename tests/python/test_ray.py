"""Ray's workers: tasks and actors that ask for leases by themselves, with nothing changed for Ray."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

pytest.importorskip("ray")

WORK = """
import grn, json, os, sys, tempfile
import ray
from tests.python.bodies import holders, told

@grn.job(memory=4000)
def job(folder):
    holders(folder, 4)  # all four hold their leases now
    return told()

@ray.remote(num_cpus=1)
def in_task(folder):
    return job(folder)

@ray.remote(num_cpus=1)
def block(folder):
    with grn.lease(memory=4000) as lease:
        lease.apply()
        holders(folder, 4)
        with grn.Client() as client:
            types = {each["type"] for each in client.status()["leases"]}
        return told(), sorted(types)

@ray.remote(num_cpus=1)
def fails():
    grn.job(memory=4000, type="fails")(lambda: 1 / 0)()

@ray.remote(num_cpus=1)
class Actor:
    def __init__(self):
        self.block = grn.lease(memory="whole")
        self.block.__enter__().apply()

    def told(self):
        return told()

def several(task, count):
    folder = os.path.abspath(f"{task}.met")
    os.mkdir(folder)
    return ray.get([task.remote(folder) for _ in range(count)])

def two_actors():
    actors = [Actor.remote() for _ in range(2)]
    found = ray.get([actor.told.remote() for actor in actors])
    ray.kill(actors[0])
    with grn.Client() as client:
        while len(client.status()["leases"]) > 1:  # the test's time is limited
            pass
    ray.kill(actors[1])
    return found

if __name__ == "__main__":
    # Its sockets' paths are long, and may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, configure_logging=False)
        result = {
            "task": several(in_task, 4),
            "itself": several(ray.remote(num_cpus=1)(job), 4),
            "block": several(block, 4),
            "actors": two_actors(),
        }
        try:
            ray.get(fails.remote())
        except ZeroDivisionError as error:
            result["fails"] = type(error).__name__
        ray.shutdown()
    print(json.dumps(result))
"""


def test_tasks_and_actors_have_leases_of_their_own(
    scripts: Callable[..., Scripts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four at once, two on each device; errors are the driver's; an actor that is killed keeps nothing."""
    made = scripts("sim:2x8000MiB")
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = made.run(WORK, PYTHONWARNINGS="ignore", **quiet)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for told in (result["task"], result["itself"], [each for each, _ in result["block"]]):
        assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in told) == ["0", "0", "1", "1"]
        assert len({each["GRN_LEASE"] for each in told}) == 4
    assert {each.rpartition("/")[2] for _, types in result["block"] for each in types} == {
        "script.py::block"
    }
    assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in result["actors"]) == ["0", "1"]
    assert "ZeroDivisionError" in result["fails"]
    eventually(lambda: not made.env.status()["leases"], what="all leases given back")
