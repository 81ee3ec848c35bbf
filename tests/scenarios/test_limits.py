"""Limits of time, what is said to programs, and mistakes on the command line."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually
from tests.scenarios.standin import Diary, line, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]


def hold_all(run: GrnRun) -> Any:
    """Start a command that has the whole machine until the file `go` is there."""
    holder = run.start(
        "-q", "--gpus=1", "--memory=whole", f"while ! test -e {run.path('go')}; do sleep 0.05; done"
    )
    eventually(lambda: run.env.status()["leases"], what="the holder's lease")
    return holder


def test_a_command_that_is_not_granted_in_time_is_75(new_run: NewRun) -> None:
    """After `--wait` it was never started, the reason has numbers, and nothing waits any more."""
    run = new_run()
    holder = hold_all(run)
    begun_s = time.monotonic()
    done = run("-q", "--memory=4GiB", "--wait=0.3", "--", "touch", "never")
    assert done.returncode == 75
    assert time.monotonic() - begun_s >= 0.3
    assert b"not granted within 0.3 s: 4096 MiB on 1 device wanted" in done.stderr
    several = run("-q", "--json", "--memory=4GiB", "--wait=0.3", "touch never", "touch never")
    assert several.returncode == 1
    assert [job["exit_code"] for job in json.loads(several.stdout)["jobs"]] == [75, 75]
    assert run.env.status()["waiters"] == []
    touch(run.path("go"))
    assert holder.wait(PATIENCE_S) == 0
    assert not os.path.exists(run.path("never"))


def test_time_to_wait_does_not_count_as_time_to_run(new_run: NewRun) -> None:
    """A command that is granted within `--wait` may then run as long as it likes."""
    run = new_run()
    done = run("-q", "--wait=0.2", "--", "sh", "-c", "sleep 0.6; exit 3")
    assert done.returncode == 3


def test_a_command_over_its_time_limit_is_124(new_run: NewRun) -> None:
    """Its whole tree is ended, with what holds memory; a shorter one keeps its own status."""
    run = new_run()
    diary = Diary(run.path("diary"))
    tree = ("--memory=4000MiB", "--children=1", "--child-memory=100MiB", "--seconds=600")
    job = line(*tree, diary.option)
    limit = ("-q", "--time-limit=1", "--grace=0.5")
    done = run(*limit, "--memory=5000MiB", job + "; :")
    assert done.returncode == 124
    whole = words("--memory=10000MiB", "--seconds=0")
    assert run("-q", "--memory=whole", "--wait=20", "--", *whole).returncode == 0
    assert run("-q", "--time-limit=1h", "--", "sh", "-c", "exit 9").returncode == 9
    several = run(*limit, "--json", "sleep 600", "exit 9", "true")
    assert several.returncode == 1
    codes = [job["exit_code"] for job in json.loads(several.stdout)["jobs"]]
    assert codes == [124, 9, 0]


@pytest.mark.parametrize(
    ("args", "exit_code", "outcome"),
    [
        (["--", "true"], 0, "ok"),
        (["--", "sh", "-c", "exit 124"], 124, "failed"),
        (["--", "sh", "-c", "kill -9 $$"], 137, "killed"),
        (["--time-limit=0.3", "--", "sleep", "600"], 124, "cancelled"),
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
    assert job["signal"] == (9 if exit_code == 137 else job["signal"])


def test_words_that_were_not_quoted_are_a_usage_error(new_run: NewRun) -> None:
    """`grn run python -c pass` starts nothing and says where `--` belongs."""
    run = new_run()
    done = run("python3", "-c", "pass")
    assert done.returncode == 2
    assert b"grn run -- python3 -c" in done.stderr
    assert run("-q", "--", "python3", "-c", "pass").returncode == 0


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
    holder = hold_all(run)
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
    holder.send_signal(signal.SIGTERM)
    holder.wait(PATIENCE_S)
    assert not os.path.exists(run.path("never"))
