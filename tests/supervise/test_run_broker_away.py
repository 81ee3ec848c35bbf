"""No broker, or one that goes away: jobs live on, requests find the next broker."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from grn.connection import connect
from grn.errors import BrokerUnavailable
from tests.env import PATIENCE_S, BrokerEnv, eventually
from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOLD = "echo $$ >{0}.pid; while ! test -e {0}.go; do sleep 0.05; done; exit {1}"


def go(grn_run: GrnRun, name: str) -> None:
    """Let a job end."""
    with open(grn_run.path(f"{name}.go"), "w", encoding="ascii"):
        pass


def test_a_restart_is_not_noticed_by_jobs(grn_run: GrnRun) -> None:
    """Killed and started again: the new broker knows the lease, the job ends as it ends."""
    process = grn_run.start("-q", "--memory=5000", "--", "sh", "-c", HOLD.format("a", 5))
    grn_run.wait_for("a.pid")
    before = [lease["id"] for lease in grn_run.env.status()["leases"]]
    grn_run.env.restart()
    assert [lease["id"] for lease in grn_run.env.status()["leases"]] == before
    go(grn_run, "a")
    assert process.wait(PATIENCE_S) == 5
    eventually(lambda: not grn_run.env.status()["leases"], what="a free lease")


def test_a_waiting_request_finds_the_next_broker(grn_run: GrnRun) -> None:
    """It is asked again by itself, and granted when there is room."""
    first = grn_run.start("-q", "--gpus=2", "--memory=whole", "--", "sh", "-c", HOLD.format("a", 0))
    grn_run.wait_for("a.pid")
    second = grn_run.start("-q", "--gpus=2", "--", "sh", "-c", "echo second >second; exit 9")
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    grn_run.env.restart()
    eventually(lambda: grn_run.env.status()["waiters"], what="the waiter at the new broker")
    assert not os.path.exists(grn_run.path("second"))
    go(grn_run, "a")
    assert first.wait(PATIENCE_S) == 0
    assert second.wait(PATIENCE_S) == 9


def test_jobs_of_one_run_go_on_over_a_restart(grn_run: GrnRun) -> None:
    """Of several, those that run keep their leases and those that wait are asked for again."""
    line = "sleep 0.3; echo $CUDA_VISIBLE_DEVICES"
    process = grn_run.start("-q", "--memory=whole", *[f"{line} # {n}" for n in range(8)])
    eventually(lambda: grn_run.env.status()["waiters"], what="waiters")
    grn_run.env.restart()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == 8


def test_a_job_that_ends_while_no_broker_is_there_keeps_its_status(grn_run: GrnRun) -> None:
    """Its end is not held up for long by a broker that does not come back."""
    process = grn_run.start("-q", "--", "sh", "-c", HOLD.format("a", 7))
    grn_run.wait_for("a.pid")
    grn_run.env.kill()
    go(grn_run, "a")
    assert process.wait(10) == 7


def test_a_broker_that_hangs_does_not_hold_a_finished_job(grn_run: GrnRun) -> None:
    """The answer to a release is waited for a bounded time."""
    process = grn_run.start("-q", "--", "sh", "-c", HOLD.format("a", 7))
    grn_run.wait_for("a.pid")
    os.kill(grn_run.env.pid, signal.SIGSTOP)
    go(grn_run, "a")
    try:
        assert process.wait(PATIENCE_S) == 7
    finally:
        os.kill(grn_run.env.pid, signal.SIGCONT)


def test_ctrl_c_works_while_the_broker_is_away(grn_run: GrnRun) -> None:
    """A request that has no broker to wait at can still be withdrawn."""
    holder = grn_run.start("-q", "--gpus=2", "--", "sh", "-c", HOLD.format("a", 0))
    grn_run.wait_for("a.pid")
    waiting = grn_run.start("-q", "--gpus=2", "--", "true")
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    grn_run.env.kill()
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(PATIENCE_S) == -signal.SIGINT
    go(grn_run, "a")
    assert holder.wait(PATIENCE_S) == 0


def on_demand(new_env: Callable[..., BrokerEnv], folder: Path) -> GrnRun:
    """Return a `grn run` whose broker starts on demand."""
    return GrnRun(new_env("sim:2x8000MiB", start=False, idle_exit=1), folder)


def broker_pid(grn_run: GrnRun) -> int:
    """Return the pid of the broker that answers."""
    return int(grn_run.env.client().broker["pid"])


def test_a_broker_is_started_on_demand(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> None:
    """The first `grn run` starts one; it leaves after its idle time."""
    grn_run = on_demand(new_env, tmp_path)
    assert grn_run("-q", "--", "sh", "-c", "exit 3").returncode == 3
    grn_run.end_strays()


def test_a_broker_that_was_started_on_demand_is_started_again(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """When it is killed while requests wait, they start another; running jobs keep their leases."""
    grn_run = on_demand(new_env, tmp_path)
    first = grn_run.start("-q", "--gpus=2", "--memory=whole", "--", "sh", "-c", HOLD.format("a", 0))
    grn_run.wait_for("a.pid")
    second = grn_run.start("-q", "--gpus=2", "--", "sh", "-c", "exit 9")
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    killed = broker_pid(grn_run)
    os.kill(killed, signal.SIGKILL)
    go(grn_run, "a")
    assert first.wait(PATIENCE_S) == 0
    assert second.wait(PATIENCE_S) == 9
    assert broker_pid(grn_run) != killed
    grn_run.end_strays()


def test_a_broker_started_meanwhile_is_no_job_of_ours(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """The broker that a waiting run started lives on when that run's job is stopped."""
    grn_run = on_demand(new_env, tmp_path)
    holder = grn_run.start(
        "-q", "--gpus=2", "--memory=whole", "--", "sh", "-c", HOLD.format("a", 0)
    )
    grn_run.wait_for("a.pid")
    second = grn_run.start("-q", "--grace=0.3", "--gpus=2", "--", "sh", "-c", HOLD.format("b", 0))
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    killed = broker_pid(grn_run)
    os.kill(killed, signal.SIGKILL)
    go(grn_run, "a")
    assert holder.wait(PATIENCE_S) == 0
    grn_run.wait_for("b.pid")
    before = broker_pid(grn_run)
    second.terminate()
    assert second.wait(PATIENCE_S) == -signal.SIGTERM
    assert broker_pid(grn_run) == before != killed
    grn_run.end_strays()


def test_without_a_broker_it_is_125_with_the_cure(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """No broker and none to be started: nothing runs, and the message says what to do."""
    grn_run = GrnRun(new_env(start=False, socket_path="/proc/no/such/folder"), tmp_path)
    done = grn_run("--", "touch", "started")
    assert done.returncode == 125
    assert b"grn broker" in done.stderr
    assert not os.path.exists(grn_run.path("started"))


def test_without_a_broker_it_runs_if_told_to(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """--if-unavailable=run: the command runs without a share, which is said once."""
    grn_run = GrnRun(new_env(start=False, socket_path="/proc/no/such/folder"), tmp_path)
    script = 'echo "${GRN_LEASE-none} $X"; exit 4'
    done = grn_run("--if-unavailable=run", "--env=X=1", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (4, b"none 1\n")
    assert done.stderr.startswith(b"grn run: running without a share: ")
    many = grn_run("-q", "--if-unavailable=run", *["true"] * 20)
    assert many.returncode == 0


def test_a_request_outlives_an_orderly_restart(grn_run: GrnRun) -> None:
    """A broker that is told to leave lets go of those who wait: they ask its successor."""
    first = grn_run.start("-q", "--gpus=2", "--memory=whole", "--", "sh", "-c", HOLD.format("a", 0))
    grn_run.wait_for("a.pid")
    second = grn_run.start("-q", "--gpus=2", "--", "sh", "-c", "exit 9")
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    assert grn_run.env.stop() == 0
    grn_run.env.start()
    eventually(lambda: grn_run.env.status()["waiters"], what="the waiter at the new broker")
    go(grn_run, "a")
    assert first.wait(PATIENCE_S) == 0
    assert second.wait(PATIENCE_S) == 9


def test_a_broker_that_was_told_to_leave_is_not_started_again_by_those_who_waited(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """Whoever stops a broker on purpose does not find it running again; the waiters say what is up."""
    grn_run = on_demand(new_env, tmp_path)
    first = grn_run.start("-q", "--gpus=2", "--memory=whole", "--", "sh", "-c", HOLD.format("a", 0))
    grn_run.wait_for("a.pid")
    second = grn_run.start("--gpus=2", "--", "true")
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    os.kill(broker_pid(grn_run), signal.SIGTERM)
    assert second.stderr is not None
    lines = [second.stderr.readline()]
    while b"broker has gone" not in lines[-1]:
        lines.append(second.stderr.readline())
        assert lines[-1], "it has ended"
    with pytest.raises(BrokerUnavailable):
        connect(grn_run.env.settings)
    second.send_signal(signal.SIGINT)
    assert second.wait(PATIENCE_S) == -signal.SIGINT
    go(grn_run, "a")
    assert first.wait(PATIENCE_S) == 0


def test_the_wait_ends_at_a_socket_where_nobody_greets(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """Something accepts and says nothing: with --wait the whole of it is bounded."""
    grn_run = GrnRun(new_env(start=False), tmp_path)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(grn_run.env.socket)
        silent.listen()
        begun = time.monotonic()
        done = grn_run("--wait=2", "--", "touch", "started")
        took_s = time.monotonic() - begun
        assert (done.returncode, done.stdout) == (75, b"")
        assert done.stderr == b"grn run: not granted within 2 s: no broker has answered\n"
        assert 2 <= took_s < 4.5  # a greeting is waited for 5 s
        done = grn_run("--wait=2", "--if-unavailable=run", "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (0, b"ran\n")
    os.unlink(grn_run.env.socket)
    assert not os.path.exists(grn_run.path("started"))


def test_why_no_broker_comes_back_is_said(
    new_env: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """A configuration that was broken meanwhile is named while it is waited for, and mended."""
    grn_run = on_demand(new_env, tmp_path)
    config = tmp_path / "my.toml"
    config.write_text('policy = "pack"\n')
    environ = {"GRN_CONFIG": str(config)}
    holder = grn_run.start(
        "-q", "--memory=whole", "--gpus=2", "--", "sh", "-c", HOLD.format("a", 0), environ=environ
    )
    grn_run.wait_for("a.pid")
    with open(grn_run.path("said"), "wb") as said:
        run = grn_run.start("--gpus=2", "--", "echo", "ran", stderr=said, environ=environ)
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    config.write_text("policy =\n")
    os.kill(broker_pid(grn_run), signal.SIGKILL)
    go(grn_run, "a")
    assert holder.wait(PATIENCE_S) == 0
    eventually(lambda: f"{config} is not valid TOML" in _text(grn_run, "said"), what="the reason")
    config.write_text('policy = "pack"\n')
    out, _ = run.communicate(timeout=PATIENCE_S)
    assert (run.returncode, out) == (0, b"ran\n")
    grn_run.end_strays()


def _text(grn_run: GrnRun, name: str) -> str:
    with open(grn_run.path(name), encoding="utf-8") as file:
        return file.read()


def test_a_request_given_up_while_the_broker_hung_is_withdrawn_when_it_listens_again(
    grn_run: GrnRun,
) -> None:
    """It neither stands in the queue for nobody nor holds a device."""

    def ask_for_two_at_once() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (72, min(72, hard)))

    first, second = HOLD.format("a", 0), HOLD.format("b", 0)
    with open(grn_run.path("said"), "wb") as said:
        run = grn_run.start(
            "--memory=5000",
            "--wait=2",
            first,
            second,
            "touch third",
            stderr=said,
            preexec_fn=ask_for_two_at_once,
        )
    grn_run.wait_for("a.pid")
    grn_run.wait_for("b.pid")
    other = grn_run.start("-q", "--memory=5000", "--", "sh", "-c", HOLD.format("c", 0))
    eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
    os.kill(grn_run.env.pid, signal.SIGSTOP)
    try:
        go(grn_run, "b")  # now the third is asked for, at a broker that does not listen
        eventually(lambda: _lines_with(grn_run.path("said"), b"] 75 not granted"), what="its end")
    finally:
        os.kill(grn_run.env.pid, signal.SIGCONT)
    grn_run.wait_for("c.pid")
    eventually(lambda: not grn_run.env.status()["waiters"], what="an empty queue")
    assert len(grn_run.env.status()["leases"]) == 2
    go(grn_run, "a")
    go(grn_run, "c")
    assert run.wait(PATIENCE_S) == 1
    assert other.wait(PATIENCE_S) == 0
    assert not os.path.exists(grn_run.path("third"))


def test_a_broker_that_hangs_does_not_make_us_deaf(grn_run: GrnRun) -> None:
    """With more to say than the socket takes, a signal still ends the run."""
    long = "x" * 4000
    with open(grn_run.path("jobs"), "w", encoding="ascii") as file:
        file.writelines(
            f"while ! test -e go; do sleep 0.3; done # {n} {long}\n" for n in range(400)
        )
    with open(grn_run.path("said"), "wb") as said:
        process = grn_run.start("--memory=200MiB", "--grace=0.3", "--file=jobs", stderr=said)
    eventually(lambda: len(grn_run.env.status()["leases"]) == 80, what="eighty leases")
    os.kill(grn_run.env.pid, signal.SIGSTOP)
    try:
        with open(grn_run.path("go"), "w", encoding="ascii"):
            pass
        # Releases that nobody answers are given up, and as many new requests are to be sent.
        eventually(lambda: _lines_with(grn_run.path("said"), b"] ok") >= 80, what="their ends")
        process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
    finally:
        os.kill(grn_run.env.pid, signal.SIGCONT)


def _lines_with(path: str, text: bytes) -> int:
    with open(path, "rb") as file:
        return sum(text in line for line in file)
