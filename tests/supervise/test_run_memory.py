"""Device memory: learning from real ends, and running again after it ran out."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

JOB = [sys.executable, "-m", "grn.testing.job"]
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


def test_success_is_success_whatever_was_printed(grn_run: GrnRun) -> None:
    """Programs catch the error and shrink their batch: that run is not repeated."""
    line = "echo CUDA out of memory >&2; echo x >>tries"
    assert grn_run("-q", "--retries-on-oom=3", "--", "sh", "-c", line).returncode == 0
    with open(grn_run.path("tries"), encoding="ascii") as file:
        assert file.read() == "x\n"
