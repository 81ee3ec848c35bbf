"""The broker dies in the middle of everything: commands do not notice, and nothing is lost."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually
from tests.scenarios.ondemand import broker_pid, kill_broker, leases
from tests.scenarios.standin import Diary, line, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]


@pytest.mark.parametrize("on_demand", [False, True], ids=["restarted", "on-demand"])
def test_a_killed_broker_disturbs_no_command_of_several(
    new_run: NewRun, *, on_demand: bool
) -> None:
    """Running ones go on, waiting ones get their turn from the next broker, the status is right."""
    run = new_run("sim:2x10000MiB", on_demand=on_demand)
    diary = Diary(run.path("diary"))
    go = f"--until-file={run.path('go')}"
    good = line("--memory=4000MiB", go, diary.option)
    bad = line("--memory=4000MiB", go, diary.option, "--exit-code=3")
    several = run.start("--json", "--memory=6000MiB", good, bad, good, bad, good)
    held = diary.wait_for_holds(2)
    if on_demand:
        first = kill_broker(run)
        eventually(lambda: broker_pid(run) not in {None, first}, what="the next broker")
    else:
        run.env.restart()
    eventually(lambda: len(leases(run)) == 2, what="both leases in the new books")
    assert {lease["devices"][0] for lease in leases(run)} == {hold.device for hold in held}
    assert [procs.start_time(hold.pid) is None for hold in held] == [False, False]
    assert len(diary.holds()) == 2
    touch(run.path("go"))
    out, said = several.communicate(timeout=2 * PATIENCE_S)
    assert several.returncode == 1, said
    jobs = json.loads(out)["jobs"]
    assert [job["exit_code"] for job in jobs] == [0, 3, 0, 3, 0]
    assert [job["outcome"] for job in jobs] == ["ok", "failed", "ok", "failed", "ok"]
    assert max(diary.most_by_device().values()) == 1
    eventually(lambda: leases(run) == [], what="no lease")


def test_every_command_of_a_call_outlives_several_brokers(new_run: NewRun) -> None:
    """Killed again and again while forty commands start and end, no command is lost or run twice."""
    run = new_run("sim:4x16GiB", on_demand=True)
    lines = [f"echo {n} >>ran; sleep 0.1; exit {n % 2}" for n in range(40)]
    several = run.start("--json", "--memory=8GiB", *lines)
    for count in (1, 12, 24):
        eventually(lambda n=count: _count(run.path("ran")) >= n, what="commands have run")
        if several.poll() is None:
            eventually(lambda: broker_pid(run) is not None, what="a broker")
            kill_broker(run)
    out, said = several.communicate(timeout=2 * PATIENCE_S)
    assert [job["exit_code"] for job in json.loads(out)["jobs"]] == [0, 1] * 20, said
    with open(run.path("ran"), encoding="ascii") as file:
        assert sorted(map(int, file.read().split())) == list(range(40))


def _count(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def test_a_job_whose_broker_is_gone_ends_as_it_did_and_says_what_is_lost(new_run: NewRun) -> None:
    """Nobody measures it any more, and nobody is told of its end: its user is."""
    run = new_run(on_demand=True)
    diary = Diary(run.path("diary"))
    job = words("--memory=100MiB", f"--until-file={run.path('go')}", diary.option, "--exit-code=3")
    single = run.start("--", *job)
    diary.wait_for_holds(1)
    kill_broker(run)
    touch(run.path("go"))
    _, said = single.communicate(timeout=2 * PATIENCE_S)
    assert single.returncode == 3
    assert b"the broker is gone: nothing was learnt" in said


def test_a_stale_socket_starts_a_broker_anew(new_run: NewRun) -> None:
    """A socket that a killed broker left is no obstacle for the next command."""
    run = new_run(on_demand=True)
    assert run("-q", "--", "true").returncode == 0
    kill_broker(run)
    assert os.path.exists(run.env.socket)
    assert run("-q", "--wait=20", "--", "sh", "-c", "exit 6").returncode == 6


def test_a_broker_that_cannot_start_leaves_nothing_behind(new_run: NewRun) -> None:
    """The reason is one line, GRN's own status says that it failed, and the cure works at once."""
    run = new_run(on_demand=True)
    blocked = run.path("blocked")
    touch(blocked)
    bad = {"GRN_DEVICES": f"sim:1x8GiB,dir={blocked}/sim"}
    done = run("-q", "touch never", environ=bad)
    assert done.returncode == 125
    assert b"blocked/sim" in done.stderr
    assert b"Traceback" not in done.stderr
    assert broker_pid(run) is None
    assert not os.path.exists(run.env.socket)
    run.env.log_path = os.devnull  # the failed start is told there
    assert run("-q", "--wait=20", "--", "true").returncode == 0
    assert not os.path.exists(run.path("never"))


def test_misspelt_devices_are_the_callers_mistake(new_run: NewRun) -> None:
    """They are refused as usage, with what was not understood, and start no broker."""
    run = new_run(on_demand=True)
    done = run("-q", "touch never", environ={"GRN_DEVICES": "sim:many"})
    assert done.returncode == 2
    assert b"many" in done.stderr
    assert broker_pid(run) is None
