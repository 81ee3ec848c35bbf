"""Flows as processes: scripts without a guard, signals, a broker that dies, two flows at once."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone

pytest.importorskip("prefect")

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.prefect.conftest import Flows

pytestmark = pytest.mark.xdist_group("prefect")

_START = """
import json, os, signal, sys, time
from prefect import flow, task
from prefect.settings import temporary_settings
from tests.prefect.quick import quick
from grn_plugins.prefect import GRNTaskRunner, gpu
quick = temporary_settings(quick())
quick.__enter__()
"""

_HOLDING = (
    _START
    + """
@task
def hold(number):
    with open(f"body{number}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"body{number}", f"holds{number}")
    while not os.path.exists("end"):
        time.sleep(0.01)
    return number

@flow(task_runner=GRNTaskRunner(memory="whole"))
def holding(count):
    futures = [hold.submit(number) for number in range(count)]
    for future in futures:
        future.wait()
    print([future.state.name for future in futures])

holding(int(sys.argv[1]))
"""
)


def holders(flows: Flows, count: int) -> list[int]:
    """Wait until so many bodies hold; return their pids."""

    def found() -> list[int]:
        names = [name for name in os.listdir(flows.folder) if name.startswith("holds")]
        return [int(_read(flows.path(name))) for name in names] if len(names) >= count else []

    return eventually(found, 2 * PATIENCE_S)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def idle(flows: Flows) -> None:
    """Wait until nothing is held or wanted any more."""
    eventually(lambda: not flows.env.status()["leases"] and not flows.env.status()["waiters"])


def test_killed_slow_and_out_of_memory_in_one_script(flows: Callable[..., Flows]):
    """A script without a guard, whose functions are its own: right states, and an empty broker."""
    it = flows()
    said = it.run(
        _START
        + """
LIMIT = 3

class OutOfMemoryError(RuntimeError):
    pass

@task
def killed():
    os.kill(os.getpid(), signal.SIGKILL)

@task(timeout_seconds=0.5)
def slow():
    time.sleep(60)

@task
def memory():
    raise OutOfMemoryError("CUDA out of memory")

@task
def well(number):
    return number + LIMIT

@flow(task_runner=GRNTaskRunner(memory=1000))
def mixed():
    futures = [killed.submit(), slow.submit(), memory.submit(), well.submit(1)]
    for future in futures:
        future.wait()
    print(json.dumps([future.state.name for future in futures]))
    return futures[3].result()

print(mixed())
"""
    )
    names, result = said.splitlines()[-2:]
    assert json.loads(names) == ["Failed", "TimedOut", "Failed", "Completed"]
    assert result == "4"
    idle(it)


def test_flows_that_are_stopped(flows: Callable[..., Flows]):
    """However one ends, its processes do, what waits is withdrawn, and the next has the device at once."""
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    stages = [flows("sim:1x8000MiB", name=number.name) for number in ends]
    processes = [it.start(_HOLDING, "flows.py", "2") for it in stages]
    bodies = [holders(it, 1)[0] for it in stages]
    for it, process, number in zip(stages, processes, ends, strict=True):
        eventually(lambda it=it: it.env.status()["waiters"])
        process.send_signal(number)
    for it, process, body in zip(stages, processes, bodies, strict=True):
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0, said
        wait_gone(body)
        idle(it)
    it = stages[-1]
    os.unlink(it.path("holds0"))
    with open(it.path("end"), "w", encoding="ascii"):
        pass
    assert it.run(_HOLDING, "flows.py", "1").splitlines()[-1] == "['Completed']"


def test_a_broker_that_dies(flows: Callable[..., Flows]):
    """What runs goes on and what waits keeps its place: both end well, and leave no process behind."""
    it = flows("sim:1x8000MiB")
    process = it.start(_HOLDING, "flows.py", "2")
    server = _parent_of(holders(it, 1)[0])
    eventually(lambda: it.env.status()["waiters"])
    it.env.restart()
    eventually(lambda: it.env.status()["waiters"] and it.env.status()["leases"])
    with open(it.path("end"), "w", encoding="ascii"):
        pass
    said, _ = process.communicate(timeout=2 * PATIENCE_S)
    assert said.splitlines()[-1] == "['Completed', 'Completed']"
    wait_gone(server)
    idle(it)


_TAKING_TURNS = (
    _START
    + """
@task
def alone(number):
    mask = os.environ["CUDA_VISIBLE_DEVICES"]
    with open("device" + mask, "a") as file:
        file.write("in\\n")
        file.flush()
        time.sleep(0.05)
        file.write("out\\n")
    return number

@flow(task_runner=GRNTaskRunner(memory="whole"))
def turns():
    return [future.result() for future in alone.map(range(6))]

print(turns())
"""
)


def test_two_flows_share_two_devices(flows: Callable[..., Flows]):
    """Two processes want whole devices twelve times: no two of them ever have the same one at once."""
    it = flows()
    both = [it.start(_TAKING_TURNS, f"flows{number}.py") for number in range(2)]
    for process in both:
        said, _ = process.communicate(timeout=4 * PATIENCE_S)
        assert "[0, 1, 2, 3, 4, 5]" in said.splitlines()
    lines = [_read(it.path(f"device{mask}")).split() for mask in (0, 1)]
    assert sum(map(len, lines)) == 24
    for each in lines:
        assert each == ["in", "out"] * (len(each) // 2)
    idle(it)


def _parent_of(pid: int) -> int:
    birth = procs.birth(pid)
    assert birth is not None
    return birth[1]
