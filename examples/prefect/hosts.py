"""Several hosts: a Dask cluster whose workers ask the broker of the host that they run on.

Here the "hosts" are two worker processes of one machine. Each has a broker of its own, with two
simulated devices, as it would have on a machine of its own. Nothing else would change there: a worker
finds its host's broker by itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from distributed import Client, LocalCluster
from prefect import flow, task

from grn_plugins.prefect import leased


class Place(NamedTuple):
    """Where a piece of work ran."""

    host: str
    device: str
    process: int


@leased(memory="1GiB")
def work(seconds: float) -> Place:
    """Be somewhere for a while, in a process of its own."""
    import time  # noqa: PLC0415 - after the lease, as any import here

    time.sleep(seconds)
    return Place(os.environ["HOST"], os.environ["CUDA_VISIBLE_DEVICES"], os.getpid())


class Hosts(LocalCluster):
    """A cluster in which each worker is a host, as far as GRN can tell."""

    def __init__(self, folder: str, **options: Any) -> None:
        """Keep what the hosts have in `folder`."""
        self.folder = folder
        self.environs: list[dict[str, str]] = []
        super().__init__(n_workers=0, dashboard_address=None, **options)

    def new_worker_spec(self) -> dict[Any, Any]:
        """Give the next worker a broker of its own."""
        spec: dict[Any, Any] = super().new_worker_spec()
        for number, worker in spec.items():
            home = os.path.join(self.folder, f"host{number}")
            os.mkdir(home, 0o700)
            env = {
                "HOST": f"host {number}",
                "GRN_SOCKET": os.path.join(home, "grn.sock"),
                "GRN_STATE_DIR": os.path.join(home, "state"),
                "GRN_DEVICES": "sim:2x2GiB",
            }
            self.environs.append(env)
            spec[number] = {**worker, "options": {**worker["options"], "env": env}}
        return spec

    def stop_brokers(self) -> None:
        """Have the brokers leave that were started on demand."""
        for environ in self.environs:
            stop = [sys.executable, "-m", "grn", "broker", "stop"]
            subprocess.run(stop, env={**os.environ, **environ}, check=True)  # noqa: S603


def told(places: list[Place]) -> str:
    """Say how many ran where."""
    seen = sorted({(each.host, each.device) for each in places})
    return "\n".join(
        f"{host}, device {device}: {sum((p.host, p.device) == (host, device) for p in places)}"
        for host, device in seen
    )


def by_flow(address: str, count: int) -> list[Place]:
    """Have Prefect submit it: the same function is a task."""
    from prefect_dask import DaskTaskRunner  # noqa: PLC0415 - only where it is wanted

    @flow(task_runner=DaskTaskRunner(address=address))
    def everywhere() -> list[Place]:
        return [each.result() for each in task(work).map([0.5] * count)]

    return everywhere()


def main() -> None:
    """Spread pieces of work over two hosts with two devices each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--flow", action="store_true", help="as tasks of a Prefect flow")
    given = parser.parse_args()
    # A call that waits for a device holds a thread: give each worker as many as may wait.
    with tempfile.TemporaryDirectory() as folder:
        with Hosts(folder, threads_per_worker=4) as cluster, Client(cluster) as client:
            cluster.scale(2)
            client.wait_for_workers(2)
            if given.flow:
                places = by_flow(cluster.scheduler_address, given.count)
            else:
                places = client.gather(client.map(work, [0.5] * given.count, pure=False))
        cluster.stop_brokers()
    print(told(places))


if __name__ == "__main__":
    main()
