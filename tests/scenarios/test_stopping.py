"""Jobs that are stopped, abandoned or leave processes behind: the device is free when its memory is.

A whole-device command that fills the device completely is the detector: had it started while
anything was still held, it would die of memory.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone
from tests.scenarios.ondemand import kill_broker, leases
from tests.scenarios.standin import Diary, line, touch, words

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]

FILLS = ("--memory=10000MiB", "--seconds=0")


def waiting_for_all(run: GrnRun) -> subprocess.Popen[bytes]:
    """Start a command that waits for the whole device, and fails if it is not empty."""
    process = run.start("-q", "--type=all", "--memory=whole", "--", *words(*FILLS))
    eventually(lambda: run.env.status()["waiters"], what="a waiter")
    return process


def held_mib(run: GrnRun) -> int:
    """Return what the first device's processes hold, as the broker last saw it."""
    device: dict[str, Any] = run.env.status()["devices"][0]
    return int(device["measured_mib"]) + int(device["foreign_mib"])


def alive(pids: list[int]) -> list[int]:
    """Return those that live."""
    return [pid for pid in pids if procs.start_time(pid) is not None]


def family(run: GrnRun, count: int) -> list[int]:
    """Wait until a lease's job has so many processes; return them."""
    (lease,) = eventually(lambda: run.env.status()["leases"], what="a lease")
    owner = lease["owner_pid"]
    return eventually(
        lambda: len(found := procs.descendants(owner)) >= count and found, what=f"{count} processes"
    )


def test_ctrl_c_leaves_no_worker_with_memory(new_run: NewRun) -> None:
    """Workers that ignore Ctrl-C are ended too; only then does the next command get the device."""
    run = new_run()
    tree = ("--memory=4000MiB", "--children=2", "--child-memory=102MiB", "--child-ignore-sigint")
    hold = f"--hold-file={run.path('held')}"
    job = words(*tree, "--seconds=600", hold)
    terminal = run.in_terminal("-q", "--grace=0.5", "--memory=5000MiB", "--", *job)
    eventually(lambda: os.path.exists(run.path("held")), what="memory is held")
    pids = [terminal.pid, *family(run, 3)]
    following = waiting_for_all(run)
    eventually(lambda: held_mib(run) == 4204, what="all memory is seen")
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT  # a shell shows 130
    assert alive(pids) == []
    assert following.wait(PATIENCE_S) == 0
    eventually(lambda: held_mib(run) == 0, what="an empty device")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_several_commands_and_frees_their_devices(
    new_run: NewRun, number: signal.Signals
) -> None:
    """TERM, HUP or INT from `kill` ends every command of a call, what waits too, and we follow."""
    run = new_run("sim:2x10000MiB")
    diary = Diary(run.path("diary"))
    job = line("--memory=6000MiB", "--seconds=600", "--ignore-sigint", diary.option)
    several = run.start("-q", "--grace=0.5", "--memory=6000MiB", *[job] * 3)
    pids = [hold.pid for hold in diary.wait_for_holds(2)]
    several.send_signal(number)
    assert several.wait(PATIENCE_S) == -number
    assert alive(pids) == []
    assert len(diary.holds()) == 2
    done = run(
        "-q", "--gpus=2", "--memory=whole", "--wait=20", "--", *words(*FILLS, "--device=all")
    )
    assert done.returncode == 0, done.stderr


def test_the_job_of_a_killed_submitter_keeps_its_share(new_run: NewRun) -> None:
    """`grn run` is killed, its command's process goes on: its device is free when that has ended."""
    run = new_run()
    run.env.client().profiles("set", type="t", memory_mib=4000)
    diary = Diary(run.path("diary"))
    end = f"--until-file={run.path('go')}"
    submitter = run.start("-q", "--type=t", line("--memory=4000MiB", end, diary.option) + "; :")
    (hold,) = diary.wait_for_holds(1)
    following = waiting_for_all(run)
    submitter.kill()
    submitter.wait(PATIENCE_S)
    eventually(
        lambda: hold.pid in run.env.status()["leases"][0]["left_over"], what="a draining lease"
    )
    assert run.env.status()["leases"][0]["state"] == "draining"
    assert following.poll() is None
    touch(run.path("go"))
    freed_s = time.monotonic()
    assert following.wait(PATIENCE_S) == 0
    assert time.monotonic() - freed_s < 6


def test_a_program_dies_with_its_killed_submitter_before_the_device_is_free(
    new_run: NewRun,
) -> None:
    """Where the command itself is the program, it ends with `grn run`, and then the next starts."""
    run = new_run()
    diary = Diary(run.path("diary"))
    job = words("--memory=4000MiB", "--seconds=600", diary.option)
    submitter = run.start("-q", "--memory=4000MiB", "--", *job)
    (hold,) = diary.wait_for_holds(1)
    following = waiting_for_all(run)
    submitter.kill()
    wait_gone(hold.pid)
    assert following.wait(PATIENCE_S) == 0


def test_a_wrapper_that_passes_no_signal_on_hides_nothing(new_run: NewRun) -> None:
    """The wrapper ends on TERM without telling its child: both are gone, and nobody hangs."""
    run = new_run()
    child = line("--memory=3000MiB", "--seconds=600", f"--hold-file={run.path('held')}")
    wrapper = f"{child} & echo $! >child; trap 'exit 143' TERM; wait"
    cancelled = run.start("-q", "--grace=0.5", "--memory=3000MiB", "--", "sh", "-c", wrapper)
    eventually(lambda: os.path.exists(run.path("held")), what="memory is held")
    pid = int(run.wait_for("child"))
    following = waiting_for_all(run)
    cancelled.terminate()
    cancelled.communicate(timeout=PATIENCE_S)  # both pipes are at their end: no one has them open
    assert cancelled.returncode == 143
    assert procs.start_time(pid) is None
    assert following.wait(PATIENCE_S) == 0


def test_a_daemon_with_memory_is_ended_too(new_run: NewRun) -> None:
    """A process of a session of its own, whose parent has ended, belongs to the job all the same."""
    run = new_run()
    daemon = line("--memory=3000MiB", "--seconds=600", f"--hold-file={run.path('held')}")
    job = f"(setsid {daemon} </dev/null >/dev/null 2>&1 & echo $! >daemon); exec sleep 600"
    cancelled = run.start("-q", "--grace=0.5", "--memory=3000MiB", "--", "sh", "-c", job)
    eventually(lambda: os.path.exists(run.path("held")), what="memory is held")
    pid = int(run.wait_for("daemon"))
    cancelled.terminate()
    assert cancelled.wait(PATIENCE_S) == -signal.SIGTERM
    assert procs.start_time(pid) is None
    assert run("-q", "--memory=whole", "--wait=20", "--", *words(*FILLS)).returncode == 0


def test_a_left_over_without_memory_keeps_nothing(new_run: NewRun) -> None:
    """A helper that sleeps on holds up nobody; status names it and the lease that it came from."""
    run = new_run()
    diary = Diary(run.path("diary"))
    end = f"--until-file={run.path('go')}"
    job = words("--memory=3000MiB", "--detached-child=3600", end, diary.option)
    first = run.start("-q", "--memory=3000MiB", "--", *job)
    diary.wait_for_holds(1)
    helper = next(
        int(entry[1].partition("=")[2]) for _, _, entry in diary.entries() if entry[0] == "detached"
    )
    following = waiting_for_all(run)
    touch(run.path("go"))
    assert first.wait(PATIENCE_S) == 0
    assert following.wait(PATIENCE_S) == 0
    (warning,) = run.env.status()["warnings"]
    assert str(helper) in warning
    os.kill(helper, signal.SIGKILL)
    wait_gone(helper)


@pytest.mark.parametrize("broker", ["lives", "dies"])
def test_ctrl_c_in_the_middle_of_many_leaves_nobody(new_run: NewRun, broker: str) -> None:
    """Round after round, wherever it strikes, also while the broker dies: no process stays."""
    run = new_run("sim:4x16GiB", on_demand=True)
    for so_many in (1, 16):
        terminal = run.in_terminal("-q", "--grace=0.5", "--memory=4GiB", *["sleep 600"] * 24)
        eventually(lambda n=so_many: len(leases(run)) >= n, what="commands run")
        if broker == "dies":
            kill_broker(run)
        terminal.type(b"\x03")
        assert terminal.end() == -signal.SIGINT
        assert _sleepers(run) == []
    all_of_it = run("-q", "--gpus=4", "--memory=whole", "--wait=20", "--", "true")
    assert all_of_it.returncode == 0, all_of_it.stderr


def _sleepers(run: GrnRun) -> list[int]:
    sign = f"GRN_TEST_ENV={run.env.marker}".encode()
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                ours = sign in file.read().split(b"\0")
            with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                sleeps = file.read() == "sleep\n"
        except OSError:  # it has ended
            continue
        if ours and sleeps:
            found.append(pid)
    return found
