"""Hundreds of commands and thousands of types: nothing is lost, nothing grows without end."""

from __future__ import annotations

import json
import resource
import subprocess
from typing import TYPE_CHECKING

from grn import procs
from tests.env import PATIENCE_S, eventually
from tests.scenarios.ondemand import leases
from tests.scenarios.standin import touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]


def test_a_hundred_commands_without_a_broker_all_run(new_run: NewRun) -> None:
    """From nothing, on four devices: each runs once, and its status is there."""
    run = new_run("sim:4x16GiB", on_demand=True)
    done = run("-q", "--json", *[f"echo {n} >>ran; exit {n % 3}" for n in range(100)])
    jobs = json.loads(done.stdout)["jobs"]
    assert [job["exit_code"] for job in jobs] == [n % 3 for n in range(100)], done.stderr
    with open(run.path("ran"), encoding="ascii") as file:
        assert sorted(map(int, file.read().split())) == list(range(100))


def test_one_small_process_supervises_all(new_run: NewRun) -> None:
    """No interpreter per job: beside the commands there is one process, of bounded memory."""
    run = new_run("sim:4x16GiB")
    wait = f"while ! test -e {run.path('go')}; do sleep 0.2; done"
    with open(run.path("jobs"), "w", encoding="ascii") as file:
        file.write(f"{wait}\n" * 200)
    several = run.start("-q", "--memory=1GiB", "--file=jobs")
    eventually(lambda: len(leases(run)) == 64, what="64 leases")
    eventually(lambda: not _interpreters_below(several.pid), what="the last exec")
    rss_mib = procs.rss_mib(several.pid)
    assert rss_mib is not None
    assert rss_mib < 60
    touch(run.path("go"))
    assert several.wait(2 * PATIENCE_S) == 0


def _interpreters_below(pid: int) -> list[int]:
    """List the descendants that run Python; between fork and exec each command's process does."""
    return [child for child in procs.descendants(pid) if _comm(child).startswith("python")]


def _comm(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read()
    except OSError:  # it has ended
        return ""


def test_types_that_never_repeat_do_not_fill_the_broker(new_run: NewRun) -> None:
    """After 2000 types of one run each, what is kept is within its limit, and what was known stays."""
    run = new_run(max_types=100, debug="no")
    client = run.env.client()
    client.profiles("set", type="known", memory_mib=3000)
    client.acquire("warm-up").release()
    before_mib = procs.rss_mib(run.env.pid)
    for number in range(2000):
        client.acquire(f"python train.py --date 0105-101010 --seed {number}").release()
    after_mib = procs.rss_mib(run.env.pid)
    assert before_mib is not None
    assert after_mib is not None
    assert after_mib - before_mib < 50
    kept = {profile["type"]: profile["estimate_mib"] for profile in client.profiles()}
    assert len(kept) <= 100
    assert kept["known"] == 3000


def test_sizes_of_types_that_never_repeat_are_dropped_oldest_first(new_run: NewRun) -> None:
    """Also where each type has a size: the store keeps the latest, and no more than its limit."""
    run = new_run(max_types=50)
    client = run.env.client()
    for number in range(200):
        client.profiles("set", type=f"t{number}", memory_mib=1000)
    kept = {profile["type"] for profile in client.profiles()}
    assert kept == {f"t{number}" for number in range(150, 200)}
    run.env.restart()
    again = {profile["type"] for profile in run.env.client().profiles()}
    assert len(again) <= 50
    assert again <= kept


def test_a_single_commands_bytes_reach_a_file_unchanged(new_run: NewRun) -> None:
    """Whatever the locale, what one command writes is in the file to the byte."""
    run = new_run()
    script = "import os; os.write(1, b'a' * 9000 + b'\\xc0end\\n')"
    for locale in ("C", "C.UTF-8"):
        with open(run.path("out"), "wb") as out:
            done = run(
                "-q",
                "--",
                "python3",
                "-c",
                script,
                environ={"LC_ALL": locale},
                stdout=out,
                stderr=subprocess.PIPE,
                capture_output=False,
            )
        assert done.returncode == 0, done.stderr
        with open(run.path("out"), "rb") as file:
            assert file.read() == b"a" * 9000 + b"\xc0end\n"


def test_hundreds_at_once_need_no_more_descriptors_than_there_are(new_run: NewRun) -> None:
    """Under a low limit of open files the run still reads every command's output."""
    run = new_run("sim:4x16GiB")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))}
    done = run("-q", "--gpus=0", *[f"echo {n}" for n in range(150)], **limit)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 150
