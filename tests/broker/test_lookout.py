"""Devices that appear while a broker runs: a driver that is loaded late, a MIG slice made since."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.errors import BrokerUnavailable, Impossible
from tests.env import PATIENCE_S, ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.fakenvml.box import Box

    NewEnv = Callable[..., BrokerEnv]

EAGER = ["tests.broker.eager"]
"""A broker that looks again at each request that needs it."""


def box_of(env: BrokerEnv) -> Box:
    """Return the machine behind the driver."""
    assert env.box is not None
    return env.box


def without_driver(new_env: NewEnv, **settings: object) -> BrokerEnv:
    """Return a machine whose driver is not loaded, and no broker."""
    env = new_env("nvml:2x10000MiB", start=False, sample_fast="0.05", sample_slow="0.1", **settings)
    env.environ["GRN_DEVICES"] = "auto"
    box_of(env).remove_driver()
    return env


def managed(env: BrokerEnv) -> list[str]:
    """Return the devices that the broker manages."""
    return [device["uuid"] for device in env.status()["devices"]]


def serves(env: BrokerEnv) -> bool:
    """Whether a broker answers."""
    try:
        return env.status()["devices"] == []
    except BrokerUnavailable:
        return False


def hang_up(env: BrokerEnv) -> None:
    """Tell the broker to look again."""
    assert env.broker is not None
    env.broker.send_signal(signal.SIGHUP)


def test_a_driver_that_is_loaded_later_is_found_when_asked_to_look(new_env: NewEnv) -> None:
    """Before SIGHUP a request is refused with the reason, after it the cards are given and measured."""
    env = without_driver(new_env)
    env.start()
    talker = env.talker()
    with env.client() as client, pytest.raises(Impossible, match="driver"):
        client.acquire("t", memory_mib=1000)
    assert "driver" in " ".join(env.status()["warnings"])
    box_of(env).restore_driver()
    hang_up(env)
    eventually(lambda: managed(env) == box_of(env).uuids, what="both cards are managed")
    assert env.status()["warnings"] == []
    assert env.status()["broker"]["devices"] == "nvml"
    grant = talker.acquire("t", memory_mib=3000)
    assert grant["devices"][0]["uuid"] in box_of(env).uuids
    job = env.job(talker, grant, "--memory=3000MiB")
    eventually(lambda: env.status()["leases"][0]["measured_mib"] == 3000, what="3000 MiB measured")
    env.restart()
    assert job.finish() == 0


def test_a_request_that_needs_a_device_has_the_broker_look(new_env: NewEnv) -> None:
    """It waits for the look: without a driver it is refused, with one it is granted."""
    env = without_driver(new_env)
    env.program = EAGER
    env.start()
    talker = env.talker()
    refused = talker.final(talker.ask("t", memory_mib=1000))
    assert refused["code"] == "impossible"
    assert "driver" in refused["message"]
    box_of(env).restore_driver()
    grant = talker.acquire("t", memory_mib=1000)
    assert grant["devices"][0]["uuid"] in box_of(env).uuids


def test_a_request_that_waits_for_a_look_can_be_withdrawn(new_env: NewEnv) -> None:
    """A driver that hangs keeps nobody: requests are withdrawn, others are served meanwhile."""
    env = without_driver(new_env)
    env.program = EAGER
    env.start()
    box = box_of(env)
    talker = env.talker()
    slow = box.fail("nvmlInit", delay_s=3600)
    box.restore_driver()
    waits = talker.ask("t", memory_mib=1000)
    also = talker.ask("t", memory_mib=1000)
    talker.release(talker.acquire("cpu", gpus=0))
    talker.tell("cancel", id=also)
    assert talker.final(also)["code"] == "cancelled"
    box.heal(slow)
    talker.granted(waits)


def test_no_look_where_none_was_chosen(new_env: NewEnv) -> None:
    """`none` stays none, whatever the machine has."""
    env = without_driver(new_env)
    env.environ["GRN_DEVICES"] = "none"
    env.program = EAGER
    env.start()
    box_of(env).restore_driver()
    hang_up(env)
    eventually(lambda: env.log_lines("nothing-new"), what="the look is over")
    with env.client() as client, pytest.raises(Impossible, match="manages none"):
        client.acquire("t", memory_mib=1000)
    assert managed(env) == []


def test_a_slice_that_is_made_later_is_added(new_env: NewEnv) -> None:
    """What was there stays as it is, its leases too; the new slice is given by UUID, and measured."""
    env = new_env(
        "nvml:1x40GiB,mig=0:20GiB+10GiB", start=False, sample_fast="0.05", sample_slow="0.1"
    )
    box = box_of(env)
    box.remove_slice(0)
    env.start()
    first = managed(env)
    talker = env.talker()
    held = talker.acquire("t", memory_mib="whole")
    job = env.job(talker, held, "--memory=3000MiB")
    eventually(lambda: env.status()["leases"][0]["measured_mib"] == 3000, what="it is measured")
    box.restore_slice(0)
    hang_up(env)
    eventually(lambda: managed(env) == box.uuids, what="both slices are managed")
    assert box.uuids[: len(first)] == first
    grant = talker.acquire("t", memory_mib="whole")
    assert grant["mask"] == box.uuid(0, 1)
    other = env.job(talker, grant, "--memory=2000MiB")
    eventually(
        lambda: [lease["measured_mib"] for lease in env.status()["leases"]] == [3000, 2000],
        what="both are measured",
    )
    assert (job.finish(), other.finish()) == (0, 0)
    env.restart()
    assert managed(env) == box.uuids


def test_a_look_without_news_changes_nothing(new_env: NewEnv) -> None:
    """The same devices, the same leases, and no second claim on a card."""
    env = new_env("nvml:2x10000MiB")
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=3000)
    before = managed(env)
    for count in (1, 2):
        hang_up(env)
        eventually(lambda count=count: len(env.log_lines("looking-again")) == count, what="a look")
    talker.release(grant)
    assert managed(env) == before
    assert talker.acquire("t", memory_mib=9000)["devices"][0]["uuid"] in before


def test_reload_is_the_same(new_env: NewEnv) -> None:
    """`grn broker reload` tells the broker that runs, and says so."""
    env = without_driver(new_env)
    env.start()
    box_of(env).restore_driver()
    argv = [sys.executable, "-m", "grn", "broker", "reload"]
    done = subprocess.run(
        argv, env=env.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"pid {env.pid}" in done.stdout
    eventually(lambda: managed(env) == box_of(env).uuids, what="both cards are managed")


def test_reload_without_a_broker_says_so(new_env: NewEnv) -> None:
    """There is nobody to tell, and none is started."""
    env = new_env("none", start=False)
    argv = [sys.executable, "-m", "grn", "broker", "reload"]
    done = subprocess.run(
        argv, env=env.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (125, "")
    assert "no broker" in done.stderr


def test_a_broker_leaves_with_its_terminal(new_env: NewEnv) -> None:
    """Started by hand in a terminal that is closed, it ends as other programs do."""
    env = new_env("none", start=False)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", "grn", "broker"], env.environ)  # noqa: S606
    try:
        eventually(lambda: serves(env), what="it serves")
        os.kill(child, signal.SIGHUP)  # not by the terminal, which is there
        assert serves(env), "it left with a signal that was not its terminal's"
    finally:
        os.close(terminal)
    eventually(lambda: os.waitpid(child, os.WNOHANG)[0] == child, PATIENCE_S, "it leaves")
    assert not os.path.exists(env.socket)
