"""Who gets what, and when: the books under clients that ask at the same instant."""

from __future__ import annotations

import os
import signal
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import BrokerSilent, WaitExpired
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def device_of(grant: dict[str, Any]) -> int:
    """Return the index of the one device of a grant."""
    (device,) = grant["devices"]
    return int(device["index"])


def test_a_lease_is_granted_and_given_back(new_env: NewEnv):
    """A client gets a device and gives it back; the books are as before."""
    env = new_env()
    before = env.status()["devices"]
    with env.client() as client, client.acquire("a", memory_mib=4000) as lease:
        assert lease.memory_mib == 4000
        assert client.status()["devices"][0]["free_mib"] == 6000
    after = env.status()
    assert after["devices"] == before
    assert after["leases"] == after["waiters"] == []


def test_status_shows_who_waits_for_what(new_env: NewEnv):
    """Status shows devices, leases, and for each waiter a reason with numbers."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("a", memory_mib=7000, label="first")
    talker.ask("b", memory_mib=4000, label="second")
    status = talker.status()
    (lease,) = status["leases"]
    (waiter,) = status["waiters"]
    assert (lease["id"], lease["label"], lease["state"]) == (grant["lease"], "first", "running")
    assert (waiter["type"], waiter["label"]) == ("b", "second")
    assert "4000" in waiter["reason"]
    assert "3000 MiB free of 10000" in waiter["reason"]


def test_four_clients_at_one_instant_get_four_devices(new_env: NewEnv):
    """Four processes that ask together for a whole device get four distinct ones, every time."""
    env = new_env("sim:4x8000MiB")
    clients = [env.remote() for _ in range(4)]
    for _ in range(50):
        asked = [(client, client.ask("t", memory_mib="whole")) for client in clients]
        grants = [client.granted(request) for client, request in asked]
        assert {device_of(grant) for grant in grants} == {0, 1, 2, 3}
        for client, grant in zip(clients, grants, strict=True):
            client.release(grant)


def test_two_clients_at_one_instant_for_room_for_one(new_env: NewEnv):
    """Of two processes that ask together for more than half, one is granted, one waits."""
    env = new_env()
    clients = [env.remote() for _ in range(2)]
    clients[0].know("t", 6000)
    for _ in range(100):
        asked = [(client, client.ask("t")) for client in clients]
        first = [(client, request, client.next(request)) for client, request in asked]
        assert sorted(message["op"] for _, _, message in first) == ["granted", "waiting"]
        first.sort(key=lambda entry: entry[2]["op"])
        (winner, _, grant), (loser, request, _) = first
        winner.release(grant)
        loser.release(loser.granted(request))


def test_shares_of_a_hundred_jobs(new_env: NewEnv):
    """Shares are counted on each device, not in sum: 6 on each of 8 devices, never 53 in all."""
    env = new_env("sim:8x10000MiB")
    talker = env.talker()
    talker.know("t", 1500)
    waiting = talker.ask_many(100, "t")
    held: list[dict[str, Any]] = []
    while waiting:
        ready = talker.decided(waiting)
        held += [talker.granted(number) for number in ready]
        waiting = [number for number in waiting if number not in ready]
        per_device = Counter(device_of(grant) for grant in held)
        assert max(per_device.values()) <= 6
        assert not waiting or len(held) == 48
        talker.release(held.pop(0))
        talker.release(held.pop())


def test_pack_stays_on_one_device_and_spread_goes_round(new_env: NewEnv):
    """Of many small jobs those that pack share a device while it has room, the others do not."""
    env = new_env("sim:4x8000MiB")
    talker = env.talker()
    talker.know("t", 100)
    wishes = [talker.ask("t", policy=policy) for policy in ("pack", "spread") * 64]
    grants = [talker.granted(number) for number in wishes]
    packed = Counter(device_of(grant) for grant in grants[::2])
    spread = Counter(device_of(grant) for grant in grants[1::2])
    assert sorted(packed.values()) == [64]
    assert max(spread.values()) <= 22
    assert len(spread) >= 3


def test_a_booking_holds_before_the_job_allocates(new_env: NewEnv):
    """What is booked stays set aside from grant to end, though the device looks empty at first."""
    env = new_env(sample_fast="0.05", sample_slow="0.05")
    talker = env.talker()
    talker.know("t", 6000)
    grant = talker.acquire("t")
    job = env.job(talker, grant, "--memory=6000MiB", "--start-delay=1")
    second = talker.ask("t")

    def free() -> int:
        status = talker.status()
        assert status["devices"][0]["free_mib"] == 4000
        return int(status["devices"][0]["measured_mib"])

    assert free() == 0
    assert eventually(free) == 6000
    assert not talker.decided([second])
    assert job.finish() == 0
    assert not talker.decided([second])
    talker.release(grant)
    talker.release(talker.granted(second))


def test_a_release_hands_over_without_a_timer(new_env: NewEnv):
    """A waiter is granted in the same moment as the release, however seldom devices are read."""
    env = new_env(sample_fast="60", sample_slow="60")
    holder, waiter = env.remote(), env.remote()
    grant = holder.acquire("a", memory_mib="whole")
    request = waiter.ask("b", memory_mib="whole")
    assert waiter.next(request)["op"] == "waiting"
    holder.release(grant)
    assert waiter.granted(request, within_s=10)["waited_s"] < 10


def test_what_ended_is_free_at_once_though_it_was_measured(new_env: NewEnv):
    """Memory that went with the job's process counts no more at its release."""
    env = new_env(sample_fast="60", sample_slow="60")
    talker = env.talker()
    grant = talker.acquire("a", memory_mib=8000)
    job = env.job(talker, grant, "--memory=8000MiB")
    job.wait_holding()
    eventually(lambda: talker.status()["devices"][0]["measured_mib"] == 8000)
    request = talker.ask("b", memory_mib=8000)
    assert job.finish() == 0
    assert talker.release(grant)["draining"] is False
    assert talker.granted(request, within_s=10)


def test_the_head_is_not_starved_by_smaller_jobs(new_env: NewEnv):
    """A whole-device request starts as soon as what ran before it has ended."""
    env = new_env("sim:1x8192MiB")
    talker = env.talker()
    sand = talker.acquire("sand", memory_mib=1024)
    couch = talker.ask("couch", memory_mib="whole")
    later = [talker.ask("sand", memory_mib=2048) for _ in range(20)]
    assert talker.decided([couch, *later]) == []
    talker.release(sand)
    assert talker.decided([couch, *later]) == [couch]
    talker.release(talker.granted(couch))
    grants = [talker.granted(number) for number in later[:4]]
    assert talker.decided(later[4:]) == []
    assert len(grants) == 4


def test_smaller_jobs_use_what_is_not_kept_for_the_head(new_env: NewEnv):
    """While the head waits for one device, others run on the device that it will not take."""
    env = new_env("sim:2x8192MiB")
    talker = env.talker()
    first = talker.acquire("sand", memory_mib=1024)
    second = talker.acquire("sand", memory_mib=1024)
    couch = talker.ask("couch", memory_mib="whole")
    later = talker.ask("sand", memory_mib=2048)
    grant = talker.granted(later)
    assert talker.decided([couch]) == []
    ended = first if device_of(first) != device_of(grant) else second
    talker.release(ended)
    assert device_of(talker.granted(couch)) == device_of(ended)


def test_two_devices_are_granted_both_or_none(new_env: NewEnv):
    """Of two clients that want two devices each, one holds both and the other none."""
    env = new_env("sim:2x8000MiB")
    clients = [env.remote() for _ in range(2)]
    watcher = env.talker()
    for _ in range(30):
        asked = [(c, c.ask("t", gpus=2, memory_mib="whole")) for c in clients]
        first = [(c, number, c.next(number)) for c, number in asked]
        first.sort(key=lambda entry: entry[2]["op"])
        (winner, _, grant), (loser, number, waits) = first
        assert (grant["op"], waits["op"]) == ("granted", "waiting")
        assert {device["index"] for device in grant["devices"]} == {0, 1}
        assert [lease["id"] for lease in watcher.status()["leases"]] == [grant["lease"]]
        winner.release(grant)
        loser.release(loser.granted(number))


def test_three_clients_for_two_of_three_devices(new_env: NewEnv):
    """Requests for two of three devices run one at a time, and all of them run."""
    env = new_env("sim:3x8000MiB")
    talker = env.talker()
    waiting = talker.ask_many(3, "t", gpus=2, memory_mib="whole")
    for number in list(waiting):
        assert talker.decided(waiting) == [number]
        grant = talker.granted(number)
        assert len({device["uuid"] for device in grant["devices"]}) == 2
        waiting.remove(number)
        talker.release(grant)


def test_a_job_without_devices_never_waits_behind_jobs_with_them(new_env: NewEnv):
    """A request for no device is granted at once, with an empty mask, past all that wait."""
    env = new_env("sim:4x8000MiB")
    talker = env.talker()
    requests = talker.ask_many(10, "t", memory_mib="whole")
    assert talker.decided(requests) == requests[:4]
    empty = talker.acquire("cpu", gpus=0)
    assert (empty["mask"], empty["devices"]) == ("", [])
    untouched = talker.acquire("cpu", gpus=None)
    assert untouched["mask"] is None


def test_an_impossible_request_is_refused_at_once(new_env: NewEnv):
    """What can never be met is refused with the wish and the limit, and never queued."""
    env = new_env("sim:2x10000MiB")
    talker = env.talker()
    too_large = talker.final(talker.ask("t", memory_mib=10001))
    too_many = talker.final(talker.ask("t", gpus=3))
    assert too_large["code"] == too_many["code"] == "impossible"
    assert "10001" in too_large["message"]
    assert "10000" in too_large["message"]
    assert "3 devices" in too_many["message"]
    assert talker.status()["waiters"] == []


def test_a_withdrawn_request_makes_way(new_env: NewEnv):
    """A cancelled request is answered, and who waited behind it is granted."""
    env = new_env()
    talker = env.talker()
    held = talker.acquire("a", memory_mib=2000)
    head = talker.ask("b", memory_mib="whole")
    behind = talker.ask("c", memory_mib=2000)
    assert talker.decided([head, behind]) == []
    talker.tell("cancel", id=head)
    assert talker.final(head)["code"] == "cancelled"
    talker.granted(behind)
    talker.release(held)


def test_priority_goes_first(new_env: NewEnv):
    """Among those that wait, a higher priority is granted first, then who came first."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("a", memory_mib="whole")
    low = talker.ask("t", memory_mib="whole")
    high = talker.ask("t", memory_mib="whole", priority=5)
    late = talker.ask("t", memory_mib="whole", priority=5)
    order = []
    for _ in range(3):
        talker.release(grant)
        (number,) = talker.decided({low, high, late} - set(order))
        order.append(number)
        grant = talker.granted(number)
    assert order == [high, late, low]


def test_a_request_inside_a_lease_gets_that_lease(new_env: NewEnv):
    """Who asks again from inside a lease gets the outer one, or a clear refusal; nobody hangs."""
    env = new_env()
    talker = env.talker()
    outer = talker.acquire("outer", memory_mib=6000)
    inner = talker.acquire("inner", memory_mib=6000, outer=outer["lease"])
    assert (inner["lease"], inner["nested"]) == (outer["lease"], True)
    more = talker.final(talker.ask("inner", memory_mib=7000, outer=outer["lease"]))
    assert more["code"] == "nested"
    assert "7000" in more["message"]


def test_fair_share_of_the_cores(new_env: NewEnv):
    """A job that declares no CPUs is told its part of the cores; who declares some gets them."""
    env = new_env("sim:4x8000MiB", machine_cpus=8)
    talker = env.talker()
    shares = talker.ask_many(4, "t", memory_mib="whole")
    assert [talker.granted(number)["threads"] for number in shares] == [2, 2, 2, 2]
    declared = talker.acquire("c", gpus=0, cpus=5)
    assert (declared["threads"], declared["cpus"]) == (5, 5)
    assert "3 of 8 free" in talker.next(talker.ask("c", gpus=0, cpus=4))["reason"]


def test_leases_of_one_process_are_numbered_upwards(new_env: NewEnv):
    """Each lease has an id of its own that is never used again."""
    env = new_env()
    talker = env.talker()
    seen: list[str] = []
    for _ in range(5):
        grant = talker.acquire("t", memory_mib=1)
        seen.append(grant["lease"])
        talker.release(grant)
    numbers = [int(lease.rpartition("-")[2]) for lease in seen]
    assert all(b > a for a, b in pairwise(numbers))


def test_a_client_does_not_wait_for_ever_for_a_broker_that_hangs(
    new_env: NewEnv, monkeypatch: pytest.MonkeyPatch
):
    """Its time is up whether the broker answers or not; what is granted too late is given back."""
    monkeypatch.setattr("grn.client._WITHDRAWN_WITHIN_S", 0.2)
    env = new_env()
    with env.client() as client:
        client.answer_within_s = 0.2
        assert client.status()["leases"] == []
        os.kill(env.pid, signal.SIGSTOP)
        try:
            with pytest.raises(WaitExpired):
                client.acquire("t", memory_mib=1000, wait_s=0.1)
            with pytest.raises(BrokerSilent, match=str(env.pid)):
                client.status()
        finally:
            os.kill(env.pid, signal.SIGCONT)
        client.answer_within_s = PATIENCE_S
        eventually(lambda: client.status()["leases"] == [])


def test_nobody_enters_a_lease_by_naming_it(new_env: NewEnv):
    """A process that is not of a lease gets one of its own, whatever it says, and keeps none alive."""
    env = new_env()
    holder, stranger = env.talker(), env.remote()
    lease = holder.acquire("t", memory_mib=6000)
    other = stranger.acquire("z", memory_mib=1000, outer=lease["lease"])
    assert (other["nested"], other["lease"] != lease["lease"]) == (False, True)
    holder.release(lease)
    assert [entry["id"] for entry in env.status()["leases"]] == [other["lease"]]
