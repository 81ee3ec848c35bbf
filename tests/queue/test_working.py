"""The queue is worked off: in order, several at a time, as if each job were started by hand."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.queue.conftest import QueueEnv

    Make = Callable[..., QueueEnv]


def test_nothing_runs_before_the_queue_is_started(queue: Make) -> None:
    """Adding says that nobody works the queue off; starting does, and all ends well."""
    q = queue()
    said = q.run("add", "--", "true")
    assert said.stdout == "1\n"
    assert "grn queue start" in said.stderr
    assert q.job(1)["state"] == "queued"
    q.start()
    assert q.ended(1)["state"] == "ok"


@pytest.mark.parametrize(
    ("code", "status", "signalled"),
    [
        ("exit 3", 3, None),
        ("kill -9 $$", 137, 9),
        ("kill -TERM $$", 143, 15),
        ("kill -INT $$", 130, 2),
    ],
)
def test_a_job_ends_as_its_command_did(
    queue: Make, code: str, status: int, signalled: int | None
) -> None:
    """Status and signal are kept as a shell shows them, and `wait` ends with them."""
    q = queue()
    (job,) = q.add(code)
    q.drain()
    q.run("wait", str(job), status=status)
    seen = q.job(job)
    assert (seen["state"], seen["exit_code"], seen["signal"]) == ("failed", status, signalled)


def test_jobs_run_as_if_they_were_started_by_their_submitter(queue: Make) -> None:
    """Folder, environment and interpreter are those of `add`, not the owner's."""
    q = queue()
    q.start()
    other = os.path.join(q.folder, "a folder é")
    os.mkdir(other)
    code = "import os, sys; print(os.getcwd(), os.environ['MINE'], sys.executable)"
    (job,) = q.add("--", sys.executable, "-c", code, cwd=other, MINE="x y")
    q.ended(job)
    assert q.log(job) == f"{other} x y {sys.executable}\n"


def test_a_folder_that_is_gone_fails_its_job_only(queue: Make) -> None:
    """The job says which folder; the next one runs."""
    q = queue()
    gone = os.path.join(q.folder, "gone")
    os.mkdir(gone)
    (first,) = q.add("--", "true", cwd=gone)
    (second,) = q.add("--", "true")
    shutil.rmtree(gone)
    q.start()
    assert q.ended(second)["state"] == "ok"
    failed = q.ended(first)
    assert failed["state"] == "failed"
    assert gone in failed["text"]


def test_bytes_go_into_the_log_as_they_are(queue: Make) -> None:
    """A byte that is no UTF-8 after millions of others neither ends nor changes anything."""
    q = queue()
    code = "import os; w = lambda b: os.write(1, b)\nfor _ in range(38): w(b'a' * 100000)\nw(b'\\xc0end\\n')"
    job = q.python(code)
    q.start()
    assert q.ended(job)["state"] == "ok"
    with open(q.job(job)["log"], "rb") as file:
        assert file.read() == b"a" * 3_800_000 + b"\xc0end\n"


def test_as_many_run_as_there_is_room_for(queue: Make) -> None:
    """Two of 6000 MiB on one device of 10000 do not fit; a small one passes the one that waits."""
    q = queue("sim:1x10000MiB")
    for name, size in (("a", 6000), ("b", 6000), ("c", 3000)):
        q.holder(name, "--memory", str(size))
    q.start()
    q.wait_on("a", "c")
    waiting = q.job(2)
    assert waiting["state"] == "waiting"
    assert "6000 MiB" in waiting["reason"]
    assert not q.is_on("b")
    q.off("a")
    q.wait_on("b")
    q.off("b", "c")
    assert q.ended(2)["state"] == "ok"


def test_a_limit_holds_the_others_back(queue: Make) -> None:
    """At most so many run at a time, though there is room for all."""
    q = queue()
    for name in "abc":
        q.holder(name, "--gpus", "0")
    q.start("--limit", "1")
    q.wait_on("a")
    assert q.order() == ["b", "c"]
    q.run("limit", "none")
    q.wait_on("b", "c")
    q.off(*"abc")
    q.run("wait")


def test_paused_starts_nothing(queue: Make) -> None:
    """What runs goes on, the rest waits in the list until `resume`."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "6000")
    q.holder("b", "--memory", "6000")
    q.start()
    q.wait_on("a")
    q.until(2, "waiting")
    q.run("pause")
    q.until(2, "queued")
    q.off("a")
    q.ended(1)
    assert not q.is_on("b")
    q.run("resume")
    q.wait_on("b")
    q.off("b")
    q.ended(2)


def test_after_another_only_if_that_one_did_well(queue: Make) -> None:
    """A job that comes after one that failed never runs, and says why."""
    q = queue()
    (bad,) = q.add("exit 4")
    (after_bad,) = q.add("--after", str(bad), "touch never")
    (last,) = q.add("--after", str(after_bad), "touch never")
    (good,) = q.add("touch done")
    (after_good,) = q.add("--after", str(good), "cat done")
    q.drain()
    assert q.ended(after_good)["state"] == "ok"
    for job in (after_bad, last):
        assert q.ended(job)["state"] == "cancelled"
    assert f"after job {bad}" in q.job(after_bad)["text"]
    assert not os.path.exists(os.path.join(q.folder, "never"))


def test_a_running_job_is_cancelled_with_all_its_processes(queue: Make) -> None:
    """`cancel` returns when the job has ended; a session of its own does not save a child."""
    q = queue()
    (job,) = q.add("setsid sleep 1000 & echo $! > child; sleep 1000")
    q.start()
    q.until(job, "running")
    path = os.path.join(q.folder, "child")
    child = int(eventually(lambda: os.path.exists(path) and open(path, encoding="ascii").read()))  # noqa: SIM115
    q.run("cancel", str(job))
    assert q.job(job)["state"] == "cancelled"
    wait_gone(child)
    assert q.env.status()["leases"] == []


def test_a_job_that_waits_at_the_broker_is_cancelled(queue: Make) -> None:
    """It leaves the broker's line as well."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "whole")
    q.holder("b", "--memory", "whole")
    q.start()
    q.wait_on("a")
    q.until(2, "waiting")
    q.run("cancel", "2")
    assert q.job(2)["state"] == "cancelled"
    assert q.env.status()["waiters"] == []
    q.off("a")
    q.ended(1)


def test_a_time_limit_ends_a_job(queue: Make) -> None:
    """Its state is `timeout`, its status 124."""
    q = queue()
    (job,) = q.add("--time-limit", "0.3", "--", "sleep", "1000")
    q.start()
    ended = q.ended(job)
    assert (ended["state"], ended["exit_code"]) == ("timeout", 124)


def test_out_of_memory_is_retried_with_more(queue: Make) -> None:
    """A job that outgrows what was declared is run again; what was tried is kept."""
    q = queue("sim:1x10000MiB")
    options = ("--memory", "1000", "--retries-on-oom", "3")
    (job,) = q.add(*options, "--", sys.executable, "-m", "grn.testing.job", "--memory", "12000MiB")
    q.start()
    ended = q.ended(job)
    assert ended["state"] == "oom"
    assert ended["tries"] > 1


def test_what_can_never_be_granted_fails_at_once(queue: Make) -> None:
    """Both numbers are in the list; the next job runs."""
    q = queue("sim:1x10000MiB")
    (job,) = q.add("--memory", "20000", "--", "true")
    (other,) = q.add("--", "true")
    q.start()
    failed = q.ended(job)
    assert failed["state"] == "failed"
    assert "20000" in failed["text"]
    assert "10000" in failed["text"]
    assert q.ended(other)["state"] == "ok"


def test_drained_the_owner_ends(queue: Make) -> None:
    """With --drain the owner leaves when all is done; held jobs do not keep it."""
    q = queue()
    q.add("true")
    q.add("--held", "true")
    q.drain()
    q.eventually(lambda: q.owner is None, "the owner ends")
    assert q.states() == {"true": "held"} or q.job(2)["state"] == "held"
    assert q.job(1)["state"] == "ok"


def test_stopped_the_queue_takes_no_more(queue: Make) -> None:
    """What runs goes on to its end by itself, what waits stays in the list, whole."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "whole")
    q.holder("b", "--memory", "whole")
    pid = q.start()
    q.wait_on("a")
    q.until(2, "waiting")
    said = q.run("stop")
    wait_gone(pid)
    assert "1 job(s) run on" in said.stderr
    assert q.job(2)["state"] == "queued"
    q.off("a")
    assert q.ended(1)["state"] == "ok"
    q.start()
    q.wait_on("b")
    q.off("b")
    q.ended(2)


def test_one_owner_at_a_time(queue: Make) -> None:
    """A second start says who works the queue off."""
    q = queue()
    pid = q.start()
    said = q.run("start", status=125)
    assert str(pid) in said.stderr


def test_the_owner_lives_on_when_the_terminal_closes(queue: Make) -> None:
    """A hang-up does not end it."""
    q = queue()
    pid = q.start()
    os.kill(pid, signal.SIGHUP)
    (job,) = q.add("true")
    assert q.ended(job)["state"] == "ok"
    assert q.owner == pid


def test_a_log_is_followed_to_the_end(queue: Make) -> None:
    """`log -f` waits for what is written and ends with the job."""
    q = queue()
    code = "import time\nfor n in range(5): print(n, flush=True); time.sleep(0.05)"
    job = q.python(code)
    follower = q.env.popen(
        [sys.executable, "-m", "grn", "queue", "log", "-f", str(job)], stdout=-1, cwd=q.folder
    )
    q.start()
    out, _ = follower.communicate(timeout=60)
    assert out == b"0\n1\n2\n3\n4\n"
    assert follower.returncode == 0
