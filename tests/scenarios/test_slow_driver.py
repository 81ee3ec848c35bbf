"""Drivers that answer late, cards that vanish, figures that are missing: nobody waits for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually
from tests.scenarios.standin import line, touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.supervise.grnrun import GrnRun

    NewEnv = Callable[..., BrokerEnv]
    NewRun = Callable[..., GrnRun]


@pytest.mark.parametrize("wish", [{"memory_mib": 1000}, {"gpus": 0, "cpus": None}], ids=str)
def test_a_card_that_is_slow_but_in_time_stops_nobody(
    new_env: NewEnv, wish: dict[str, int]
) -> None:
    """A look that takes a quarter of a second is a look: what waits for it is granted."""
    env = new_env("nvml:2x10000MiB")
    assert env.box is not None
    env.box.fail("nvmlDeviceGetMemoryInfo", card=1, delay_s=0.24)
    assert env.talker().acquire("t", **wish)["lease"]


def test_a_driver_that_always_takes_its_time_is_used_all_the_same(new_env: NewEnv) -> None:
    """Answers that are slow, but not of long ago, are believed when they come."""
    env = new_env("nvml:1x10000MiB", sample_fast="0.1", sample_slow="0.2")
    talker = env.talker()
    talker.acquire("t", memory_mib=1000)
    assert env.box is not None
    env.box.fail("nvmlDeviceGetMemoryInfo", delay_s=0.7)
    eventually(lambda: env.log_lines("device-doubtful"), what="it has become slow")
    for _ in range(3):
        talker.release(talker.acquire("t", memory_mib=1000))


def test_a_lost_card_does_not_hold_the_other_one_of_its_lease(new_run: NewRun) -> None:
    """When no process of a lease lives, nothing of it is held: not on a dead card, nor beside it."""
    run = new_run("nvml:2x10000MiB")
    end = run.path("end")
    both = [line("--memory=3000MiB", f"--device={k}", f"--until-file={end}") for k in (0, 1)]
    job = run.start("-q", "--gpus=2", "--memory=6GiB", f"{both[0]} & {both[1]} & wait")
    eventually(lambda: all(d["measured_mib"] == 3000 for d in run.env.status()["devices"]))
    run.env.lose(1)
    eventually(lambda: run.env.status()["devices"][1]["state"] == "lost")
    touch(end)
    job.wait(PATIENCE_S)
    eventually(lambda: not run.env.status()["leases"], what="the lease has ended")
    assert run.env.status()["devices"][0]["free_mib"] == 10000


def test_without_lists_somebody_elses_memory_keeps_no_lease(new_run: NewRun) -> None:
    """Where no process is told, a lease ends with its last process, whatever is still held there."""
    run = new_run("nvml:1x10000MiB")
    assert run.env.box is not None
    run.env.box.set(0, procs="no")
    end = run.path("end")
    job = run.start("-q", "--memory=4000MiB", line("--memory=1000MiB", f"--until-file={end}"))
    eventually(lambda: run.env.status()["devices"][0]["measured_mib"] == 1000)
    run.env.foreign(0, 200)
    touch(end)
    assert job.wait(PATIENCE_S) == 0
    eventually(lambda: not run.env.status()["leases"], what="the lease has ended")
    eventually(lambda: run.env.status()["devices"][0]["foreign_mib"] == 200)
