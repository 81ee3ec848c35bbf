"""Runs that are ended: nothing goes on, no lease is left, and who only waited ends at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import eventually, wait_gone
from tests.snakemake.conftest import job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.snakemake.conftest import Flow, Run

LONG_S = 600
SIX = """
    rule all:
        input: expand("out/{i}", i=range(6))
    rule train:
        output: "out/{i}"
        resources: gpu=1, gpu_mem_mb=6000
        shell: "echo x >> started; HOLD && touch {output}"
    """.replace(
    "HOLD", job("--memory=1000MiB", f"--seconds={LONG_S}", "--hold-file={output}.holds")
)


def _holders(flow: Flow) -> list[int]:
    """Return the stand-in jobs of a workflow that live."""
    leases = {lease["id"] for lease in flow.env.status()["leases"]}
    return [pid for lease, pids in procs.with_marker().items() if lease in leases for pid in pids]


def _begun(flow: Flow) -> Run:
    """Start six jobs of which two have a device, and wait until all have theirs or wait."""
    run = flow.run("--keep-going", cores=6)
    eventually(
        lambda: (
            len(flow.lines("started")) == 2
            and len(list(flow.folder.glob("out/*.holds"))) == 2
            and len(flow.env.status()["waiters"]) == 4
        ),
        what="two jobs run and four wait",
    )
    return run


def _all_over(flow: Flow, run: Run, pids: Iterable[int]) -> None:
    run.end()
    for pid in pids:
        wait_gone(pid)
    eventually(flow.idle, what="no lease is left")
    assert len(flow.lines("started")) == 2, "a job that waited has been started"


@pytest.mark.parametrize("to_group", [True, False], ids=["terminal", "snakemake-alone"])
def test_an_interrupt_ends_all_jobs_at_once(
    new_flow: Callable[..., Flow], *, to_group: bool
) -> None:
    """Ctrl-C in a terminal, and an interrupt to Snakemake alone, end what runs and what waits."""
    flow = new_flow(SIX)
    run = _begun(flow)
    pids = _holders(flow)
    assert len(pids) >= 2
    (os.killpg if to_group else os.kill)(run.process.pid, signal.SIGINT)
    _all_over(flow, run, pids)
    assert run.process.returncode != 0


def test_a_second_interrupt_does_not_wait_for_the_grace(new_flow: Callable[..., Flow]) -> None:
    """A job that ignores the first one is killed at the second, not after the grace."""
    stubborn = "trap '' INT TERM; echo x >> started; touch out/ready; while :; do sleep 1; done"
    flow = new_flow(
        f"""
        rule train:
            output: "done"
            resources: gpu=1
            shell: "mkdir -p out; {stubborn}"
        """
    )
    run = flow.run("--grn-kill-grace", f"{LONG_S}")
    eventually((flow.folder / "out/ready").exists, what="the job runs")
    pids = _holders(flow)
    os.kill(run.process.pid, signal.SIGINT)
    run.wait_for("Terminating processes")
    began = time.monotonic()
    while run.process.poll() is None and time.monotonic() - began < LONG_S / 20:
        time.sleep(0.5)  # a pace: the second one must not come with the first
        if run.process.poll() is None:
            os.kill(run.process.pid, signal.SIGINT)
    run.end()
    for pid in pids:
        wait_gone(pid)
    eventually(flow.idle, what="no lease is left")


def test_told_to_terminate_it_finishes_what_runs_and_starts_nothing(
    new_flow: Callable[..., Flow],
) -> None:
    """SIGTERM lets running jobs end, as Snakemake does; who waited for a device ends at once."""
    flow = new_flow(SIX)
    run = _begun(flow)
    pids = _holders(flow)
    run.process.terminate()
    eventually(lambda: not flow.env.status()["waiters"], what="nobody waits any more")
    assert run.process.poll() is None, "it did not wait for the jobs that run"
    assert len(flow.env.status()["leases"]) == 2
    os.killpg(run.process.pid, signal.SIGINT)
    _all_over(flow, run, pids)


def test_killed_it_takes_its_jobs_along(new_flow: Callable[..., Flow]) -> None:
    """SIGKILL of Snakemake leaves no job running and no lease held."""
    flow = new_flow(SIX)
    run = _begun(flow)
    # The warden too: it leaves a moment after the last job, for it looks once more whether any is left.
    pids = {*_holders(flow), *procs.descendants(run.process.pid)}
    run.process.kill()
    _all_over(flow, run, pids)


def test_the_broker_may_be_killed_meanwhile(new_flow: Callable[..., Flow]) -> None:
    """Jobs go on, those that wait keep waiting, and all end well under the next broker."""
    flow = new_flow(
        SIX.replace(f"--seconds={LONG_S}", "--until-file=go").replace("--hold-file", "--hold-file")
    )
    run = _begun(flow)
    flow.env.restart()
    flow.write("go", "")
    run.ok()
    assert len(flow.lines("started")) == 6
    eventually(flow.idle, what="no lease is left")


def test_a_job_that_is_killed_is_a_failed_job(new_flow: Callable[..., Flow]) -> None:
    """SIGKILL of a job fails its rule, frees its device, and is no lesson about memory."""
    flow = new_flow(SIX)
    run = _begun(flow)
    victims = _holders(flow)
    for pid in victims:
        if b"grn.testing.job" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGKILL)
            break
    run.wait_for("not for want of device memory")
    eventually(lambda: len(flow.lines("started")) == 3, what="the next job has the device")
    os.killpg(run.process.pid, signal.SIGINT)
    run.end()
    eventually(flow.idle, what="no lease is left")


def test_a_failure_ends_the_waiting_of_others(new_flow: Callable[..., Flow]) -> None:
    """Without --keep-going, jobs that only waited are not started after a failure, nor blamed."""
    flow = new_flow(
        """
        rule all:
            input: expand("out/{i}", i=range(6))
        rule train:
            output: "out/{i}"
            resources: gpu=1, gpu_mem_mb=6000
            shell: "echo {wildcards.i} >> started; until [ -e go ]; do sleep 0.05; done; exit 3"
        """
    )
    run = flow.run(cores=6)
    eventually(
        lambda: len(flow.lines("started")) == 2 and len(flow.env.status()["waiters"]) == 4,
        what="two run, four wait",
    )
    flow.write("go", "")
    text = run.fails()
    assert len(flow.lines("started")) == 2
    assert text.count("Error in rule train") in {
        2,
        4,
    }  # some releases tell of each again at the end
    assert text.count("was not started: another job has failed") == 4
    eventually(flow.idle, what="no lease is left")


def test_what_a_failed_job_leaves_behind_is_ended(new_flow: Callable[..., Flow]) -> None:
    """A command that fails while its own children run takes them along; the device is free."""
    flow = new_flow(
        """
        rule train:
            output: "done"
            resources: gpus=1
            shell: "HOLD & until [ -e holds ]; do sleep 0.05; done; echo $! > child; exit 1"
        """.replace("HOLD", job("--memory=1000MiB", f"--seconds={LONG_S}", "--hold-file=holds"))
    )
    flow.run().fails()
    wait_gone(int(flow.read("child")))
    eventually(flow.idle, what="no lease is left")
