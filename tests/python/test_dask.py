"""Dask's workers: processes and threads that ask for leases by themselves, with nothing changed for Dask."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

pytest.importorskip("distributed")

WORK = """
import dask, grn, json, os, subprocess, sys
from dask.distributed import Client, LocalCluster
from tests.python.bodies import holders, told

@grn.job(memory=4000)
def job(folder):
    holders(folder, 4)  # all four hold their leases now
    return told()

@grn.job(memory=4000)
async def later(folder):
    return job(folder)

def child(folder):
    with grn.lease(memory=4000) as lease:
        code = "import sys; from tests.python.bodies import *; holders(sys.argv[1], 4); print(told())"
        words = [sys.executable, "-c", code, folder]
        return eval(subprocess.run(words, env=lease.environment(), stdout=-1).stdout)

def block(folder):
    with grn.lease(memory="whole") as lease:
        lease.apply()
        holders(folder, 2)
        with grn.Client() as client:
            types = {each["type"] for each in client.status()["leases"]}
        return told(), sorted(types)

@grn.job(memory=4000)
def fails(number):
    raise ValueError(number)

def dies(folder):
    with grn.lease(memory="whole") as lease:
        lease.apply()
        os._exit(1)

def several(client, work, count):
    folder = os.path.abspath(f"{work.__name__}.met")
    os.mkdir(folder)
    return client.gather([client.submit(work, folder, pure=False) for _ in range(count)])

def errors(client, work, count):
    futures = client.map(work, range(count))
    return [type(future.exception()).__name__ for future in futures]

if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    kind, names = sys.argv[1], sys.argv[2:]
    workers = {
        "threads": {"n_workers": 2, "threads_per_worker": 2},
        "processes": {"n_workers": 2, "threads_per_worker": 1},
        "one": {"processes": False, "n_workers": 1, "threads_per_worker": 4},
    }[kind]
    works = {"job": job, "later": later, "child": child, "block": block}
    result = {}
    with LocalCluster(dashboard_address=None, **workers) as cluster, Client(cluster) as client:
        for name in names:
            if name in works:
                result[name] = several(client, works[name], 2 if name == "block" else 4)
            else:
                result[name] = errors(client, {"fails": fails, "dies": dies}[name], 2)
    print(json.dumps(result))
"""


@pytest.fixture
def dask(scripts: Callable[..., Scripts]) -> Callable[..., dict[str, Any]]:
    """Return a function that runs some of the work above on workers of a kind; nothing may be left."""
    made = scripts("sim:2x8000MiB")

    def run(kind: str, *names: str) -> dict[str, Any]:
        done = made.run(WORK, kind, *names, PYTHONWARNINGS="ignore")
        eventually(lambda: not made.env.status()["leases"], what="all leases given back")
        assert not made.env.status()["waiters"]
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


@pytest.mark.parametrize("kind", ["threads", "one"])
def test_threads_of_workers_each_have_a_lease(
    dask: Callable[..., dict[str, Any]], kind: str
) -> None:
    """Four calls at once, two on each device; those that raise are the client's to see."""
    result = dask(kind, "job", "later", "child", "fails")
    assert result["fails"] == ["ValueError", "ValueError"]
    for work in ("job", "later", "child"):
        assert sorted(told["CUDA_VISIBLE_DEVICES"] for told in result[work]) == ["0", "0", "1", "1"]
        assert len({told["GRN_LEASE"] for told in result[work]}) == 4
        assert {told["GRN_MEM_MIB"] for told in result[work]} == {"4000"}


def test_worker_processes_apply_leases_of_their_own(dask: Callable[..., dict[str, Any]]) -> None:
    """Each has a device; a type is the function's in its script; a worker that dies keeps nothing."""
    result = dask("processes", "block", "dies")
    assert sorted(told["CUDA_VISIBLE_DEVICES"] for told, _ in result["block"]) == ["0", "1"]
    for _, types in result["block"]:
        assert [each.partition("scripts/")[2] for each in types] == ["script.py::block"]
    assert result["dies"] == ["KilledWorker", "KilledWorker"]
