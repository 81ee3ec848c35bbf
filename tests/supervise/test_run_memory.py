"""Device memory: learning from real ends, and running again after it ran out."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually
from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

JOB = [sys.executable, "-m", "grn.testing.job"]
HOLD = "touch holds.new; echo yes >holds; while ! test -e go; do sleep 0.05; done"
# Fails like a framework until it is given enough.
GROWS = (
    "import os, sys\n"
    "open('tries', 'a').write(os.environ['GRN_MEM_MIB'] + '\\n')\n"
    "if int(os.environ['GRN_MEM_MIB']) < {needs}:\n"
    "    sys.exit('torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate')\n"
)


def tries(grn_run: GrnRun) -> list[int]:
    """Return the bookings of all tries."""
    with open(grn_run.path("tries"), encoding="ascii") as file:
        return [int(line) for line in file]


def test_a_run_is_measured_and_its_siblings_share(grn_run: GrnRun) -> None:
    """The peak of a command shows in its result, and the next is placed by it."""
    command = [*JOB, "--memory=1000", "--seconds=1"]
    done = grn_run("-q", "--status-fd=1", "--", *command)
    assert json.loads(done.stdout)["peak_mib"] == 1000
    lines = [" ".join(command)] * 4
    begun = time.monotonic()
    done = grn_run("-q", "--json", *lines)
    assert [job["outcome"] for job in json.loads(done.stdout)["jobs"]] == ["ok"] * 4
    assert time.monotonic() - begun < 3.9  # one after the other would take 4 s


def test_a_job_that_ran_out_of_memory_runs_again_with_more(grn_run: GrnRun) -> None:
    """With --retries-on-oom the next try is booked larger, until it fits."""
    script = GROWS.format(needs=2000)
    done = grn_run("--memory=1000", "--retries-on-oom=3", "--", "python3", "-c", script)
    assert done.returncode == 0
    bookings = tries(grn_run)
    assert bookings == sorted(bookings)
    assert len(bookings) in {2, 3, 4}
    assert bookings[-1] >= 2000
    assert b"out of device memory; running it again" in done.stderr
    assert b"CUDA out of memory" in done.stderr


def test_tries_are_limited(grn_run: GrnRun) -> None:
    """After the last try the command's own status is ours."""
    script = GROWS.format(needs=100000)
    done = grn_run("-q", "--memory=1000", "--retries-on-oom=1", "--", "python3", "-c", script)
    assert done.returncode == 1
    assert len(tries(grn_run)) == 2


def test_without_the_option_nothing_runs_twice(grn_run: GrnRun) -> None:
    """Running again is a choice of the user."""
    script = GROWS.format(needs=2000)
    assert grn_run("-q", "--memory=1000", "--", "python3", "-c", script).returncode == 1
    assert len(tries(grn_run)) == 1


def test_of_several_only_the_one_that_ran_out_runs_again(grn_run: GrnRun) -> None:
    """The summary has the end of the last try."""
    with open(grn_run.path("grows.py"), "w", encoding="ascii") as file:
        file.write(GROWS.format(needs=2000))
    done = grn_run("-q", "--memory=1000", "--retries-on-oom=3", "python3 grows.py", "exit 4")
    assert done.returncode == 1
    rows = done.stderr.decode().splitlines()
    assert len(tries(grn_run)) > 1
    summary = [row for row in rows if row.startswith(("1 ", "2 "))]
    assert summary[0].endswith("ok")
    assert summary[1].endswith("exit 4")


def test_the_standard_error_of_a_watched_command_passes_byte_for_byte(grn_run: GrnRun) -> None:
    """With --retries-on-oom it is read along, not changed."""
    done = grn_run("-q", "--retries-on-oom=1", "--", "sh", "-c", "printf 'a\\300b' >&2; printf out")
    assert (done.stdout, done.stderr) == (b"out", b"a\xc0b")


def test_an_error_for_want_of_memory_is_recognised_without_any_option(grn_run: GrnRun) -> None:
    """The framework's words on standard error decide, and pass as they are."""
    done = grn_run("-q", "--memory=1000", "--status-fd=1", "--", *JOB, "--memory=9000")
    assert done.returncode == 1
    assert b"CUDA out of memory" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "oom"


def test_after_more_and_more_it_runs_alone_and_tells_what_was_tried(grn_run: GrnRun) -> None:
    """The last retry has the largest device to itself; then one line lists all tries."""
    done = grn_run(
        "-q", "--memory=1000", "--retries-on-oom=5", "--status-fd=1", "--", *JOB, "--memory=9000"
    )
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["tries"] == 4
    bookings = [attempt["booked_mib"] for attempt in result["attempts"]]
    assert bookings == sorted(bookings)
    assert bookings[0] == 1000
    assert bookings[-1] == 8000
    assert [attempt["whole"] for attempt in result["attempts"]] == [False, False, False, True]
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("grn run: tried 4 times: 1000 MiB on device ")
    assert last.count("(oom)") == 4
    assert " alone on device " in last


def test_alone_means_on_the_largest_device(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """What needs more than the smaller device has gets the larger one, and is done."""
    grn_run = GrnRun(new_env("sim:1x4000MiB,1x8000MiB"), tmp_path)
    words = ("--memory=1000", "--policy=pack", "--retries-on-oom=2")
    done = grn_run(*words, "--status-fd=1", "--", *JOB, "--memory=7000")
    assert done.returncode == 0, done.stderr
    assert b"alone on the largest device" in done.stderr
    attempts = json.loads(done.stdout)["attempts"]
    assert [attempt["devices"] for attempt in attempts] == [[0], [0], [1]]
    assert attempts[-1]["booked_mib"] == 8000


def test_a_retry_that_is_not_granted_leaves_the_commands_own_end(grn_run: GrnRun) -> None:
    """How the command ended says more than that it had no second chance."""
    holder = grn_run.start("-q", "--memory=6000", "--gpus=2", "--", "sh", "-c", HOLD)
    grn_run.wait_for("holds")
    script = (
        "touch ran; while ! test -e held; do sleep 0.05; done; echo CUDA out of memory >&2; exit 3"
    )
    run = grn_run.start(
        "--memory=1900", "--wait=2", "--retries-on-oom=1", "--status-fd=1", "--", "sh", "-c", script
    )
    eventually(lambda: os.path.exists(grn_run.path("ran")), what="the first try")
    with open(grn_run.path("held"), "w", encoding="ascii"):
        pass
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 3
    assert b"not run again: not granted within 2 s" in err
    assert json.loads(out)["outcome"] == "oom"
    with open(grn_run.path("go"), "w", encoding="ascii"):
        pass
    assert holder.wait(PATIENCE_S) == 0


def test_a_busy_device_is_no_matter_of_memory(grn_run: GrnRun) -> None:
    """It is said, nothing is run again, and the outcome is a plain failure."""
    script = "echo CUDA error: all CUDA-capable devices are busy or unavailable >&2; exit 1"
    words = ("--memory=1000", "--retries-on-oom=3", "--status-fd=1", "--", "sh", "-c", script)
    done = grn_run(*words)
    result = json.loads(done.stdout)
    assert (done.returncode, result["outcome"], result["tries"]) == (1, "failed", 1)
    assert b"busy or unavailable: no matter of memory" in done.stderr


def test_memory_taken_at_once_and_kept_is_told(grn_run: GrnRun) -> None:
    """The note of the broker that this looks like preallocation reaches the user."""
    done = grn_run("--", *JOB, "--memory=7000", "--seconds=1")
    assert done.returncode == 0
    assert b"preallocation" in done.stderr


@pytest.fixture
def small_group() -> Iterator[str]:
    """Return a control group with 64 MiB of RAM and no swap, where we may make one."""
    path = _small_group("/sys/fs/cgroup/memory", "limit_in_bytes", "swappiness")
    path = path or _small_group("/sys/fs/cgroup", "max", "swap.max")
    if path is None:
        pytest.skip("no control group of our own can be made here")
    yield path
    eventually(lambda: _removed(path), what="the end of the control group")


def _small_group(root: str, limit: str, swap: str) -> str | None:
    path = f"{root}/grn-test-{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError:
        return None
    try:
        for key, value in ((limit, 64 << 20), (swap, 0)):
            with open(f"{path}/memory.{key}", "w", encoding="ascii") as file:
                file.write(str(value))
    except OSError:
        os.rmdir(path)
        return None
    return path


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except OSError:  # a process of it has not quite gone
        return False
    return True


def test_a_kill_for_want_of_the_hosts_memory_is_told(grn_run: GrnRun, small_group: str) -> None:
    """The kernel's count says who killed it: that is a kill, and no want of device memory."""
    code = "import sys; sys.stderr.write('CUDA out of memory'); b = bytearray(600 << 20)"

    def join() -> None:
        with open(f"{small_group}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")

    done = grn_run(
        "--memory=1000", "--status-fd=1", "--", sys.executable, "-c", code, preexec_fn=join
    )
    assert done.returncode == -signal.SIGKILL
    result = json.loads(done.stdout)
    assert (result["outcome"], result["note"]) == ("killed", "killed by the kernel for host RAM")
    assert b"killed by the kernel for host RAM" in done.stderr


def test_success_is_success_whatever_was_printed(grn_run: GrnRun) -> None:
    """Programs catch the error and shrink their batch: that run is not repeated."""
    line = "echo CUDA out of memory >&2; echo x >>tries"
    assert grn_run("-q", "--retries-on-oom=3", "--", "sh", "-c", line).returncode == 0
    with open(grn_run.path("tries"), encoding="ascii") as file:
        assert file.read() == "x\n"


def test_a_signal_while_it_waits_to_run_again_ends_us_by_it(grn_run: GrnRun) -> None:
    """A retry that was not started is nobody's failure: a shell sees the signal."""
    holder = grn_run.start("-q", "--memory=6000", "--gpus=2", "--", "sh", "-c", HOLD)
    grn_run.wait_for("holds")
    script = "echo CUDA out of memory >&2; exit 3"
    run = grn_run.start("--memory=1900", "--retries-on-oom=1", "--", "sh", "-c", script)
    eventually(lambda: grn_run.env.status()["waiters"], what="the second request")
    run.terminate()
    assert run.wait(PATIENCE_S) == -signal.SIGTERM
    with open(grn_run.path("go"), "w", encoding="ascii"):
        pass
    assert holder.wait(PATIENCE_S) == 0
