"""A thousand waiters on one broker: no thread each, no polling, each granted in its turn."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.talker import Talker

    NewEnv = Callable[..., BrokerEnv]

WAITERS = 1000


@pytest.mark.parametrize("connections", [1, 200])
def test_a_thousand_waiters(new_env: NewEnv, connections: int):
    """A thousand requests wait at once, are told why, and are granted one after the other."""
    env = new_env(debug="no")
    holder = env.talker()
    grant = holder.acquire("t", memory_mib="whole")
    talkers = [env.talker() for _ in range(connections)]
    each = WAITERS // connections
    waiting: list[tuple[Talker, int]] = []
    for talker in talkers:
        numbers = talker.ask_many(each, "t", memory_mib="whole")
        # One connection after the other, so that the order of arrival is known.
        assert [talker.next(number)["op"] for number in numbers] == ["waiting"] * each
        waiting += [(talker, number) for number in numbers]
    assert len(holder.status()["waiters"]) == WAITERS
    assert _threads(env) <= 2  # its own, and that of the history
    assert _idle_cpu_s(env) < 0.25
    holder.release(grant)
    for talker, number in waiting:
        grant = talker.granted(number)
        talker.tell("release", id=0, lease=grant["lease"], exit_code=0)
    status = holder.status()
    assert status["waiters"] == status["leases"] == []


def test_a_thousand_leases(new_env: NewEnv):
    """A thousand small leases are held at once, survive kill -9, and are given back."""
    env = new_env("sim:4x10000MiB", debug="no")
    talker = env.talker()
    grants = [talker.granted(n) for n in talker.ask_many(WAITERS, "t", memory_mib=40)]
    per_device = [device["leases"] for device in talker.status()["devices"]]
    assert per_device == [250, 250, 250, 250]
    env.restart()
    again = env.talker()
    held = [grant["lease"] for grant in grants]
    assert again.call("adopt", leases=held)["leases"] == held
    for grant in grants:
        again.release(grant)
    assert again.status()["leases"] == []


def test_a_crowd_that_leaves(new_env: NewEnv):
    """When two hundred connections with waiting requests end at once, nothing of them remains."""
    env = new_env(debug="no")
    holder = env.talker()
    holder.acquire("t", memory_mib="whole")
    talkers = [env.talker() for _ in range(200)]
    for talker in talkers:
        (first, *_) = talker.ask_many(5, "t", memory_mib="whole")
        assert talker.next(first)["op"] == "waiting"
    for talker in talkers:
        talker.close()
    deadline = time.monotonic() + PATIENCE_S
    while holder.status()["waiters"]:
        assert time.monotonic() < deadline
    assert len(os.listdir(f"/proc/{env.pid}/fd")) < 40


def _threads(env: BrokerEnv) -> int:
    with open(f"/proc/{env.pid}/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("Threads:")]
    return int(line.split()[1])


def _idle_cpu_s(env: BrokerEnv) -> float:
    """Return the CPU time that the broker takes in half a second in which nothing happens."""
    before = _cpu_s(env)
    time.sleep(0.5)
    return _cpu_s(env) - before


def _cpu_s(env: BrokerEnv) -> float:
    with open(f"/proc/{env.pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
