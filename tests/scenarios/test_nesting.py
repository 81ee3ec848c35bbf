"""`grn run` inside `grn run`: the outer lease counts, and nobody waits for himself."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from tests.env import eventually
from tests.scenarios.standin import line, touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]

SHOW = 'echo "$GRN_LEASE $CUDA_VISIBLE_DEVICES $GRN_MEM_MIB"'


def inner(run: GrnRun, *args: str) -> str:
    """Return `grn run` as a shell line."""
    return shlex.join(run.argv("-q", *args))


def test_the_inner_command_runs_in_the_outer_lease(new_run: NewRun) -> None:
    """On a machine that is full already, it starts at once, with the same lease and devices."""
    run = new_run("sim:2x8000MiB")
    nested = inner(run, "--wait=20", SHOW)
    done = run("-q", "--gpus=2", "--memory=whole", f"{SHOW}; {nested}; {nested}; exit 3")
    assert done.returncode == 3, done.stderr
    lines = done.stdout.decode().splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert " 0,1 " in lines[0]


def test_the_end_of_the_inner_command_does_not_end_the_outer_lease(new_run: NewRun) -> None:
    """What is booked outside stays booked after an inner command has ended, by status or signal."""
    run = new_run()
    ends = "; ".join([inner(run, "exit 5"), "echo $?", inner(run, "kill -9 $$"), "echo $?"])
    status = shlex.join([*run.argv()[:-1], "status", "--json"])
    done = run("-q", "--memory=4000MiB", f"{ends}; {status}")
    five, killed, books = done.stdout.decode().split("\n", 2)
    assert (five, killed) == ("5", "137")
    (lease,) = json.loads(books)["leases"]
    assert (lease["booked_mib"], lease["state"]) == (4000, "running")
    assert run.env.status()["leases"] == []


def test_the_memory_of_inner_commands_is_the_outer_ones_peak(new_run: NewRun) -> None:
    """What is measured below belongs to the type that was asked for above."""
    run = new_run()
    nested = inner(run, line("--memory=2000MiB", "--seconds=0.5"))
    done = run("-q", "--json", "--type=outer", f"{nested}; {nested}")
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["exit_code"], job["peak_mib"]) == (0, 2000), done.stderr
    assert [entry["type"] for entry in run.env.talker().profiles()] == ["outer"]


def test_more_than_the_outer_lease_has_is_refused(new_run: NewRun) -> None:
    """From inside nothing can be added: the refusal has the lease and both numbers, at once."""
    run = new_run("sim:2x8000MiB")
    for wish, number in (("--gpus=2", "2 with 0 MiB"), ("--memory=5000MiB", "1 with 5000 MiB")):
        done = run("-q", "--memory=4000MiB", f"{inner(run, wish, 'touch never')}; echo $?")
        assert done.stdout == b"125\n"
        said = done.stderr.decode()
        assert "1 device(s) with 4000 MiB each" in said
        assert number in said
    several = inner(run, "--gpus=2", "touch never", "touch never")
    assert run("-q", "--memory=4000MiB", f"{several}; echo $?").stdout == b"1\n"


def test_several_inner_commands_share_the_outer_lease(new_run: NewRun) -> None:
    """A call with several commands inside a lease runs them all in it, and reports them."""
    run = new_run()
    nested = inner(run, "--json", "exit 0", "exit 3", "exit 0")
    done = run("-q", "--memory=whole", f"{nested}")
    jobs = json.loads(done.stdout)["jobs"]
    assert [job["exit_code"] for job in jobs] == [0, 3, 0]
    assert [job["outcome"] for job in jobs] == ["ok", "failed", "ok"]


def test_a_command_that_becomes_grn_run_is_inside_its_own_lease(new_run: NewRun) -> None:
    """Also when the job replaces itself by another `grn run`, it gets the lease that it has."""
    run = new_run()
    done = run("-q", "--memory=whole", f"{SHOW}; exec {inner(run, '--wait=20', SHOW)}")
    first, second = done.stdout.decode().splitlines()
    assert first == second


def test_the_mark_of_a_lease_that_has_ended_is_no_obstacle(new_run: NewRun) -> None:
    """An environment that outlived its lease, as a screen session's does, asks for a new one."""
    run = new_run()
    (old,) = run("-q", "echo $GRN_LEASE").stdout.decode().split()
    done = run("-q", "--wait=20", SHOW, environ={"GRN_LEASE": old, "GRN_MEM_MIB": "1"})
    new, device, memory = done.stdout.decode().split()
    assert new != old
    assert (device, memory) == ("0", "10000")
    nested = run("-q", "--wait=20", SHOW, environ={"GRN_LEASE": "garbage \udcff"})
    assert nested.returncode == 0, nested.stderr


def test_what_inner_commands_declare_is_added_up(new_run: NewRun) -> None:
    """Three commands of 4000 MiB inside a lease of 4000 MiB run one after the other, none fails."""
    run = new_run("sim:1x10000MiB")
    job = line("--memory=4000MiB", "--seconds=0.3")
    nested = inner(run, "--json", "--memory=4000MiB", job, job, job)
    done = run("-q", "--memory=4000MiB", "--type=outer", nested)
    jobs = json.loads(done.stdout)["jobs"]
    assert [job["exit_code"] for job in jobs] == [0, 0, 0], done.stderr
    assert sum(1 for job in jobs if job["waited_s"] > 0.2) == 2
    (known,) = run.env.talker().profiles()
    assert known["peak_mib"] == 4000


def test_an_inner_command_in_the_background_keeps_the_lease(new_run: NewRun) -> None:
    """The room of a command that left another one in it is free when that has ended, too."""
    run = new_run("sim:1x10000MiB")
    begun, end = run.path("begun"), run.path("end")
    until = "until [ -e {} ]; do sleep 0.02; done"
    nested = inner(run, f"touch {begun}; {until.format(end)}")
    both = f"{nested} >/dev/null 2>&1 & {until.format(begun)}"
    done = run("-q", "--memory=4000MiB", both)
    assert done.returncode == 0, done.stderr
    assert [lease["state"] for lease in run.env.status()["leases"]] == ["draining"]
    assert run.env.status()["devices"][0]["free_mib"] == 6000
    touch(end)
    eventually(lambda: run.env.status()["leases"] == [])
    assert run.env.status()["devices"][0]["free_mib"] == 10000
