"""Memory that outlives whoever asked for it: orphans, daemons, reused workers."""

from __future__ import annotations

import os
import shlex
import signal
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone
from tests.reports.scene import FAST, box_of, device, jobs_of, learn, runner, wait_measured
from tests.scenarios.standin import line, touch, words

if TYPE_CHECKING:
    from tests.reports.scene import NewEnv
    from tests.supervise.grnrun import GrnRun


def start_with_loaders(run: GrnRun, *options: str) -> tuple[int, int]:
    """Start a job with a data loader that holds memory; return the pids of both."""
    tree = ("--memory=1000MiB", "--children=1", "--child-memory=3000MiB", "--until-file=end")
    run.start(*options, "-q", "--type=t", "--memory=4000MiB", "--", *words(*tree))
    wait_measured(run.env, 4000)
    (lease,) = run.env.status()["leases"]
    (worker,) = procs.children(lease["pid"])
    return lease["pid"], worker


def test_memory_of_orphans_is_not_given_away(new_env: NewEnv) -> None:
    """pytorch#1085, #5736, #8805, Lightning#9894, mxnet#4242, Megatron-LM#3684.

    The main process is killed and its data loader lives on with its memory. The lease stays until
    that is free, the loader is named, and who waits is served the moment it has gone.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    main, worker = start_with_loaders(runner(env))
    os.kill(main, signal.SIGKILL)
    wait_gone(main)
    talker = env.talker()
    request = talker.ask("u", memory_mib=8000)
    (lease,) = eventually(
        lambda: (found := env.status()["leases"])[0]["left_over"] and found, what="it is named"
    )
    assert (lease["state"], lease["left_over"]) == ("draining", [worker])
    assert not talker.decided([request])
    os.kill(worker, signal.SIGKILL)
    talker.granted(request)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stop_reaches_the_whole_tree(new_env: NewEnv, how: signal.Signals) -> None:
    """pytorch#1085, #8805, Lightning#9894: killing the launcher left its workers on the card."""
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    tree = ("--memory=1000MiB", "--children=2", "--child-memory=2000MiB", "--until-file=end")
    # Through a shell, in a session of its own: it is no member of the process group.
    job = run.start("-q", "--memory=5000MiB", f"setsid -w {line(*tree)}; true")
    wait_measured(env, 5000)
    job.send_signal(how)
    assert job.wait(PATIENCE_S) in {-how, 128 + how}
    eventually(lambda: device(env)["free_mib"] == 10000, what="the card is free")


def test_a_daemon_of_a_job_is_still_the_jobs(new_env: NewEnv) -> None:
    """Megatron-LM#3684, mxnet#4242: what forks twice and leaves the session is nobody's child.

    It is found by the mark in its environment: its memory is the lease's, not somebody else's, and
    `--leftovers=kill` ends it with the job.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    loader = line("--memory=3000MiB", f"--until-file={run.path('end')}")
    hold = shlex.quote(f"{loader} >/dev/null 2>&1 &")
    program = f"setsid sh -c {hold}; until test -e go; do sleep 0.05; done"
    job = run.start("-q", "--memory=4000MiB", "--leftovers=kill", program)
    wait_measured(env, 3000)
    assert device(env)["foreign_mib"] == 0
    touch(run.path("go"))
    assert job.wait(PATIENCE_S) == 0
    eventually(lambda: device(env)["free_mib"] == 10000, what="the card is free")
    assert not os.path.exists(run.path("end"))


def test_a_worker_that_is_reused_keeps_its_memory_and_its_lease(new_env: NewEnv) -> None:
    """ray#616, #29606, #29624, #18299: a worker gives its GPU back and keeps a context on it.

    A lease that is released while its process still holds memory drains: nobody gets that memory,
    and the process is named.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    worker, other = env.talker(), env.talker()
    grant = worker.acquire("task", memory_mib=6000)
    job = env.job(worker, grant, "--memory=6000MiB")
    wait_measured(env, 6000)
    worker.call("release", lease=grant["lease"], exit_code=0)
    request = other.ask("task", memory_mib=6000)
    assert not other.decided([request])
    (lease,) = eventually(
        lambda: (found := env.status()["leases"])[0]["left_over"] and found, what="it is named"
    )
    assert (lease["state"], lease["left_over"]) == ("draining", [job.pid])
    assert not other.decided([request])
    assert job.finish() == 0
    other.granted(request)


def test_each_command_gets_a_process_of_its_own(new_env: NewEnv) -> None:
    """ray#616, #18299: tasks one after the other in one process never gave memory back.

    Each command of a file is a process of its own that ends with its lease: a whole card's worth
    that one forgets to free is free for the next.
    """
    env = new_env("nvml:1x1000MiB", **FAST)
    run = runner(env)
    with open(run.path("jobs.txt"), "w", encoding="ascii") as file:
        file.writelines(f"{line('--memory=950MiB', '--seconds=0')}\n" for _ in range(4))
    done = run("--json", "--memory=950MiB", "--file", "jobs.txt")
    assert [job["outcome"] for job in jobs_of(done)] == ["ok"] * 4, done.stderr


def test_a_driver_that_is_slow_to_free_is_waited_for(new_env: NewEnv) -> None:
    """open-gpu-kernel-modules#456, pytorch#1085: a process has ended and its memory is still held.

    The next job is not sent into a card that the driver shows as full, whoever is to blame for it.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    assert learn(run, 6000)["estimate_mib"] == 6000
    held = box_of(env).add_process(0, 6000)
    eventually(lambda: device(env)["foreign_mib"] == 6000, what="memory of nobody")
    job = run.start("-q", "--type=t", "--", *words("--memory=6000MiB", "--seconds=0"))
    (waiter,) = eventually(lambda: env.status()["waiters"], what="a waiter")
    assert "6000 used by others" in waiter["reason"]
    box_of(env).remove_process(held)
    assert job.wait(PATIENCE_S) == 0
