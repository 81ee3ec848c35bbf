"""`@leased` in the workers of a Dask cluster: each worker process is a host with a broker of its own.

The cluster is Dask's own `LocalCluster`, its workers are processes with several threads.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.env import BrokerEnv, eventually, wait_gone

pytest.importorskip("prefect")
distributed = pytest.importorskip("distributed")

import dask  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402
from prefect import flow, task  # noqa: E402

from tests.prefect.places import Place, dies, place  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("prefect")

_THREADS = 4


class Hosts(LocalCluster):
    """A cluster in which each worker has the environment of another host."""

    def __init__(self, hosts: list[BrokerEnv]) -> None:
        self.hosts = hosts
        super().__init__(n_workers=0, threads_per_worker=_THREADS, dashboard_address=None)

    def new_worker_spec(self) -> dict[Any, Any]:
        """Give the next worker the next host."""
        spec: dict[Any, Any] = super().new_worker_spec()
        for number, worker in spec.items():
            env = self.hosts[number % len(self.hosts)].environ
            spec[number] = {**worker, "options": {**worker["options"], "env": env}}
        return spec


class Cluster(NamedTuple):
    """What tests need of it."""

    hosts: list[BrokerEnv]
    client: Client
    address: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two hosts with two devices each."""
    hosts = []
    # What is killed is started again by its nanny; only much later is it given up as lost.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    for _ in range(2):
        folder = tmp_path_factory.mktemp("host")
        folder.chmod(0o700)
        hosts.append(BrokerEnv(str(folder), "sim:2x4000MiB"))
        hosts[-1].start()
    try:
        with Hosts(hosts) as made, Client(made) as client:
            made.scale(2)
            client.wait_for_workers(2)
            yield Cluster(hosts, client, made.scheduler_address)
    finally:
        for host in hosts:
            host.close()


def is_idle(host: BrokerEnv) -> bool:
    """Whether nobody holds or wants anything of a host."""
    status = host.status()
    return not status["leases"] and not status["waiters"]


def check_places(places: list[Place], hosts: list[BrokerEnv]) -> None:
    """See that each had a whole device of its own host, in a process that is gone."""
    sockets = {host.socket for host in hosts}
    assert {each.host for each in places} == sockets
    assert {each.mask for each in places} <= {"0", "1"}
    assert len({each.pid for each in places}) == len(places)
    for one in places:
        wait_gone(one.pid)
        same = [each for each in places if each[:2] == one[:2] and each != one]
        assert all(each.ended <= one.begun or one.ended <= each.begun for each in same)
    for host in hosts:
        eventually(lambda host=host: is_idle(host), what="an idle broker")  # type: ignore[misc]


def test_each_call_has_a_device_of_its_worker_host(cluster: Cluster) -> None:
    """More calls than devices, from the threads of two workers: never two on one device."""
    futures = cluster.client.map(place, [""] * 12, pure=False)
    check_places(cluster.client.gather(futures), cluster.hosts)


@pytest.mark.usefixtures("prefect_here")
def test_tasks_of_a_flow_have_a_device_of_their_worker_host(cluster: Cluster) -> None:
    """The same under Prefect's Dask runner, whose engine is in the worker: states are right, too."""
    runner = pytest.importorskip("prefect_dask").DaskTaskRunner(address=cluster.address)

    @flow(task_runner=runner)
    def everywhere() -> tuple[list[Place], list[str]]:
        futures = task(place).map([""] * 8)
        died = task(dies, retries=1).submit()
        died.wait()
        places = [future.result() for future in futures]
        return places, [each.state.name for each in (*futures, died)]

    places, states = everywhere()
    check_places(places, cluster.hosts)
    assert states == ["Completed"] * 8 + ["Failed"]


def test_the_death_of_a_worker_gives_its_leases_back(cluster: Cluster, tmp_path: Any) -> None:
    """Its processes end with it; Dask runs the calls again, and they get devices at once."""
    mark = tmp_path / "mark"
    mark.touch()
    workers = cluster.client.run(os.getpid)
    futures = cluster.client.map(place, [str(mark)] * 2, pure=False, workers=[min(workers)])
    eventually(lambda: len(list(tmp_path.iterdir())) == 3, what="both calls run")
    bodies = [int(path.suffix[1:]) for path in tmp_path.glob("mark.*")]
    os.kill(workers[min(workers)], signal.SIGKILL)
    for pid in bodies:
        wait_gone(pid)
    for host in cluster.hosts:
        eventually(lambda host=host: is_idle(host), what="the leases are back")  # type: ignore[misc]
    del futures  # else they would be run again where their worker was
    mark.unlink()
    cluster.client.wait_for_workers(2)
    again = cluster.client.map(place, [""] * 4, pure=False)
    check_places(cluster.client.gather(again), cluster.hosts)
