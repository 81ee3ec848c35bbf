"""What an NVIDIA driver does not say, says late or takes back, and what commands see of it."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually
from tests.fakenvml.box import VERSION_MISMATCH, Box
from tests.scenarios.standin import line, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.supervise.grnrun import GrnRun

    NewEnv = Callable[..., BrokerEnv]
    NewRun = Callable[..., GrnRun]

FAST = {"sample_fast": "0.05", "sample_slow": "0.1"}


def box_of(env: BrokerEnv) -> Box:
    """Return the machine behind the driver."""
    assert env.box is not None
    return env.box


def device(env: BrokerEnv, place: int = 0) -> dict[str, Any]:
    """Return what the books say of one device."""
    entry: dict[str, Any] = env.status()["devices"][place]
    return entry


def wait_state(env: BrokerEnv, state: str, place: int = 0) -> str:
    """Wait until a device is in a state; return the reason."""
    entry = eventually(
        lambda: (entry := device(env, place))["state"] == state and entry, what=f"device {state}"
    )
    reason: str = entry["reason"]
    return reason


def learn(run: GrnRun, mib: int) -> dict[str, Any]:
    """Run a command of an unknown type until it was measured; return what is then known of it."""
    end = f"--until-file={run.path('end')}"
    first = run.start("--type=t", "--", *words(f"--memory={mib}MiB", end))
    eventually(lambda: device(run.env)["measured_mib"] == mib, what=f"{mib} MiB measured")
    touch(run.path("end"))
    _, said = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, said
    known = {entry["type"]: entry for entry in run.env.talker().profiles()}
    return known["t"]


def test_without_figures_by_process_the_total_is_taken(new_run: NewRun) -> None:
    """Where the driver gives no process's memory, a lone job's size is the rise of the device."""
    run = new_run("nvml:1x10000MiB")
    box_of(run.env).set(0, procmem="N/A", base=500)
    eventually(lambda: device(run.env)["foreign_mib"] == 500, what="what is used before")
    known = learn(run, 3000)
    assert (known["source"], known["estimate_mib"]) == ("device-delta", 3000)


def test_with_pids_of_another_namespace_the_total_is_taken(new_run: NewRun) -> None:
    """Pids that do not exist here are nobody's: the cure is named, and sizes are learnt anyhow."""
    run = new_run("nvml:1x10000MiB")
    box_of(run.env).shift_pids(2_000_000)
    known = learn(run, 3000)
    assert (known["source"], known["estimate_mib"]) == ("device-delta", 3000)


def test_pids_of_another_namespace_are_told(new_env: NewEnv) -> None:
    """A process that does not exist here is named, with what to do."""
    env = new_env("nvml:1x10000MiB", **FAST)
    box_of(env).add_process(0, 1000, pid=2_000_000)
    (warning,) = eventually(lambda: env.status()["warnings"], what="a warning")
    assert "2000000" in warning
    assert "--pid=host" in warning


def test_the_drivers_accounts_know_a_short_spike(new_run: NewRun) -> None:
    """A peak between two looks counts where the driver keeps accounts."""
    run = new_run("nvml:1x10000MiB", sample_fast=60, sample_slow=60)
    box_of(run.env).set(0, acct=1)
    run.env.stop()
    run.env.start()
    spike = words("--memory=1000MiB", "--spike=0.1:4000MiB:0.01", "--seconds=0.3")
    done = run("-q", "--json", "--type=t", "--", *spike)
    assert json.loads(done.stdout)["jobs"][0]["peak_mib"] == 5000, done.stderr
    known = {entry["type"]: entry for entry in run.env.talker().profiles()}["t"]
    assert (known["source"], known["estimate_mib"]) == ("accounting", 5000)


def test_an_error_event_takes_a_card_away(new_env: NewEnv) -> None:
    """After an error of the hardware the card gets no job for a while; the reason has the number."""
    env = new_env("nvml:2x10000MiB", **FAST)
    talker = env.talker()
    box_of(env).xid(0, 48)
    assert "Xid 48" in wait_state(env, "unhealthy")
    grants = [talker.acquire("t", memory_mib=2000) for _ in range(2)]
    assert {grant["devices"][0]["uuid"] for grant in grants} == {device(env, 1)["uuid"]}


@pytest.mark.parametrize("ends", ["killed", "in order"])
def test_the_next_broker_does_not_hand_out_a_card_that_erred(new_env: NewEnv, ends: str) -> None:
    """However a broker ended, its successor keeps the card back, until an operator lets it in."""
    env = new_env("nvml:1x10000MiB", **FAST)
    box_of(env).xid(0, 48)
    reason = wait_state(env, "unhealthy")
    if ends == "killed":
        env.kill()
    else:
        env.stop()
    env.start()
    assert (device(env)["state"], device(env)["reason"]) == ("unhealthy", reason)
    talker = env.talker()
    request = talker.ask("t", memory_mib=1000)
    assert not talker.decided([request])
    os.kill(env.pid, signal.SIGHUP)
    talker.granted(request)
    env.restart()
    assert device(env)["state"] == "ok"


def test_a_broker_with_a_card_that_erred_may_leave(new_env: NewEnv) -> None:
    """One that was started on demand leaves when it is idle; what it knew is not lost with it."""
    env = new_env("nvml:1x10000MiB", start=False, idle_exit="0.3", **FAST)
    env.start("--on-demand")
    talker = env.talker()
    box_of(env).xid(0, 48)
    reason = wait_state(env, "unhealthy")
    talker.close()
    assert env.broker is not None
    assert env.broker.wait(PATIENCE_S) == 0
    env.broker = None
    env.start()
    assert (device(env)["state"], device(env)["reason"]) == ("unhealthy", reason)


def test_a_card_that_fell_off_the_bus_is_not_trusted_at_once(new_env: NewEnv) -> None:
    """Back again, it gets no job until it has been well for a while."""
    env = new_env("nvml:2x10000MiB", **FAST)
    env.lose(0)
    wait_state(env, "lost")
    env.find(0)
    entry = eventually(lambda: (d := device(env))["state"] != "lost" and d, what="it is back")
    assert (entry["state"], "Xid 79" in entry["reason"]) == ("unhealthy", True)


def test_a_jobs_fault_takes_no_card_away(new_env: NewEnv) -> None:
    """An error event that a program causes is said, and the card stays in use."""
    env = new_env("nvml:1x10000MiB", **FAST)
    talker = env.talker()
    talker.acquire("t", memory_mib=2000)
    box_of(env).xid(0, 31)
    (said,) = eventually(lambda: env.log_lines("Xid 31"), what="a line in the log")
    assert "job's own fault" in said
    assert device(env)["state"] == "ok"
    talker.acquire("t", memory_mib=2000)


@pytest.mark.parametrize(
    ("keys", "words_"),
    [({"remap": "0,1,1,0"}, "remapped"), ({"recovery": 2}, "recovery action 2")],
)
def test_a_card_that_its_driver_complains_of_is_not_used(
    new_env: NewEnv, keys: dict[str, Any], words_: str
) -> None:
    """Rows to be remapped, or an action that the driver asks for, keep new jobs away."""
    env = new_env("nvml:2x10000MiB", start=False, **FAST)
    box_of(env).set(0, **keys)
    env.start()
    grant = env.talker().acquire("t", memory_mib="whole")
    assert grant["devices"][0]["uuid"] == device(env, 1)["uuid"]
    assert words_ in wait_state(env, "unhealthy")


def test_leases_outlast_a_driver_that_goes_and_comes_back(new_env: NewEnv) -> None:
    """While there is no driver nothing is released or granted; then all goes on as before."""
    env = new_env("nvml:1x10000MiB", **FAST)
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=4000)
    job = env.job(talker, grant, "--memory=4000MiB")
    eventually(lambda: device(env)["measured_mib"] == 4000, what="4000 MiB measured")
    box_of(env).remove_driver()
    eventually(lambda: device(env)["state"] in {"stale", "lost"}, what="no driver")
    request = talker.ask("t", memory_mib=1000)
    assert not talker.decided([request])
    assert [lease["id"] for lease in env.status()["leases"]] == [grant["lease"]]
    box_of(env).restore_driver()
    talker.granted(request)
    eventually(lambda: device(env)["measured_mib"] == 4000, what="4000 MiB measured again")
    assert job.finish() == 0
    talker.release(grant)


def test_a_card_that_does_not_answer_delays_nobody_on_another(new_env: NewEnv) -> None:
    """Calls on one card that do not return leave the broker and the other card as they are."""
    env = new_env("nvml:2x10000MiB", **FAST)
    talker = env.talker()
    box_of(env).fail(card=0, delay_s=3600, hold=False)
    wait_state(env, "stale")
    grant = talker.acquire("t", memory_mib=2000)
    assert grant["devices"][0]["uuid"] == device(env, 1)["uuid"]
    job = env.job(talker, grant, "--memory=2000MiB")
    eventually(lambda: device(env, 1)["measured_mib"] == 2000, what="2000 MiB measured")
    box_of(env).heal()
    wait_state(env, "ok")
    assert job.finish() == 0
    talker.release(grant)


def test_a_stuck_driver_leaves_the_broker_alive(new_env: NewEnv) -> None:
    """The broker answers while the driver does not, and goes on when it does."""
    env = new_env("nvml:2x10000MiB", **FAST)
    talker = env.talker()
    box_of(env).fail(delay_s=3600)
    wait_state(env, "stale", 0)
    wait_state(env, "stale", 1)
    request = talker.ask("t", memory_mib=2000)
    assert not talker.decided([request])
    box_of(env).heal()
    talker.granted(request)


def test_one_broker_has_a_card(new_env: NewEnv) -> None:
    """A second broker with the same driver is refused its cards, and told who has them."""
    env = new_env("nvml:1x10000MiB")
    other = new_env("none", start=False)
    other.environ |= {"GRN_DEVICES": "nvml", **box_of(env).environ}
    assert other.spawn_broker().wait(PATIENCE_S) == 125
    assert f"another broker already (pid {env.pid} " in other.log()


@pytest.mark.parametrize("why", ["no driver", "mismatch"])
def test_without_a_driver_there_are_no_devices_and_a_reason(new_env: NewEnv, why: str) -> None:
    """`auto` serves commands that want no device and says why; `nvml` does not start."""
    env = new_env("nvml:1x10000MiB", start=False)
    if why == "mismatch":
        box_of(env).fail("nvmlInit", code=VERSION_MISMATCH)
    else:
        box_of(env).remove_driver()
    assert env.spawn_broker().wait(PATIENCE_S) == 125
    assert "no devices for --devices nvml" in env.log()
    env.environ["GRN_DEVICES"] = "auto"
    env.start()
    status = env.status()
    assert status["devices"] == []
    assert "driver" in " ".join(status["warnings"])


def test_a_real_command_runs_on_a_card(new_run: NewRun) -> None:
    """`grn run` gives a command a number in bus order and the order that makes it so."""
    run = new_run("nvml:2x10000MiB")
    shown = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GRN_DEVICES"
    job = line("--memory=1GiB", "--seconds=0", "--print-env", *shown)
    done = run("-q", "--memory=1GiB", job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == [
        "CUDA_VISIBLE_DEVICES=0",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"GRN_DEVICES={box_of(run.env).uuid(0)}",
    ]
