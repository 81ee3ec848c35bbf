"""`@leased`: called directly, by threads, in an event loop, and by Prefect's own thread runner."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import Impossible, UsageError
from grn.isolate import BodyDied
from tests.env import BrokerEnv, eventually, wait_gone

pytest.importorskip("prefect")

from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner

from grn_plugins.prefect import GRNTaskRunner, leased
from tests.prefect import leasedwork as work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("prefect")


@pytest.fixture
def host(broker: Callable[..., BrokerEnv]) -> BrokerEnv:
    """Return a broker with two devices, to which this process's environment leads."""
    return broker("sim:2x4000MiB")


@pytest.fixture
def marks(tmp_path: Path) -> str:
    """Return the beginning of names of files in a folder that is empty."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return str(folder / "mark")


def check_idle(host: BrokerEnv) -> None:
    """See that nothing is held or wanted any more."""
    status = host.status()
    assert not status["leases"]
    assert not status["waiters"]


def bodies(marks: str) -> list[int]:
    """Return the processes that have left a mark."""
    return [int(name.split(".")[1]) for name in os.listdir(os.path.dirname(marks))]


def a_body(marks: str) -> int:
    """Return the process that left a mark, as soon as there is one."""
    return eventually(lambda: bodies(marks), what="a body runs")[0]


# -- without Prefect around it ----------------------------------------------------------------------


def test_threads_have_devices_of_their_own(host: BrokerEnv, marks: str) -> None:
    """Two run at once, on two devices, in two processes; the caller's environment stays."""
    before = dict(os.environ)
    with ThreadPoolExecutor(2) as pool:
        places = list(pool.map(lambda _: work.where(2, marks), range(2)))
    assert {each.mask for each in places} == {"0", "1"}
    assert len({each.pid for each in places} | {os.getpid()}) == 3
    assert dict(os.environ) == before
    for each in places:
        wait_gone(each.pid)
    check_idle(host)


def test_async_functions(host: BrokerEnv) -> None:
    """They run in a loop of their own, several at once, and are awaited."""

    async def three() -> list[work.Place]:
        return await asyncio.gather(*(work.where_async() for _ in range(3)))

    places = asyncio.run(three())
    assert {each.mask for each in places} == {"0", "1"}
    assert len({each.pid for each in places}) == 3
    check_idle(host)


def test_a_cancelled_call_leaves_nothing(host: BrokerEnv, marks: str) -> None:
    """When its task is cancelled, its process is ended before the cancellation goes on."""

    async def cancelled() -> int:
        call = asyncio.ensure_future(work.sleeps_async(marks))
        pid = await asyncio.to_thread(a_body, marks)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        check_idle(host)
        return pid

    wait_gone(asyncio.run(cancelled()), 1)


def test_inside_a_lease_it_is_just_called(host: BrokerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that has a lease it asks for nothing."""
    monkeypatch.setenv("GRN_LEASE", "outer")
    monkeypatch.setenv("GRN_MEM_MIB", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert work.where() == work.Place("7", os.getpid(), "outer", "1")
    check_idle(host)


def test_the_empty_mask_of_ray_narrows_nothing(
    host: BrokerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker of Ray that has hidden all devices from a task without GPUs, GRN has the say."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(Impossible, match="leaves 0 of 2"):
        work.where()
    monkeypatch.setenv("RAY_RAYLET_PID", "1")
    assert work.where().mask in {"0", "1"}
    check_idle(host)


def test_what_happens_to_a_body_is_told(host: BrokerEnv) -> None:
    """Its death is an error with the signal; what it yields is a list; a type may name an argument."""
    with pytest.raises(BodyDied, match=r"gone.* was killed by SIGKILL"):
        work.gone()
    assert work.lists(3) == [0, 1, 2]
    assert work.counts(2) == 2
    check_idle(host)


def test_misuse_is_told_where_it_is_written() -> None:
    """An unknown option, a wish without sense, the wrong order, what is no function."""
    with pytest.raises(UsageError, match=r"no option mem='8GiB' .did you mean memory="):
        leased(mem="8GiB")
    with pytest.raises(UsageError, match="memory=8192 is of a device, and gpus=0"):
        leased(0, "8GiB")
    with pytest.raises(UsageError, match="put it under it"):
        leased(task(work.gone))
    with pytest.raises(UsageError, match="is not a function"):
        leased(int)
    with pytest.raises(UsageError, match="no argument 'batch'"):
        leased(type="{batch}")(lambda rate: rate)


# -- by Prefect's own engine ------------------------------------------------------------------------


def states_of(*tasks: Any, runner: Any = None, **parameters: Any) -> list[Any]:
    """Run tasks in a flow; return the states in which they ended."""

    @flow(task_runner=runner or ThreadPoolTaskRunner())
    def run() -> None:
        futures.extend(each.submit(**parameters) for each in tasks)
        for future in futures:
            future.wait()

    futures: list[Any] = []
    run(return_state=True)
    return [future.state for future in futures]


def test_a_retry_is_a_new_process(host: BrokerEnv, marks: str) -> None:
    """One that was killed is tried again, in another process, under another lease."""
    (state,) = states_of(task(work.fails_first, retries=1), mark=marks)
    assert state.result().pid in bodies(marks)
    assert len(bodies(marks)) == 2
    check_idle(host)


def test_after_an_out_of_memory_it_gets_more(host: BrokerEnv, marks: str) -> None:
    """The next try of the same task run is booked larger, also where a size was declared."""
    (state,) = states_of(task(work.wants_more, retries=1), mark=marks)
    assert int(state.result().booked) > 1000
    check_idle(host)


def test_timeouts_end_the_process(host: BrokerEnv, marks: str) -> None:
    """A task that runs for too long is TimedOut and gone; so is one that waits for too long."""
    for seconds in (3, 12, 48):  # on a busy machine the time may be over before they begin
        before = set(bodies(marks))
        sleeper = task(work.sleeps, timeout_seconds=seconds)
        states = states_of(sleeper, sleeper, sleeper, mark=marks)
        assert [state.name for state in states] == ["TimedOut"] * 3
        begun = set(bodies(marks)) - before
        assert len(begun) <= 2  # the third waits for a device
        if len(begun) == 2:
            break
    assert len(begun) == 2
    for pid in bodies(marks):
        wait_gone(pid)
    check_idle(host)


def test_a_body_is_in_its_task_run(host: BrokerEnv, capfd: pytest.CaptureFixture[str]) -> None:
    """It logs, prints and knows its run; one that leaves like a program is Crashed."""
    (said,) = states_of(task(work.says, log_prints=True), word="it")
    assert said.result() == str(said.state_details.task_run_id)
    out = "".join(capfd.readouterr())
    assert "logged it" in out
    assert "printed it" in out
    (crashed,) = states_of(task(work.leaves))
    assert crashed.name == "Crashed"
    assert "sys.exit(3)" in crashed.message
    check_idle(host)


def test_under_our_runner_it_has_one_lease(host: BrokerEnv) -> None:
    """Beneath `GRNTaskRunner` it is the runner's lease, with what `@leased` wishes for."""
    (state,) = states_of(task(work.where), runner=GRNTaskRunner(gpus=2, memory=100))
    place = state.result()
    assert place.booked == "4000"
    assert place.mask in {"0", "1"}
    check_idle(host)


def test_tasks_that_are_called(host: BrokerEnv) -> None:
    """A task that a flow calls, and does not submit, has its device, too."""

    @flow
    def calls() -> work.Place:
        place: work.Place = task(work.where)()
        return place

    assert calls().pid != os.getpid()
    check_idle(host)
