"""Whatever is killed, an acknowledged job is there, and runs once."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import TYPE_CHECKING

from grn.queue.worklist import Worklist
from grn.rules import queueing as states
from tests.env import eventually, wait_gone

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.queue.conftest import QueueEnv

    Make = Callable[..., QueueEnv]

ROUNDS = int(os.environ.get("GRN_TEST_QUEUE_ROUNDS", "12"))
"""How often the owner is killed; a hundred takes some minutes."""

_ADDER = """
import sys
from grn.cli.queue import main
name, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    main(["add", "--gpus", "0", f"echo {name}{n} >> ran"])
    print(f"added {name}{n}", flush=True)
"""


def adder(q: QueueEnv, name: str, count: int) -> subprocess.Popen[bytes]:
    """Start a process that adds jobs, one after the other, and says when each was added."""
    argv = [sys.executable, "-c", _ADDER, name, str(count)]
    return q.env.popen(argv, stdout=-1, stderr=-3, cwd=q.folder)


def acknowledged(process: subprocess.Popen[bytes]) -> list[str]:
    """Return what a process said that it has added, once it has ended."""
    out, _ = process.communicate(timeout=60)
    return [line.removeprefix("added ") for line in out.decode().splitlines() if "added" in line]


def test_added_jobs_survive_the_owner_and_run_once(queue: Make) -> None:
    """Four processes add while the owner is killed again and again: each job once, in order."""
    q = queue()
    chance = random.Random(7)  # noqa: S311 - only moments
    expected: list[str] = []
    for turn in range(ROUNDS):
        pid = q.start()
        adders = [adder(q, f"r{turn}-{who}-", 2) for who in range(4)]
        chosen = chance.choice(adders)
        if chance.random() < 0.5:
            chosen.wait(60)  # the owner is killed while jobs start; else while they are added
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
        for process in adders:
            own = acknowledged(process)
            assert len(own) == 2
            expected += own
    q.start()
    q.run("wait")
    jobs = q.jobs()
    assert all(job["state"] == "ok" for job in jobs.values()), q.shown()
    added = [job["command"].split()[1] for _, job in sorted(jobs.items())]
    assert sorted(added) == sorted(expected)
    for turn in range(ROUNDS):
        for who in range(4):
            own = [name for name in added if name.startswith(f"r{turn}-{who}-")]
            assert own == [f"r{turn}-{who}-0", f"r{turn}-{who}-1"]
    with open(os.path.join(q.folder, "ran"), encoding="ascii") as file:
        assert sorted(file.read().split()) == sorted(expected)


def test_a_running_job_outlives_the_owner(queue: Make) -> None:
    """It goes on; the next owner finds it, waits for it, and knows how it ended."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "whole")
    q.holder("b", "--memory", "whole")
    pid = q.start()
    q.wait_on("a")
    q.until(2, "waiting")
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    assert q.job(1)["state"] == "running"
    assert q.start() != pid
    q.off("a")
    assert q.ended(1)["state"] == "ok"
    q.wait_on("b")
    q.off("b")
    assert q.ended(2)["state"] == "ok"
    assert q.job(2)["tries"] == 1


def test_a_job_that_ended_without_an_owner_is_known(queue: Make) -> None:
    """The runner writes the end down by itself."""
    q = queue()
    job = q.holder("a")
    pid = q.start()
    q.wait_on("a")
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    q.off("a")
    assert q.ended(job)["state"] == "ok"


def test_a_killed_runner_takes_its_job_along_and_is_lost(queue: Make) -> None:
    """Nobody knows how the job ended, and the list says so; the queue goes on."""
    q = queue()
    job = q.holder("a")
    (other,) = q.add("--after", str(job), "true")
    q.start()
    q.wait_on("a")
    seen = eventually(lambda: (found := q.job(job))["pid"] and found, what="its process is named")
    os.kill(seen["runner"], signal.SIGKILL)
    lost = q.ended(job)
    assert lost["state"] == "lost"
    assert "signal 9" in lost["text"]
    wait_gone(seen["pid"])
    assert q.ended(other)["state"] == "cancelled"
    eventually(lambda: q.env.status()["leases"] == [], what="its lease ends")


def test_a_runner_that_died_without_an_owner_is_found_lost(queue: Make) -> None:
    """Both are killed: the next owner says that nobody knows."""
    q = queue()
    job = q.holder("a")
    pid = q.start()
    q.wait_on("a")
    runner = q.job(job)["runner"]
    for victim in (pid, runner):
        os.kill(victim, signal.SIGKILL)
        wait_gone(victim)
    assert q.job(job)["state"] == "running"
    q.start()
    assert q.ended(job)["state"] == "lost"


def test_a_starting_job_that_nobody_claimed_is_queued_again(queue: Make) -> None:
    """The owner died between marking a job and its runner's claim: it runs, once."""
    q = queue()
    (job,) = q.add("echo x >> ran")
    with Worklist(q.places) as store:
        entry = store.take_next()
        assert entry is not None
    q.start()
    q.ended(job)
    with Worklist(q.places) as store:  # the runner of the dead owner comes late
        assert not store.claim(job, entry.attempt, (1, "x"))
        assert store.get(job).state == states.OK
    with open(os.path.join(q.folder, "ran"), encoding="ascii") as file:
        assert file.read() == "x\n"


def test_one_of_many_claims_wins(queue: Make) -> None:
    """However many runners think that a job is theirs, one gets it."""
    q = queue()
    q.add("true")
    with Worklist(q.places) as one, Worklist(q.places) as other:
        entry = one.take_next()
        assert entry is not None
        got = [s.claim(entry.id, entry.attempt, (n, "x")) for n, s in enumerate([one, other, one])]
    assert got == [True, False, False]


def test_a_job_that_ran_is_never_started_again(queue: Make) -> None:
    """A lost job stays lost over restarts; only `retry` runs it, under a new number."""
    q = queue()
    job = q.holder("a")
    q.start()
    q.wait_on("a")
    os.kill(q.job(job)["runner"], signal.SIGKILL)
    q.ended(job)
    q.run("stop")
    q.start()
    (again,) = (int(n) for n in q.run("retry", str(job)).stdout.split())
    q.off("a")
    assert q.ended(again)["state"] == "ok"
    assert q.job(job)["state"] == "lost"


def test_left_over_processes_are_reaped_and_no_others(queue: Make) -> None:
    """Of a finished job only what it left behind is ended; strangers and running jobs are not."""
    q = queue()
    code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    left = q.python(code, options=("--leftovers", "keep"))
    q.holder("runs")
    stranger = q.env.popen(["sleep", "1000"])
    q.start()
    assert q.ended(left)["state"] == "ok"
    q.wait_on("runs")
    dry = q.run("reap", "--dry-run").stdout
    assert f"job {left}: process" in dry
    assert "would be ended" in dry
    assert "ended" in q.run("reap").stdout
    assert "no job" in q.run("reap").stderr
    assert stranger.poll() is None
    assert q.job(2)["state"] == "running"
    q.off("runs")
    assert q.ended(2)["state"] == "ok"
    stranger.kill()
    stranger.wait()
