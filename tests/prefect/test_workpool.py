"""Workers of Prefect on a GPU host: a process work pool, and a process that serves tasks.

Their flow runs and tasks meet in the broker of the host.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import ROOT, BrokerEnv, eventually, wait_gone

prefect = pytest.importorskip("prefect")

from prefect.client.orchestration import SyncPrefectClient, get_client  # noqa: E402
from prefect.client.schemas.filters import FlowRunFilter  # noqa: E402
from prefect.deployments import run_deployment  # noqa: E402

from tests.prefect.poolflow import served  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from tests.prefect.serving import PrefectServer

pytestmark = pytest.mark.xdist_group("prefect")

HERE = os.path.dirname(os.path.abspath(__file__))
POOL = "gpu-host"
_LONG_S = 240.0
"""How long a busy machine may take for a flow run to be picked up and loaded."""


class Pool:
    """A work pool, its worker, and a deployment in it."""

    def __init__(self, env: BrokerEnv, server: PrefectServer, folder: Path) -> None:
        self.env = env
        self.server = server
        self.folder = folder
        self.mark = str(folder / "mark")
        self.environ = {
            **{
                k: v
                for k, v in os.environ.items()
                if not k.startswith(("GRN_", "CUDA_", "PREFECT_"))
            },
            **env.environ,
            **server.environ,
            "PREFECT_WORKER_QUERY_SECONDS": "0.5",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }

    def prefect(self, *words: str) -> str:
        """Run Prefect's command line."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *words],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONG_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def deploy(self) -> str:
        """Deploy the flow."""
        source = self.folder / "source"
        source.mkdir()
        shutil.copy(os.path.join(HERE, "poolflow.py"), source)
        flow: Any = prefect.flow.from_source(str(source), "poolflow.py:held")
        flow.deploy(name="d", work_pool_name=POOL, print_next_steps=False, ignore_warnings=True)
        return "held/d"

    def start_worker(self) -> None:
        """Start the worker of this host; no limit, as the broker has the say."""
        words = ["worker", "start", "--pool", POOL, "--name", "this-host"]
        with open(self.folder / "worker.log", "ab") as log:
            self.worker = self.env.popen(
                [sys.executable, "-m", "prefect", *words],
                env=self.environ,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def stop_worker(self) -> None:
        """Stop it."""
        self.worker.send_signal(signal.SIGINT)
        self.worker.wait(_LONG_S)

    def run(self, number: int) -> UUID:
        """Ask for a flow run, without waiting for it."""
        parameters = {"mark": self.mark, "number": number, "count": 2}
        run: Any = run_deployment("held/d", parameters=parameters, timeout=0)
        identity: UUID = run.id
        return identity

    def bodies(self) -> dict[int, int]:
        """Return the processes that hold or held a device, and of which flow run they are."""
        names = [path.name.split(".") for path in self.folder.glob("mark.*")]
        return {int(pid): int(number) for _, pid, number in names}

    def log(self) -> str:
        """Return what the worker said."""
        return (self.folder / "worker.log").read_text()


@pytest.fixture
def pool(
    new_env: Callable[..., BrokerEnv], server: PrefectServer, prefect_here: None, tmp_path: Path
) -> Iterator[Pool]:
    """Return a pool with a worker, and one deployment in it."""
    del prefect_here
    made = Pool(new_env("sim:2x4000MiB"), server, tmp_path)
    made.prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
    made.deploy()
    made.start_worker()
    try:
        yield made
    finally:
        made.stop_worker()


def runs_of(client: SyncPrefectClient, ids: list[UUID]) -> list[Any]:
    """Return flow runs as they are now."""
    found = client.read_flow_runs(flow_run_filter=FlowRunFilter(id={"any_": ids}))
    return sorted(found, key=lambda run: ids.index(run.id))


def task_states(client: SyncPrefectClient, ids: list[UUID]) -> list[str]:
    """Return the names of the states of the task runs of some flow runs."""
    runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": ids}))
    return [run.state_name or "" for run in runs]


def test_flow_runs_meet_in_one_broker_and_can_be_cancelled(pool: Pool) -> None:
    """Three flow runs with two tasks each share two devices; one is cancelled, the others go on.

    The cancelled one leaves no process and no lease, and its tasks are Cancelled, those that waited too.
    """
    (pool.folder / "mark").touch()
    ids = [pool.run(number) for number in range(3)]
    waits_for: Any = lambda: (  # noqa: E731
        len(pool.bodies()) == 2 and len(pool.env.status()["waiters"]) == 4
    )
    eventually(waits_for, _LONG_S, f"two hold, four wait; the worker said:\n{pool.log()}")
    first = next(iter(pool.bodies().values()))  # one that holds a device
    begun = dict(pool.bodies())
    pool.prefect("flow-run", "cancel", str(ids[first]))
    for pid, number in begun.items():
        if number == first:
            wait_gone(pid, _LONG_S)
    with get_client(sync_client=True) as client:
        eventually(lambda: runs_of(client, ids)[first].state_name == "Cancelled", _LONG_S)
        eventually(lambda: task_states(client, [ids[first]]) == ["Cancelled"] * 2, _LONG_S)
        (pool.folder / "mark").unlink()
        others = [run for n, run in enumerate(ids) if n != first]
        eventually(
            lambda: [run.state_name for run in runs_of(client, others)] == ["Completed"] * 2,
            _LONG_S,
        )
        held = [each for run in runs_of(client, others) for each in run.state.result(_sync=True)]
    assert len(held) == 4
    for number, mask, start, end in held:
        same = [each for each in held if each[1] == mask and each[2:] != (start, end)]
        assert all(other[3] <= start or end <= other[2] for other in same), held
        assert mask in {"0", "1"}, number
    status = pool.env.status()
    assert not status["leases"]
    assert not status["waiters"]
    for pid in pool.bodies():
        wait_gone(pid)


_SERVE = (
    "from prefect.task_worker import serve; from tests.prefect.poolflow import served;"
    " serve(served, limit=None)"
)
_TALKS = {"PREFECT_LOGGING_LEVEL": "INFO"}


@pytest.mark.usefixtures("prefect_here")
def test_a_process_that_serves_tasks(
    new_env: Callable[..., BrokerEnv], server: PrefectServer, tmp_path: Path
) -> None:
    """Tasks that are sent to it share the host's devices; when it is killed, nothing is left of them."""
    env = new_env("sim:2x4000MiB")
    mark = tmp_path / "mark"
    mark.touch()
    with open(tmp_path / "log", "ab") as log:
        worker = env.popen(
            [sys.executable, "-c", _SERVE],
            env={**env.environ, **server.environ, "PYTHONPATH": ROOT, **_TALKS},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    # What is sent before may be lost with older clients.
    eventually(lambda: "Subscribing to runs" in (tmp_path / "log").read_text(), _LONG_S)

    def held() -> list[int]:
        return [int(path.name.split(".")[1]) for path in tmp_path.glob("mark.*")]

    def two_hold() -> bool:
        assert worker.poll() is None, (tmp_path / "log").read_text()
        return len(held()) == 2 and len(env.status()["waiters"]) == 1

    futures = [served.delay(str(mark), number) for number in range(3)]
    eventually(two_hold, _LONG_S, "two hold a device and one waits")
    mark.unlink()
    with get_client(sync_client=True) as client:
        runs = [future.task_run_id for future in futures]
        eventually(
            lambda: [client.read_task_run(run).state_name for run in runs] == ["Completed"] * 3,
            _LONG_S,
        )
    assert len(set(held())) == 3
    for path in tmp_path.glob("mark.*"):
        path.unlink()
    mark.touch()
    for number in range(3):
        served.delay(str(mark), number)
    eventually(two_hold, _LONG_S, "two hold a device again and one waits")
    worker.kill()
    for pid in held():
        wait_gone(pid)
    eventually(lambda: not env.status()["leases"] and not env.status()["waiters"])
