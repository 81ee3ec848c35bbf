"""The asyncio client: many requests on one connection, cancelling, and brokers that die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn.aclient import AsyncClient
from grn.client import ANSWER_WITHIN_S
from grn.errors import BrokerSilent, BrokerUnavailable, Impossible, UsageError, WaitExpired
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def run(body: Awaitable[Any]) -> None:
    """Run a test's body, and end it if it hangs."""
    asyncio.run(asyncio.wait_for(body, 2 * PATIENCE_S))  # type: ignore[arg-type]


async def soon(condition: Callable[[], Any]) -> Any:
    """Wait for a condition without stopping the event loop."""
    return await asyncio.to_thread(eventually, condition)


def test_a_lease_as_a_context(new_env: NewEnv):
    """A lease is held inside `async with`, and its outcome is how the block ended."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            assert client.broker["pid"] == env.pid
            async with await client.acquire("t", memory_mib=4000, label="mine") as lease:
                assert lease.memory_mib == 4000
                assert lease.environment()["GRN_LEASE"] == lease.id
                (told,) = (await client.status())["leases"]
                assert (told["id"], told["label"]) == (lease.id, "mine")
            assert (await client.status())["leases"] == []
            with pytest.raises(RuntimeError, match="boom"):
                async with await client.acquire("t", memory_mib=4000):
                    raise RuntimeError("boom")
            assert (await client.status())["leases"] == []

    run(body())


def test_many_tasks_wait_at_once(new_env: NewEnv):
    """Two hundred tasks share one connection; no more run at once than there is room for."""
    env = new_env("sim:2x10000MiB", debug="no")
    running = peak = done = 0

    async def one(client: AsyncClient, full: asyncio.Event) -> None:
        nonlocal running, peak, done
        async with await client.acquire("t", memory_mib=5000):
            running += 1
            peak = max(peak, running)
            if running == 4:
                full.set()
            await full.wait()
            running -= 1
            done += 1

    async def body() -> None:
        full = asyncio.Event()
        async with AsyncClient(env.settings) as client, asyncio.TaskGroup() as tasks:
            for _ in range(200):
                tasks.create_task(one(client, full))

    run(body())
    assert (done, peak) == (200, 4)


def test_a_cancelled_task_no_longer_waits(new_env: NewEnv):
    """Cancelling an acquire withdraws its request; who waits behind it is granted."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            held = await client.acquire("t", memory_mib=4000)
            head = asyncio.create_task(client.acquire("t", whole=True))
            await soon(lambda: len(env.status()["waiters"]) == 1)
            head.cancel()
            with pytest.raises(asyncio.CancelledError):
                await head
            await held.release()
            await (await client.acquire("t", whole=True)).release()
            assert (await client.status())["waiters"] == []

    run(body())


def test_a_grant_that_nobody_waits_for_is_given_back(new_env: NewEnv):
    """Wherever a cancellation meets a grant on its way, no lease is left."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            for steps in range(30):
                task = asyncio.create_task(client.acquire("t", whole=True))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    lease = await task
                except asyncio.CancelledError:
                    continue
                await lease.release()
            await (await client.acquire("t", whole=True, wait_s=PATIENCE_S)).release()

    run(body())


def test_waiting_no_longer_than_allowed(new_env: NewEnv):
    """With `wait_s` an acquire ends in time, and leaves no request behind."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            await client.acquire("t", whole=True)
            began = time.monotonic()
            with pytest.raises(WaitExpired):
                await client.acquire("t", whole=True, wait_s=0.1)
            assert time.monotonic() - began < PATIENCE_S / 2
            assert (await client.status())["waiters"] == []

    run(body())


def test_errors_are_those_of_the_blocking_client(new_env: NewEnv):
    """What can never be met, and what makes no sense, raises the class that says so."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            with pytest.raises(Impossible, match="10001"):
                await client.acquire("t", memory_mib=10001)
            with pytest.raises(UsageError, match="policy"):
                await client.acquire("t", policy="wild")
            assert await client.profiles("set", type="t", memory_mib=5)
            assert (await client.profiles())[0]["estimate_mib"] == 5

    run(body())


def test_a_killed_broker_is_survived(new_env: NewEnv):
    """Leases are kept and waiting requests are asked again when the next broker is there."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            held = [await client.acquire("t", memory_mib=5000) for _ in range(2)]
            waiting = [asyncio.create_task(client.acquire("t", memory_mib=5000)) for _ in range(4)]
            await soon(lambda: len(env.status()["waiters"]) == 4)
            await asyncio.to_thread(env.restart)
            await soon(lambda: len(env.status()["waiters"]) == 4)
            assert {x["id"] for x in env.status()["leases"]} == {lease.id for lease in held}
            for lease in held:
                assert await lease.release() is not None
            for task in waiting:
                assert await (await task).release() is not None
            assert (await client.status())["leases"] == []

    run(body())


def test_leases_released_while_no_broker_runs(new_env: NewEnv):
    """A release that finds the broker dead is made good at the next one."""
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            leases = [await client.acquire("t", memory_mib=1000) for _ in range(3)]
            env.kill()
            releases = [asyncio.create_task(lease.release()) for lease in leases]
            await asyncio.to_thread(env.start)
            reports = await asyncio.gather(*releases)
            assert [report["outcome"] for report in reports if report] == ["ok"] * 3
            assert (await client.status())["leases"] == []

    run(body())


def test_no_broker(new_env: NewEnv):
    """Without a broker connecting fails at once and says how to start one."""
    env = new_env(start=False)

    async def body() -> None:
        with pytest.raises(BrokerUnavailable, match="grn broker"):
            await AsyncClient(env.settings).connect()

    run(body())


def test_a_closed_client(new_env: NewEnv):
    """Tasks that still wait when the client is closed end with an error, not never."""
    env = new_env()

    async def body() -> None:
        client = await AsyncClient(env.settings).connect()
        await client.acquire("t", whole=True)
        waiting = asyncio.create_task(client.acquire("t", whole=True))
        await soon(lambda: env.status()["waiters"])
        await client.close()
        with pytest.raises(BrokerUnavailable):
            await waiting
        with pytest.raises(BrokerUnavailable):
            await client.status()

    run(body())


def test_inside_a_lease(new_env: NewEnv, monkeypatch: pytest.MonkeyPatch):
    """Inside a lease the outer one is handed out, and stays when the inner use ends."""
    env = new_env()
    talker = env.talker()
    outer = talker.acquire("t", memory_mib=4000)
    monkeypatch.setenv("GRN_LEASE", outer["lease"])

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            async with await client.acquire("inner", memory_mib=1000) as lease:
                assert lease.id == outer["lease"]
            assert [x["id"] for x in (await client.status())["leases"]] == [outer["lease"]]

    run(body())


# -- a broker that hangs --------------------------------------------------------------------------


@contextlib.contextmanager
def hanging(env: BrokerEnv) -> Iterator[None]:
    """Let the broker hang meanwhile."""
    os.kill(env.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(env.pid, signal.SIGCONT)


def test_a_broker_that_hangs_is_told_as_by_the_blocking_client(new_env: NewEnv):
    """The same error with the same words, after the same time; afterwards the client goes on."""
    env = new_env()
    told: list[str] = []

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            assert client.answer_within_s == ANSWER_WITHIN_S == 30.0
            client.answer_within_s = 0.3
            with hanging(env):
                for call in (client.status, client.profiles):
                    with pytest.raises(BrokerSilent) as caught:
                        await call()
                    told.append(caught.value.message)
            client.answer_within_s = PATIENCE_S
            assert (await client.status())["leases"] == []

    blocking = env.client()
    blocking.status()
    blocking.answer_within_s = 0.3
    with hanging(env), pytest.raises(BrokerSilent) as caught:
        blocking.status()
    run(body())
    assert told == [caught.value.message] * 2


def test_a_wait_ends_in_time_though_the_broker_hangs(new_env: NewEnv, monkeypatch: Any):
    """Its withdrawal is found when the broker wakes up, and no lease is left."""
    monkeypatch.setattr("grn.aclient._WITHDRAWN_WITHIN_S", 0.2)
    env = new_env()

    async def body() -> None:
        async with AsyncClient(env.settings) as client:
            with hanging(env), pytest.raises(WaitExpired):
                await client.acquire("t", memory_mib=1000, wait_s=0.1)
            await soon(lambda: not (s := env.status())["leases"] and not s["waiters"])

    run(body())


def test_closing_does_not_wait_for_a_broker_that_hangs(new_env: NewEnv, monkeypatch: Any):
    """What was sent last may not have been taken; the connection ends all the same."""
    monkeypatch.setattr("grn.aclient._CLOSED_WITHIN_S", 0.2)
    env = new_env()

    async def body() -> None:
        client = await AsyncClient(env.settings).connect()
        with hanging(env):
            for _ in range(200):
                client._wire.send({"op": "leave", "id": 1, "much": "x" * 50_000})
            await asyncio.wait_for(client.close(), PATIENCE_S)

    run(body())
