"""What `@grn.job` promises of asynchronous calls, and when its caller is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import LeaseError
from tests.env import PATIENCE_S, ROOT, eventually, wait_gone
from tests.python import decorated
from tests.python.books import free

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device


# -- asynchronous ---------------------------------------------------------------------------------


def test_async_jobs_run_side_by_side(here: Here) -> None:
    """Each coroutine runs in a process and a loop of its own, while the caller's goes on."""
    env = here()

    async def many() -> list[tuple[int, int, str]]:
        return list(await asyncio.gather(*map(decorated.fetch, range(6))))

    results = asyncio.run(many())
    assert [number for number, _, _ in results] == list(range(6))
    assert len({pid for _, pid, _ in results} | {os.getpid()}) == 7
    assert len({lease for _, _, lease in results}) == 6
    assert free(env)


def test_async_in_place_one_at_a_time(here: Here) -> None:
    """In the caller's loop one runs, and another task is refused."""
    env = here()

    async def two() -> list[Any]:
        calls = (decorated.fetch_in_place(number) for number in range(2))
        return list(await asyncio.gather(*calls, return_exceptions=True))

    first, second = asyncio.run(two())
    assert first[:2] == (0, os.getpid())
    assert isinstance(second, LeaseError)
    assert free(env)


def test_cancelling_an_async_job_stops_it(here: Here, tmp_path: Path) -> None:
    """Its process is gone, its lease is free, and it counts for no failure."""
    env = here()
    path = tmp_path / "pid"

    async def cancelled() -> None:
        task = asyncio.create_task(decorated.stay_async(str(path)))
        await asyncio.to_thread(eventually, lambda: path.exists() and path.read_text())
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancelled())
    wait_gone(int(path.read_text()))
    eventually(lambda: free(env))


def test_ctrl_c_stops_the_job_with_its_caller(scripts: Callable[..., Any], tmp_path: Path) -> None:
    """KeyboardInterrupt in the caller ends the job's process; its lease is given back."""
    made = scripts()
    path = tmp_path / "pid"
    script = made.write(
        f"from tests.python.decorated import stay\ntry:\n    stay({str(path)!r})\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
    )
    env = {**made.env.environ, "PYTHONPATH": ROOT}
    caller = made.env.popen([sys.executable, script], env=env, stdout=-1)
    eventually(lambda: path.exists() and path.read_text())
    caller.send_signal(signal.SIGINT)
    assert caller.communicate(timeout=PATIENCE_S)[0] == b"stopped\n"
    wait_gone(int(path.read_text()))
    assert free(made.env)


def test_ctrl_c_ends_the_wait_for_a_lease(scripts: Callable[..., Any]) -> None:
    """KeyboardInterrupt while a call waits withdraws its request; the process may go on."""
    made = scripts()
    talker = made.env.talker()
    grant = talker.acquire(memory_mib="whole")
    script = made.write(
        "from tests.python.decorated import train\nimport sys\n"
        "try:\n    train(1.0)\nexcept KeyboardInterrupt:\n    print('stopped', flush=True)\n"
        "sys.stdin.read()\n"
    )
    env = {**made.env.environ, "PYTHONPATH": ROOT}
    caller = made.env.popen([sys.executable, script], env=env, stdout=-1, stdin=-1)
    eventually(lambda: made.env.status()["waiters"])
    caller.send_signal(signal.SIGINT)
    assert caller.stdout.readline() == b"stopped\n"
    eventually(lambda: not made.env.status()["waiters"])
    assert caller.poll() is None
    caller.communicate(timeout=PATIENCE_S)
    talker.release(grant)


def test_a_callers_death_ends_its_job(scripts: Callable[..., Any], tmp_path: Path) -> None:
    """No job outlives a caller that was killed, and no lease does."""
    made = scripts()
    path = tmp_path / "pid"
    script = made.write(f"from tests.python.decorated import stay\nstay({str(path)!r})\n")
    env = {**made.env.environ, "PYTHONPATH": ROOT}
    caller = made.env.popen([sys.executable, script], env=env)
    eventually(lambda: path.exists() and path.read_text())
    caller.kill()
    caller.wait(PATIENCE_S)
    wait_gone(int(path.read_text()))
    eventually(lambda: free(made.env))
