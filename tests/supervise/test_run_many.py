"""Many commands in one run: one process, bounded means, and no command lost."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun


def listed(grn_run: GrnRun, lines: list[str]) -> str:
    """Write commands to a file; return the option that names it."""
    with open(grn_run.path("jobs"), "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))
    return f"--file={grn_run.path('jobs')}"


def test_more_commands_than_requests_may_be_outstanding(grn_run: GrnRun) -> None:
    """All of 600 run, each once."""
    jobs = listed(grn_run, [f"echo {n}" for n in range(600)])
    done = grn_run("-q", "--gpus=0", jobs)
    assert done.returncode == 0
    numbers = [int(line.rpartition(b"] ")[2]) for line in done.stdout.splitlines()]
    assert sorted(numbers) == list(range(600))


def test_few_descriptors_are_enough(grn_run: GrnRun) -> None:
    """With a small limit fewer run at once; none fails for want of a pipe. Jobs see the old limit."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 100))

    jobs = listed(grn_run, ["ulimit -n; sleep 0.1"] * 40)
    done = grn_run("-q", "--gpus=0", jobs, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    assert {line.rpartition(b"] ")[2] for line in done.stdout.splitlines()} == {b"80"}


def test_commands_without_a_broker_share_the_cpus(grn_run: GrnRun) -> None:
    """Without allocations only as many run at once as there are CPUs; all run in the end."""
    count = "n=$(ls run.* 2>/dev/null | wc -l); touch run.$$; echo $n >>seen; sleep 0.2; rm run.$$"
    done = grn_run(
        "-q",
        "--if-unavailable=run",
        "--socket=/proc/no/such/folder",
        *[count] * 8,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0
    with open(grn_run.path("seen"), encoding="ascii") as file:
        beside = [int(line) for line in file]
    assert len(beside) == 8
    assert max(beside) < len(os.sched_getaffinity(0))
