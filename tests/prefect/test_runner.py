"""`GRNTaskRunner`: where bodies run, what they get, what comes back."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

from tests.env import BrokerEnv, eventually

pytest.importorskip("prefect")

from prefect import flow
from prefect.settings import PREFECT_TASKS_REFRESH_CACHE, temporary_settings
from prefect.transactions import transaction

from grn.errors import UsageError
from grn_plugins.prefect import GRNTaskRunner, gpu_options
from tests.prefect import work

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("prefect")


def check_idle(env: BrokerEnv) -> None:
    """See that nothing is held or wanted any more."""
    status = env.status()
    assert not status["leases"]
    assert not status["waiters"]


def leases_taken(env: BrokerEnv) -> int:
    """Count the leases that there have been; one more each time."""
    with env.client().acquire("counting", gpus=0) as lease:
        return int(lease.id.rpartition("-")[2])


def test_tasks_at_once_have_different_devices_and_the_flow_none(
    broker: Callable[..., BrokerEnv], tmp_path: Path
):
    """Four tasks that run together have four masks and four processes; the flow's stays its own."""
    env = broker("sim:4x8000MiB")
    before = dict(os.environ)

    @flow(task_runner=GRNTaskRunner(memory="whole"))
    def together() -> list[dict[str, Any]]:
        futures = [work.meet.submit(str(tmp_path), number, 4) for number in range(4)]
        return [future.result() for future in futures]

    told = together()
    assert {each["mask"] for each in told} == {"0", "1", "2", "3"}
    assert len({each["pid"] for each in told} | {os.getpid()}) == 5
    assert dict(os.environ) == before
    check_idle(env)


def test_whatever_kind_of_task(broker: Callable[..., BrokerEnv]):
    """Sync, async, mapped, generators, renamed, with inputs of all kinds: all run, one lease each."""
    env = broker()

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def kinds() -> dict[str, Any]:
        one = work.add.submit(1, 2)
        mapped = work.tell.map(range(5), wait_for=[one])
        futures = {
            "future": work.add.submit(one, one),
            "nested": work.same.submit({"a": [one, (one,)]}),
            "async": work.tell_async.submit(one),
            "generator": work.count.submit(3),
            "async generator": work.count_async.submit(3),
            "renamed": work.add.with_options(name="other").submit(1, other=2),
        }
        found = {name: future.result() for name, future in futures.items()}
        return {**found, "mapped": [each.result() for each in mapped]}

    found = kinds()
    assert found["future"] == 6
    assert found["nested"] == {"a": [3, (3,)]}
    assert found["async"]["value"] == 3
    assert found["generator"] == found["async generator"] == [0, 1, 2]
    assert found["renamed"] == 3
    assert [each["value"] for each in found["mapped"]] == [0, 1, 2, 3, 4]
    leases = {each["lease"] for each in [*found["mapped"], found["async"]]}
    assert len(leases) == 6
    check_idle(env)


def test_an_async_flow(broker: Callable[..., BrokerEnv]):
    """A flow in an event loop submits tasks as any other."""
    broker()

    @flow(task_runner=GRNTaskRunner(memory=1000))
    async def asynchronous() -> list[Any]:
        futures = [work.add.submit(1), work.tell_async.submit(2)]
        return [future.result() for future in futures]

    found = asyncio.run(asynchronous())
    assert found[0] == 2
    assert found[1]["value"] == 2
    assert found[1]["pid"] != os.getpid()


def test_no_device_for_what_does_not_run(broker: Callable[..., BrokerEnv]):
    """A task whose input failed, and one whose result is kept, take no lease."""
    env = broker()

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def idle() -> Any:
        failed = work.fail.submit()
        after = work.same.submit(failed)
        after.wait()
        first = work.kept.submit(env.folder).result()
        before = leases_taken(env)
        again = work.kept.submit(env.folder).result()
        assert leases_taken(env) == before + 1
        return after.state.name, first, again

    name, first, again = idle()
    assert name == "NotReady"
    assert first == again
    assert first["lease"]


def test_each_try_is_a_new_lease_and_a_new_process(broker: Callable[..., BrokerEnv]):
    """A body that is killed, and fails, and works the third time: three processes, three leases."""
    env = broker()
    path = os.path.join(env.folder, "tries")

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def retried() -> int:
        return int(work.third_time.submit(path).result())

    assert retried() == 3
    with open(path, encoding="ascii") as file:
        tries = [line.split() for line in file]
    assert len({pid for pid, _, _ in tries}) == len({lease for _, lease, _ in tries}) == 3
    check_idle(env)


def test_a_retry_after_out_of_memory_gets_more(broker: Callable[..., BrokerEnv]):
    """What died of 1000 MiB is booked at least a half more when it is retried."""
    env = broker()
    path = os.path.join(env.folder, "tries")

    @flow(task_runner=GRNTaskRunner())
    def larger() -> int:
        return int(work.too_big_at_first.submit(path).result())

    assert larger() >= 1500
    with open(path, encoding="ascii") as file:
        assert next(file).split()[2] == "1000"


def test_how_bodies_end(broker: Callable[..., BrokerEnv]):
    """Killed, left, interrupted, too slow, out of memory, not to be pickled: each its own state."""
    env = broker()

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def ends() -> dict[str, tuple[str, str]]:
        futures = {
            "killed": work.die.submit(),
            "crashed": work.die.submit(11),
            "left": work.leave.submit(),
            "interrupted": work.interrupt.submit(),
            "slow": work.sleep_too_long.submit(),
            "memory": work.run_out.submit(),
            "result": work.give_lock.submit(),
            "argument": work.same.submit(threading.Lock()),
            "exception": work.raise_odd.submit(),
            "well": work.add.submit(1),
        }
        found = {}
        for name, future in futures.items():
            future.wait()
            found[name] = (future.state.name, str(future.state.message))
        return found

    found = ends()
    states = {name: state for name, (state, _) in found.items()}
    assert states == {
        "killed": "Failed",
        "crashed": "Failed",
        "left": "Crashed",
        "interrupted": "Crashed",
        "slow": "TimedOut",
        "memory": "Failed",
        "result": "Failed",
        "argument": "Failed",
        "exception": "Failed",
        "well": "Completed",
    }
    assert "killed by SIGKILL" in found["killed"][1]
    assert "killed by SIGSEGV" in found["crashed"][1]
    assert "sys.exit(3)" in found["left"][1]
    assert "limit of 0.5 s" in found["slow"][1]
    assert "lock" in found["result"][1]
    assert "argument 1 (lock)" in found["argument"][1]
    assert "raised tests.prefect.work.Odd: odd" in found["exception"][1]
    ended = re.search(r"process (\d+) was ended", found["slow"][1])
    assert ended is not None
    assert not os.path.exists(f"/proc/{ended[1]}")
    check_idle(env)


def test_a_crash_is_never_a_kept_result(broker: Callable[..., BrokerEnv]):
    """A body that left by sys.exit is run again by a flow with the same inputs."""
    env = broker()
    path = os.path.join(env.folder, "tries")

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def twice() -> tuple[str, str]:
        first = work.kept_crash.submit(path)
        first.wait()
        return first.state.name, work.kept_crash.submit(path).result()

    assert twice() == ("Crashed", "came back")


def test_hooks_and_rollback_run_in_the_flow(broker: Callable[..., BrokerEnv]):
    """Prefect's own means stay what they are: a rollback hook and a failure hook see the flow's process."""
    broker()
    seen: list[tuple[str, int]] = []
    undone = work.add.with_options()
    undone.on_rollback(lambda _: seen.append(("rollback", os.getpid())))
    failing = work.fail.with_options()
    failing.on_failure_hooks = [lambda *_: seen.append(("failure", os.getpid()))]

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def rolled_back() -> None:
        failing.submit().wait()
        with transaction():
            undone.submit(1).result()
            raise RuntimeError("back")

    rolled_back(return_state=True)
    assert sorted(seen) == [("failure", os.getpid()), ("rollback", os.getpid())]


def test_large_arrays_go_and_come(broker: Callable[..., BrokerEnv]):
    """An array of 64 MB is the same after it has been to a body and back, and can be written to."""
    numpy = pytest.importorskip("numpy")
    broker()
    array = numpy.arange(8_000_000)

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def travel() -> Any:
        return work.same.submit(array).result()

    back = travel()
    assert (back == array).all()
    back[0] = 1


def test_tasks_without_a_device(broker: Callable[..., BrokerEnv]):
    """`gpus=0` is a process with an empty mask and no lease, `gpus=None` a thread of the flow."""
    env = broker()

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def without() -> tuple[dict[str, Any], int]:
        return work.on_cpu.submit().result(), work.in_thread.submit().result()

    cpu, thread = without()
    assert cpu["mask"] == ""
    assert cpu["lease"] is None
    assert cpu["pid"] != os.getpid()
    assert thread == os.getpid()
    check_idle(env)


def test_options_around_a_submit(broker: Callable[..., BrokerEnv]):
    """`gpu_options` wins over the decorator for what is submitted in its block."""
    broker()

    @flow(task_runner=GRNTaskRunner())
    def options() -> tuple[int, str, int]:
        with gpu_options(memory="2GiB"):
            more = work.inner.submit(0)
        with gpu_options(gpus=2):
            two = work.inner.submit(0)
        usual = work.inner.submit(0)
        return more.result()["mib"], two.result()["mask"], usual.result()["mib"]

    assert options() == (2048, "0,1", 1000)


def test_what_is_wrong_is_said_at_once(broker: Callable[..., BrokerEnv]):
    """An unknown option raises where it is written; what this machine can never give fails the task."""
    broker()
    with pytest.raises(UsageError, match=r"memry.*did you mean memory"):
        GRNTaskRunner(memry=1)
    with pytest.raises(UsageError, match="gpus=-1"):
        GRNTaskRunner(gpus=-1)
    with pytest.raises(UsageError, match=r"^GRNTaskRunner\(\): .*'lots'"):
        GRNTaskRunner(memory="lots")

    @flow(task_runner=GRNTaskRunner())
    def wrong() -> str:
        with gpu_options(gpus=3):
            future = work.tell.submit()
        future.wait()
        return str(future.state.message)

    assert "3" in wrong()


def test_the_initializer_comes_before_the_module(broker: Callable[..., BrokerEnv]):
    """Each process calls it first, with its lease's environment in place."""
    env = broker()
    path = os.path.join(env.folder, "first")

    @flow(task_runner=GRNTaskRunner(memory=1000, initializer=_noting(path)))
    def initialized() -> dict[str, Any]:
        return dict(work.tell.submit().result())

    told = initialized()
    with open(path, encoding="ascii") as file:
        assert file.read() == f"{told['pid']} {told['lease']} False\n"


def _noting(path: str) -> Callable[[], None]:
    def initializer() -> None:
        with open(path, "a", encoding="ascii") as file:
            imported = "tests.prefect.work" in sys.modules
            file.write(f"{os.getpid()} {os.environ['GRN_LEASE']} {imported}\n")

    return initializer


def test_a_runner_is_its_options(prefect_here: None):
    """Copies and pickles of a runner are equal to it; making and entering them starts nothing."""
    del prefect_here
    runner = GRNTaskRunner(memory="4GiB", priority=2, preload=["json"], grace_s=1)
    assert runner.duplicate() == runner == cloudpickle.loads(cloudpickle.dumps(runner))
    assert runner != GRNTaskRunner(memory="5GiB")
    with runner.duplicate() as entered:
        assert entered.name == "grn"


@pytest.mark.usefixtures("prefect_here")
def test_settings_of_the_moment_reach_the_body(broker: Callable[..., BrokerEnv]):
    """A setting that is changed around a flow is what its bodies find."""
    broker()

    @flow(task_runner=GRNTaskRunner(memory=1000))
    def set_here() -> Any:
        return work.setting.submit().result()

    assert set_here() is False
    with temporary_settings({PREFECT_TASKS_REFRESH_CACHE: True}):
        assert set_here() is True


def test_in_the_order_of_submits(broker: Callable[..., BrokerEnv]):
    """Tasks that want the same device get it in the order in which they were submitted."""
    env = broker("sim:1x8000MiB")
    path = os.path.join(env.folder, "order")

    @flow(task_runner=GRNTaskRunner(memory="whole"))
    def ordered() -> None:
        for future in [work.note.submit(path, number) for number in range(12)]:
            future.wait()

    ordered()
    with open(path, encoding="ascii") as file:
        assert [int(line) for line in file] == list(range(12))


@pytest.mark.parametrize("ends", [("ok",), ("failed",), ("ok", "failed")])
def test_a_returned_state_is_how_it_ended(broker: Callable[..., BrokerEnv], ends: tuple[str, ...]):
    """To Prefect a task that returns a failed state has failed: its memory makes no profile."""
    env = broker("sim:1x8000MiB", sample_fast="0.05")

    @flow(task_runner=GRNTaskRunner(type="gives-up"))
    def gives_up() -> None:
        future = work.uses.submit(*ends)
        future.wait()
        assert future.state.is_failed() == ("failed" in ends)

    gives_up()
    peaks = [profile["peak_mib"] for profile in env.client().profiles()]
    assert peaks == [None if "failed" in ends else 2000]


def test_when_the_flow_fails(broker: Callable[..., BrokerEnv]):
    """What waits is cancelled, and the flow does not wait for devices."""
    env = broker("sim:1x8000MiB")
    futures: list[Any] = []

    @flow(task_runner=GRNTaskRunner(memory="whole"))
    def failing() -> None:
        futures.append(work.tell.submit())
        eventually(lambda: env.status()["waiters"])
        raise ValueError("the flow fails")

    with env.client().acquire("held", whole=True):
        assert failing(return_state=True).is_failed()
        futures[0].wait()
        assert futures[0].state.name == "Cancelled"
        assert not env.status()["waiters"]
