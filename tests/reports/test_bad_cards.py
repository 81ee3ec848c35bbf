"""Cards and drivers that fail: lost cards, error events, memory errors, upgrades, stuck calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually
from tests.fakenvml.box import LOST, UNKNOWN, VERSION_MISMATCH
from tests.reports import hasty
from tests.reports.scene import FAST, box_of, device, given, runner, wait_measured, wait_state
from tests.scenarios.standin import touch, words

if TYPE_CHECKING:
    from tests.env import BrokerEnv
    from tests.reports.scene import NewEnv
    from tests.talker import Talker


def start_with_a_minute(env: BrokerEnv) -> str:
    """Start a broker; return the file by which a minute is over after a card's last error."""
    over = os.path.join(env.folder, "minute.is.over")
    env.program = ["tests.reports.hasty"]
    env.environ[hasty.VARIABLE] = over
    env.start()
    return over


# -- a card that is gone ----------------------------------------------------------------------------


@pytest.mark.parametrize("tells", ["with Xid 79", "without a word"])
def test_a_dead_card_breaks_no_other(new_env: NewEnv, tells: str) -> None:
    """nvitop#139, gpustat#125: one lost card broke the whole query; NVSentinel#155: and no Xid came.

    The card is named as lost and given to nobody. A job on another one is measured as before, its
    size is learnt, and new jobs go there.
    """
    env = new_env("nvml:3x10000MiB", **FAST)
    box, talker = box_of(env), env.talker()
    run = runner(env)
    end = f"--until-file={run.path('end')}"
    job = run.start("-q", "--type=t", "--memory=3000MiB", "--", *words("--memory=2000MiB", end))
    wait_measured(env, 2000)
    if tells == "with Xid 79":
        box.lose(1)
    else:
        box.fail(code=LOST, card=1)
    assert "lost" in wait_state(env, "lost", place=1)
    wait_measured(env, 2000)
    assert [device(env, place)["state"] for place in (0, 2)] == ["ok", "ok"]
    places = {given(talker.acquire("u", memory_mib=6000))[0] for _ in range(2)}
    assert places == {box.uuid(0), box.uuid(2)}
    touch(run.path("end"))
    assert job.wait(PATIENCE_S) == 0


def test_a_job_on_a_card_that_dies_ends_as_it_ends(new_env: NewEnv) -> None:
    """nvitop#139, NVSentinel#155: what becomes of the job whose card falls off the bus.

    Its own words and status reach the shell, and its size is not said to be anything. Its lease
    ends although the card cannot tell that the memory is free.
    """
    env = new_env("nvml:2x10000MiB", **FAST)
    run = runner(env)
    program = "until test -e go; do sleep 0.05; done; echo 'CUDA error: GPU is lost' >&2; exit 7"
    job = run.start("-q", "--type=t", program)
    eventually(lambda: env.status()["leases"], what="a lease")
    env.lose(0)
    wait_state(env, "lost")
    touch(run.path("go"))
    _, said = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 7
    assert b"GPU is lost" in said
    eventually(lambda: not env.status()["leases"], what="no lease")
    assert [entry["estimate_mib"] for entry in env.talker().profiles()] in ([], [None])


# -- error events -----------------------------------------------------------------------------------


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 69, 94])
def test_an_error_of_the_program_takes_no_card_away(new_env: NewEnv, xid: int) -> None:
    """k8s-device-plugin#234, #189, #1974, gpu-operator#1065: every Xid made a card unhealthy.

    One that a program causes is said, and the card serves on.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    talker = env.talker()
    talker.acquire("t", memory_mib=2000)
    box_of(env).xid(0, xid)
    (said,) = eventually(lambda: env.log_lines(f"Xid {xid} "), what="a line in the log")
    assert "job's own fault" in said
    talker.acquire("t", memory_mib=2000)
    assert device(env)["state"] == "ok"


@pytest.mark.parametrize("xid", [48, 64, 74, 95, 119, 777])
def test_an_error_of_the_card_takes_it_away_for_a_while(new_env: NewEnv, xid: int) -> None:
    """k8s-device-plugin#234, #1014, gpu-operator#1065: a card was dead for ever after one Xid.

    After an error of the hardware, or an unknown one, a card gets no new job; the job that runs
    there goes on, and so does the other card. Once it has been well for a minute it is back, and
    nobody has to do anything.
    """
    env = new_env("nvml:1x10000MiB,1x2000MiB", start=False, **FAST)
    over = start_with_a_minute(env)
    box, talker = box_of(env), env.talker()
    grant = talker.acquire("t", memory_mib=3000)
    job = env.job(talker, grant, "--memory=3000MiB")
    wait_measured(env, 3000)
    box.xid(0, xid)
    assert f"Xid {xid} " in wait_state(env, "unhealthy")
    request = talker.ask("u", memory_mib=4000)
    assert not talker.decided([request])
    assert given(talker.acquire("u", memory_mib=1000)) == [box.uuid(1)]
    touch(over)
    talker.granted(request)
    wait_measured(env, 3000)
    assert job.finish() == 0
    talker.release(grant)


def test_a_card_that_errs_again_and_again_stays_out(new_env: NewEnv) -> None:
    """k8s-device-plugin#1014: what comes back by itself must not come back for ever.

    After the third error within a day it waits for a person, and the reason says what to do.
    """
    env = new_env("nvml:1x10000MiB", start=False, **FAST)
    over = start_with_a_minute(env)
    for strike in (1, 2):
        box_of(env).xid(0, 48)
        assert f"error {strike} of 3" in wait_state(env, "unhealthy")
        touch(over)
        wait_state(env, "ok")
        os.unlink(over)
    box_of(env).xid(0, 48)
    assert "grn broker reload" in wait_state(env, "unhealthy")
    touch(over)
    assert "grn broker reload" in why_not(env.talker())
    assert device(env)["state"] == "unhealthy"


# -- memory errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "words_"),
    [
        ({"ecc": 0}, {"ecc": 2}, "uncorrectable memory errors grew from 0 to 2"),
        ({"remap": "0,0,0,0"}, {"remap": "0,1,1,0"}, "wait to be remapped"),
        ({"recovery": 0}, {"recovery": 1}, "reset the GPU"),
    ],
    ids=["errors", "rows", "action"],
)
def test_a_card_with_memory_errors_is_not_handed_out(
    new_env: NewEnv, before: dict[str, Any], after: dict[str, Any], words_: str
) -> None:
    """k8s-device-plugin#267: it was, and every job there ended with "out of memory".

    Its health is read before it is given to anybody; what the driver says and what to do about it
    is the reason that whoever waits is told.
    """
    env = new_env("nvml:1x10000MiB", start=False, **FAST)
    box_of(env).set(0, **before)
    start_with_a_minute(env)
    talker = env.talker()
    talker.release(talker.acquire("t", memory_mib=1000))
    box_of(env).set(0, **after)
    eventually(lambda: words_ in why_not(talker), what="the card is left out")


def why_not(talker: Talker) -> str:
    """Ask for a card; return why it is not given, and nothing if it is."""
    request = talker.ask("t", memory_mib=1000)
    talker.decided([request])
    reasons = [str(waiter["reason"]) for waiter in talker.status()["waiters"]]
    talker.tell("cancel", id=request)
    answer = talker.final(request)
    if answer["op"] == "granted":
        talker.release(answer)
        return ""
    return reasons[0]


# -- the driver as a whole --------------------------------------------------------------------------


def test_handles_that_become_worthless_lose_no_lease(new_env: NewEnv) -> None:
    """nvidia-docker#1671, container-toolkit#251: "unknown error" after systemctl daemon-reload.

    While every call fails nothing is granted or released, and the cure is named. A driver that
    answers again is asked anew by itself, and the job is measured as before.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    box, talker = box_of(env), env.talker()
    grant = talker.acquire("t", memory_mib=4000)
    job = env.job(talker, grant, "--memory=3000MiB")
    wait_measured(env, 3000)
    box.fail("nvmlInit", code=UNKNOWN)
    box.reload_driver()
    assert "restart of the container" in wait_state(env, "stale", "lost")
    request = talker.ask("u", memory_mib=1000)
    assert not talker.decided([request])
    assert [lease["id"] for lease in env.status()["leases"]] == [grant["lease"]]
    box.heal()
    talker.granted(request)
    wait_measured(env, 3000)
    assert job.finish() == 0
    assert talker.release(grant)["peak_mib"] == 3000


def test_an_upgrade_under_running_jobs_says_what_to_do(new_env: NewEnv) -> None:
    """container-toolkit#394, gpustat#139: "Driver/library version mismatch", and nothing more.

    The cure is named, jobs that run keep their leases, and commands without a device run.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    box, talker = box_of(env), env.talker()
    grant = talker.acquire("t", memory_mib=4000)
    box.fail("nvmlInit", code=VERSION_MISMATCH)
    box.reload_driver()
    eventually(
        lambda: "reboot or reload the nvidia module" in device(env)["reason"], what="the cure"
    )
    assert [lease["id"] for lease in env.status()["leases"]] == [grant["lease"]]
    run = runner(env)
    assert run("-q", "--gpus=0", "exit 3").returncode == 3
    waits = run("-q", "--memory=1GiB", "--wait=0.2", "true")
    assert waits.returncode == 75
    assert b"reboot or reload the nvidia module" in waits.stderr


def test_an_upgrade_before_the_start_says_what_to_do(new_env: NewEnv) -> None:
    """container-toolkit#394, gpustat#139: programs that ask for a card got none, and no reason."""
    env = new_env("nvml:1x10000MiB", start=False)
    box_of(env).fail("nvmlInit", code=VERSION_MISMATCH)
    env.environ["GRN_DEVICES"] = "auto"
    env.start()
    refused = runner(env)("-q", "--memory=1GiB", "true")
    assert refused.returncode == 125
    assert b"reboot or reload the nvidia module" in refused.stderr


def test_a_call_that_does_not_return_holds_up_nobody(new_env: NewEnv) -> None:
    """open-gpu-kernel-modules#1333, #456, #1223: who asks the driver hangs, and cannot be killed.

    One card's calls hang: the broker answers, jobs on the other card start, are measured and end;
    the lease on the silent card stays, and all is well when it speaks again.
    """
    env = new_env("nvml:2x10000MiB", **FAST)
    box, talker = box_of(env), env.talker()
    silent = talker.acquire("t", memory_mib=9000)
    job = env.job(talker, silent, "--memory=5000MiB")
    wait_measured(env, 5000)
    box.fail(card=0, delay_s=3600, hold=False)
    assert "not answered" in wait_state(env, "stale")
    run = runner(env)
    for mib in (1000, 2000):
        done = run("-q", "--memory=9000MiB", "--", *words(f"--memory={mib}MiB", "--seconds=0"))
        assert done.returncode == 0, done.stderr
    assert [lease["id"] for lease in env.status()["leases"]] == [silent["lease"]]
    box.heal()
    wait_state(env, "ok")
    wait_measured(env, 5000)
    assert job.finish() == 0
    talker.release(silent)


def test_a_driver_that_hangs_as_a_whole_delays_no_command_without_a_card(new_env: NewEnv) -> None:
    """open-gpu-kernel-modules#1333: nvidia-smi and all that ask like it hang for minutes.

    A job that ends meanwhile is reported at once; its device is not given on until it is seen free.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    job = run.start("-q", "--memory=9000MiB", "until test -e go; do sleep 0.05; done; exit 5")
    eventually(lambda: env.status()["leases"], what="a lease")
    box_of(env).fail(delay_s=3600)
    wait_state(env, "stale")
    touch(run.path("go"))
    assert job.wait(PATIENCE_S) == 5
    assert run("-q", "--gpus=0", "exit 3").returncode == 3
    talker = env.talker()
    request = talker.ask("t", memory_mib=9000)
    assert not talker.decided([request])
    box_of(env).heal()
    talker.granted(request)
