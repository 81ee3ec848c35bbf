"""A run that is out of file descriptors still has its jobs in hand."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from grn import procs
from grn.supervise import tree
from grn.supervise.loop import Loop
from grn.supervise.stopping import Stopper
from grn.supervise.tree import Census, Owner
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

HOLD = "trap '' INT; echo $$ >pids.new; mv pids.new pids; while :; do sleep 0.1; done"


def limit_to(pid: int, files: int) -> None:
    """Let a process open nothing at or above this number."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, hard))


def first_free(pid: int) -> int:
    """Return the number that the next descriptor of a process would have."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return next(number for number in range(len(used) + 1) if number not in used)


def took_signal(pid: int) -> bool:
    """Tell whether a process has no signal left to take."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        pending = [line.split()[1] for line in file if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(int(word, 16) for word in pending)


def test_a_stop_works_without_a_free_descriptor(grn_run: GrnRun) -> None:
    """Some are kept back for it: the job is ended as ever."""
    process = grn_run.start("-q", "--grace=0.3", "--", "sh", "-c", HOLD)
    job = int(grn_run.wait_for("pids"))
    limit_to(process.pid, first_free(process.pid))
    process.terminate()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert procs.start_time(job) is None


def test_a_stop_is_put_off_while_nothing_can_be_opened(grn_run: GrnRun) -> None:
    """Not to see its processes is no proof that they are gone: the job stays in hand."""
    process = grn_run.start("-q", "--grace=0.3", "--", "sh", "-c", HOLD)
    job = int(grn_run.wait_for("pids"))
    before, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    limit_to(process.pid, 3)
    process.terminate()
    eventually(lambda: took_signal(process.pid), what="the signal is taken")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    assert procs.start_time(job) is not None
    limit_to(process.pid, before)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert procs.start_time(job) is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_process_that_cannot_be_reached_now_is_signalled_later(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A failed call puts a signal off; the stop goes on until the process is gone."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a library may have its own, for all
    try:
        pid = os.fork()
        if not pid:
            while True:
                signal.pause()
    finally:
        signal.signal(signal.SIGTERM, before)
    failures = [number] * 3
    really_open = os.pidfd_open

    def pidfd_open(which: int) -> int:
        if failures:
            raise OSError(failures.pop(), "no")
        return really_open(which)

    monkeypatch.setattr(tree.os, "pidfd_open", pidfd_open)
    loop = Loop()
    gone: list[list[int]] = []
    census = Census(())
    stopper = Stopper(loop, census, lambda: None)
    stopper.begin(
        Owner(pid, None), ask_s=0.0, grace_s=60.0, on_gone=gone.append, reconsider=lambda: False
    )
    loop.run(lambda: bool(gone))
    assert gone == [[]]
    assert not failures
    assert os.waitpid(pid, 0)[1] == signal.SIGTERM
