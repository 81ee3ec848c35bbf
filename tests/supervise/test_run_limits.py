"""Time: how long a request may wait, how long a job may run, and what people are told meanwhile."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.supervise.grnrun import GrnRun


@pytest.fixture
def _full(grn_run: GrnRun) -> Iterator[None]:
    """Hold both devices until the test ends."""
    holder = grn_run.start("-q", "--gpus=2", "--memory=whole", "--", "sleep", "120")
    eventually(lambda: grn_run.env.status()["leases"], what="the holder's lease")
    yield
    holder.terminate()
    holder.wait(PATIENCE_S)


@pytest.mark.usefixtures("_full")
def test_a_request_is_given_up_in_time(grn_run: GrnRun) -> None:
    """Not granted within --wait: 75, one line with the reason, and nothing was started."""
    done = grn_run("--wait=0.3", "--", "touch", "started")
    assert done.returncode == 75
    assert done.stderr.startswith(b"grn run: not granted within 0.3 s: ")
    assert done.stderr.count(b"\n") == 1
    assert not grn_run.env.status()["waiters"]


def test_a_wait_of_zero_takes_what_is_free_now(grn_run: GrnRun) -> None:
    """Zero means "now or never": granted if there is room, 75 at once if not."""
    assert grn_run("-q", "--wait=0", "--", "true").returncode == 0


@pytest.mark.usefixtures("_full")
def test_a_wait_of_zero_fails_at_once(grn_run: GrnRun) -> None:
    """Zero does not wait when there is no room."""
    assert grn_run("-q", "--wait=0", "--", "true").returncode == 75


def test_of_several_only_those_that_wait_too_long_fail(grn_run: GrnRun) -> None:
    """Each command has its own deadline; the summary says 75 for the one that missed it."""
    done = grn_run("-q", "--gpus=2", "--memory=whole", "--wait=0.5", "sleep 3", "true")
    assert done.returncode == 1
    rows = done.stderr.decode().splitlines()
    assert rows[1].endswith("ok")
    assert "75 not granted within 0.5 s" in rows[2]


@pytest.mark.usefixtures("_full")
def test_a_waiting_command_says_why_after_two_seconds(grn_run: GrnRun) -> None:
    """One line with the broker's reason, and none with --quiet."""
    loud = grn_run.start("--wait=3", "--", "true")
    quiet = grn_run.start("-q", "--wait=3", "--", "true")
    lines = loud.communicate(timeout=PATIENCE_S)[1].decode().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("grn run: waiting: ")
    assert lines[1].startswith("grn run: not granted")
    assert quiet.communicate(timeout=PATIENCE_S)[1].count(b"\n") == 1


def test_a_request_that_can_never_be_met_is_125(grn_run: GrnRun) -> None:
    """Refused at once, with the wish and the limit."""
    done = grn_run("--memory=100GiB", "--", "true")
    assert done.returncode == 125
    assert b"102400" in done.stderr or b"100 GiB" in done.stderr
    assert b"8000" in done.stderr


def test_a_command_is_stopped_at_its_time_limit(grn_run: GrnRun) -> None:
    """TERM, grace, KILL, then 124; what it started in a session of its own is gone, too."""
    script = "setsid sh -c 'trap \"\" TERM; echo $$ >inner; while :; do sleep 0.1; done' & wait"
    done = grn_run("--time-limit=0.5", "--grace=0.3", "--", "sh", "-c", script)
    assert done.returncode == 124
    assert done.stderr == b"grn run: stopped: the time limit was reached\n"
    wait_gone(int(grn_run.wait_for("inner")), 0.5)


def test_a_command_within_its_limit_is_left_alone(grn_run: GrnRun) -> None:
    """The limit counts from the start of the command, and ends with it."""
    assert grn_run("-q", "--time-limit=30", "--", "sh", "-c", "exit 8").returncode == 8


def test_a_limit_stops_only_the_job_that_exceeds_it(grn_run: GrnRun) -> None:
    """One of several runs into the limit; the other's background process is not touched."""
    done = grn_run(
        "-q",
        "--gpus=0",
        "--time-limit=1",
        "--grace=0.3",
        "(sleep 120; touch late) & echo $! >kept",
        "sleep 60",
    )
    assert done.returncode == 1
    rows = done.stderr.decode().splitlines()
    assert rows[1].endswith("ok")
    assert rows[2].endswith("124 time limit reached")
    kept = int(grn_run.wait_for("kept"))
    assert procs.start_time(kept) is not None
    grn_run.end_strays()


def test_a_wrapper_that_keeps_signals_to_itself_is_no_hiding_place(grn_run: GrnRun) -> None:
    """The wrapper ends on TERM and tells its child nothing: both are gone, soon, and it is 143."""
    script = (
        "import os, signal, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "print(child.pid, flush=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), 9))\n"
        "child.wait()\n"
    )
    process = grn_run.start("-q", "--", "python3", "-c", script)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    begun = time.monotonic()
    process.terminate()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - begun < 10
    assert (process.returncode, out) == (-signal.SIGTERM, b"")
    wait_gone(child, 0.5)
