"""Limits of time and of the machine, and what programs are told about an end."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually
from tests.scenarios.standin import line, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]


def test_time_to_wait_does_not_count_as_time_to_run(new_run: NewRun) -> None:
    """A command that is granted within `--wait` may then run as long as it likes."""
    run = new_run()
    done = run("-q", "--wait=0.2", "--", "sh", "-c", "sleep 0.6; exit 3")
    assert done.returncode == 3


def test_a_command_over_its_time_limit_frees_its_device(new_run: NewRun) -> None:
    """The status is 124, and nothing of the process tree holds memory any more."""
    run = new_run()
    tree = ("--memory=4000MiB", "--children=1", "--child-memory=100MiB", "--seconds=600")
    done = run("-q", "--time-limit=1", "--grace=0.5", "--memory=5000MiB", line(*tree) + "; :")
    assert done.returncode == 124
    fills = words("--memory=10000MiB", "--seconds=0")
    assert run("-q", "--memory=whole", "--wait=20", "--", *fills).returncode == 0


@pytest.mark.parametrize(
    ("args", "exit_code", "outcome"),
    [
        (["--", "true"], 0, "ok"),
        (["--", "sh", "-c", "exit 124"], 124, "failed"),
        (["--time-limit=0.3", "--", "sleep", "600"], 124, "cancelled"),
        (["--", "sh", "-c", "exit 137"], 137, "failed"),
        (["--", "sh", "-c", "kill -9 $$"], 137, "killed"),
        (["--memory=1TiB", "--", "true"], 125, "failed"),
        (["--", "no-such-command"], 127, "failed"),
    ],
)
def test_the_status_descriptor_tells_ends_apart(
    new_run: NewRun, args: list[str], exit_code: int, outcome: str
) -> None:
    """Exit codes can collide: one JSON object on a descriptor says whose code it was, and why."""
    run = new_run()
    reader, writer = os.pipe()
    run("-q", f"--status-fd={writer}", *args, pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as file:
        (told,) = file.read().splitlines()
    job = json.loads(told)
    assert (job["schema"], job["exit_code"], job["outcome"]) == (1, exit_code, outcome)


def test_unknown_commands_among_several_are_named(new_run: NewRun) -> None:
    """Commands that do not exist are 127 each, nobody meets a traceback, and others run."""
    run = new_run()
    done = run("-q", "--json", "no-such a", "echo fine", "no-such 'b c'")
    assert done.returncode == 1
    assert [job["exit_code"] for job in json.loads(done.stdout)["jobs"]] == [127, 0, 127]
    assert b"Traceback" not in done.stderr
    assert b"] fine" in done.stderr


def test_a_request_beyond_the_machine_is_refused_at_once(new_run: NewRun) -> None:
    """Too much memory, too many devices or CPUs end with 125 and both numbers, and never wait."""
    run = new_run("sim:2x8000MiB", machine_cpus=4, cpu_reserve=0)
    wait = f"while ! test -e {run.path('go')}; do sleep 0.05; done"
    holder = run.start("-q", "--gpus=2", "--memory=whole", wait)
    eventually(lambda: run.env.status()["leases"], what="a full machine")
    for wish, numbers in [
        ("--memory=9000MiB", ("9000 MiB", "8000 MiB")),
        ("--gpus=3", ("3 devices", "2")),
        ("--cpus=5", ("5 CPUs", "4")),
    ]:
        refused = run("-q", wish, "--", "touch", "never")
        assert refused.returncode == 125
        for number in numbers:
            assert number in refused.stderr.decode()
    assert run.env.status()["waiters"] == []
    touch(run.path("go"))
    assert holder.wait(PATIENCE_S) == 0
    assert not os.path.exists(run.path("never"))
