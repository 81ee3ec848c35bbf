"""One connection for all threads of a process."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from grn import hub, hubasync
from grn.errors import BrokerUnavailable, Cancelled, Impossible, WaitExpired
from grn.hub import Hub
from grn.wishes import Wish
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

USUAL: dict[str, Any] = {
    "gpus": 1,
    "memory": None,
    "policy": None,
    "cpus": None,
    "ram": None,
    "flavor": None,
    "priority": 0,
    "wait": None,
    "label": "",
    "env": None,
    "if_unavailable": "fail",
    "type": None,
}


def wish(**fields: Any) -> dict[str, Any]:
    """Return an `acquire` of this process."""
    return Wish(**{**USUAL, **fields}).request("job", in_process=False)[0]


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start work in a thread; return a function that waits for its result, or raises its error."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - handed over
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the thread still waits"
        if failed:
            raise failed[0]
        return found[0]

    return result


def waiters(env: BrokerEnv) -> int:
    """Count the requests that wait."""
    return len(env.status()["waiters"])


def test_threads_share_one_connection(here: Here) -> None:
    """Twenty threads that wait are one client with one reading thread."""
    env = here()
    grant = hub.acquire(wish(memory="whole"))
    results = [in_thread(lambda: hub.acquire(wish(memory=100))) for _ in range(20)]
    eventually(lambda: waiters(env) == 20)
    assert [thread.name for thread in threading.enumerate()].count("grn-hub") == 1
    hub.release(grant, exit_code=0)
    grants = [result() for result in results]
    assert len({grant.lease for grant in grants}) == 20
    for grant in grants:
        assert hub.release(grant, exit_code=0) is not None
    assert not env.status()["leases"]


def test_the_reader_ends_when_nothing_is_awaited(here: Here) -> None:
    """A process at rest has no thread of ours, and holds no connection that keeps a broker alive."""
    here()
    hub.release(hub.acquire(wish()), exit_code=0)
    mine = hub.shared()
    eventually(lambda: mine._reader is None)
    assert mine._connection is None
    hub.release(hub.acquire(wish()), exit_code=0)


def test_what_can_never_be_met_is_refused(here: Here) -> None:
    """The broker's refusal is raised where the request was made."""
    here()
    with pytest.raises(Impossible, match="20000 MiB"):
        hub.acquire(wish(memory=20000))


def test_waiting_ends_when_its_time_is_up(here: Here) -> None:
    """Who gives up is told why it was not granted, and waits no more in the books."""
    env = here()
    held = hub.acquire(wish(memory="whole"))
    with pytest.raises(WaitExpired, match=r"within 0.05 s: .*MiB"):
        hub.acquire(wish(memory=100), wait_s=0.05)
    assert waiters(env) == 0
    hub.release(held)


def test_no_patience_is_enough_where_there_is_room(here: Here) -> None:
    """A wait of 0 seconds takes what is free now."""
    here()
    hub.release(hub.acquire(wish(), wait_s=0), exit_code=0)


def test_a_caller_can_be_asked_to_stop(here: Here) -> None:
    """`should_stop` withdraws the request."""
    env = here()
    held = hub.acquire(wish(memory="whole"))
    stop = threading.Event()
    result = in_thread(lambda: hub.acquire(wish(memory=100), should_stop=stop.is_set))
    eventually(lambda: waiters(env) == 1)
    stop.set()
    with pytest.raises(Cancelled):
        result()
    eventually(lambda: waiters(env) == 0)
    hub.release(held)


def test_a_grant_that_nobody_wants_is_given_back(here: Here) -> None:
    """What is granted to a caller who has gone is free again."""
    env = here()
    mine = hub.shared()
    held = hub.acquire(wish(memory="whole"))
    pending = mine.ask(wish(memory=100))
    eventually(lambda: waiters(env) == 1)
    pending.unwanted = True
    hub.release(held)
    assert pending.wait(PATIENCE_S)
    eventually(lambda: not env.status()["leases"])
    late = mine.ask(wish(memory=100))
    assert late.wait(PATIENCE_S)
    mine.abandon(late)
    eventually(lambda: not env.status()["leases"])


def test_waiting_survives_the_brokers_death(here: Here) -> None:
    """Who waits, waits on at the next broker; what is held stays held."""
    env = here()
    held = hub.acquire(wish(memory="whole"))
    result = in_thread(lambda: hub.acquire(wish(memory=100)))
    eventually(lambda: waiters(env) == 1)
    env.restart()
    eventually(lambda: waiters(env) == 1)
    assert [lease["id"] for lease in env.status()["leases"]] == [held.lease]
    assert hub.release(held, exit_code=0) is not None
    hub.release(result(), exit_code=0)


def test_a_lease_is_given_back_to_the_next_broker(here: Here) -> None:
    """A broker that dies while nobody waits is noticed at the next word."""
    env = here()
    held = hub.acquire(wish())
    eventually(lambda: hub.shared()._reader is None)
    env.restart()
    report = hub.release(held, exit_code=0)
    assert report is not None
    assert report["outcome"] == "ok"


def test_a_broker_that_stays_away_costs_a_warning(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that nobody hears of does not hold its caller up for long."""
    monkeypatch.setattr(hub, "RELEASE_WITHIN_S", 0.2)
    env = here()
    held = hub.acquire(wish())
    env.kill()
    with pytest.warns(RuntimeWarning, match="could not be given back"):
        assert hub.release(held, exit_code=0) is None
    env.start()


def test_without_a_broker_the_error_comes_at_once(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none can be started, nobody waits for one."""
    here(start=False)
    monkeypatch.setenv("GRN_SOCKET", "/proc/nowhere/sock")
    with pytest.raises((BrokerUnavailable, OSError)):
        hub.acquire(wish())


def test_a_forked_child_has_a_hub_of_its_own(here: Here) -> None:
    """A child's lease is its own, and its parent's goes on."""
    env = here()
    held = hub.acquire(wish(memory=100))
    pid = os.fork()
    if not pid:
        try:
            mine = hub.acquire(wish(memory=100))
            alone = hub.release(held, exit_code=0) is None  # not the child's to give
            both = {x["pid"] for x in env.status()["leases"]} == {os.getpid(), os.getppid()}
            hub.release(mine, exit_code=0)
            os._exit(0 if alone and both and mine.lease != held.lease else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [lease["id"] for lease in env.status()["leases"]] == [held.lease]
    assert hub.release(held, exit_code=0) is not None


def test_a_process_inside_a_lease_gets_a_part_of_it(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `GRN_LEASE` in the environment nothing new is booked, and the part is left again."""
    env = here()
    outer = hub.acquire(wish(memory=1000))
    monkeypatch.setenv("GRN_LEASE", outer.lease)
    part = hub.acquire(wish(memory=600))
    assert part.nested
    assert part.lease == outer.lease
    with pytest.raises(WaitExpired):
        hub.acquire(wish(memory=600), wait_s=0.05)
    assert hub.release(part) is None
    again = hub.acquire(wish(memory=600))
    hub.release(again)
    assert len(env.status()["leases"]) == 1
    hub.release(outer, exit_code=0)


def test_parts_of_a_lease_survive_the_brokers_death(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next broker knows what runs inside a lease, so that nothing is added on top of it."""
    env = here()
    outer = hub.acquire(wish(memory=1000))
    monkeypatch.setenv("GRN_LEASE", outer.lease)
    part = hub.acquire(wish(memory=600))
    env.restart()
    with pytest.raises(WaitExpired, match="400 of 1000 MiB free"):
        hub.acquire(wish(memory=600), wait_s=0.2)
    hub.release(part)
    hub.release(hub.acquire(wish(memory=600)))
    hub.release(outer, exit_code=0)
    assert not env.status()["leases"]


def test_tasks_wait_without_a_thread_each(here: Here) -> None:
    """A hundred tasks that wait are a hundred requests on one connection."""
    env = here()

    async def one() -> None:
        grant = await hubasync.acquire(wish(memory=1000))
        await hubasync.release(grant, {"exit_code": 0})

    async def many() -> None:
        held = await hubasync.acquire(wish(memory="whole"))
        before = threading.active_count()
        tasks = [asyncio.create_task(one()) for _ in range(100)]
        await asyncio.to_thread(eventually, lambda: waiters(env) == 100)
        assert threading.active_count() <= before + 1  # the one that looks
        await hubasync.release(held, {"exit_code": 0})
        await asyncio.gather(*tasks)

    asyncio.run(many())
    assert not env.status()["leases"]


def test_cancelling_a_task_withdraws_its_request(here: Here) -> None:
    """A cancelled task leaves the queue, and gets no lease later."""
    env = here()

    async def cancelled() -> None:
        held = await hubasync.acquire(wish(memory="whole"))
        task = asyncio.create_task(hubasync.acquire(wish(memory=100)))
        await asyncio.to_thread(eventually, lambda: waiters(env) == 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        with pytest.raises(WaitExpired):
            await hubasync.acquire(wish(memory=100), wait_s=0.05)
        await hubasync.release(held, {"exit_code": 0})

    asyncio.run(cancelled())
    eventually(lambda: not env.status()["leases"] and not waiters(env))


def test_a_hub_of_ones_own(here: Here) -> None:
    """An adapter may have a hub with settings of its own."""
    env = here()
    mine = Hub(lambda: env.settings)
    grant = mine.acquire(wish())
    mine.started(grant.lease, os.getpid())
    assert mine.call({"op": "status", "page": 0})["status"]["leases"][0]["pid"] == os.getpid()
    mine.release(grant, exit_code=0)
