"""What a command leaves in the background when it ends."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from grn import procs
from grn import settings as settings_module
from grn.client import Client
from tests.env import PATIENCE_S, eventually, wait_gone

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

# Double fork, own session, no environment: nothing ties it to the command but its ancestry.
DAEMON = (
    "(setsid env -i sh -c 'echo $$ >left.new; mv left.new left; exec sleep 60'"
    " </dev/null >/dev/null 2>&1 &); while ! test -s left; do sleep 0.05; done; exit 3"
)
# Ends by itself, and says so.
BRIEF = (
    "(setsid sh -c 'echo $$ >left; sleep 0.7; echo over >over' >/dev/null 2>&1 &);"
    " while ! test -s left; do sleep 0.05; done; exit 3"
)


def test_by_default_they_live_on(grn_run: GrnRun) -> None:
    """We end with the command; its background process goes on, and the lease is free."""
    done = grn_run("-q", "--", "sh", "-c", DAEMON)
    left = int(grn_run.wait_for("left"))
    assert done.returncode == 3
    assert procs.start_time(left) is not None
    eventually(lambda: not grn_run.env.status()["leases"], what="a free lease")
    os.kill(left, signal.SIGKILL)
    wait_gone(left)


def test_kill_ends_them_first(grn_run: GrnRun) -> None:
    """With --leftovers=kill nothing of the command is left when we end, wherever it hid."""
    done = grn_run("-q", "--leftovers=kill", "--grace=0.5", "--", "sh", "-c", DAEMON)
    assert done.returncode == 3
    assert procs.start_time(int(grn_run.wait_for("left"))) is None


def test_kill_costs_nothing_where_there_is_nothing(grn_run: GrnRun) -> None:
    """No grace is waited for when the command has left nothing."""
    begun = time.monotonic()
    assert grn_run("-q", "--leftovers=kill", "--grace=1h", "--", "true").returncode == 0
    assert time.monotonic() - begun < PATIENCE_S


def test_wait_waits_for_them(grn_run: GrnRun) -> None:
    """With --leftovers=wait we end after the last of them, with the command's status."""
    done = grn_run("-q", "--leftovers=wait", "--", "sh", "-c", BRIEF)
    assert done.returncode == 3
    with open(grn_run.path("over"), encoding="ascii") as file:
        assert file.read() == "over\n"


def test_a_signal_ends_the_wait_for_them(grn_run: GrnRun) -> None:
    """TERM while only background processes are left stops them; the command's status stands."""
    process = grn_run.start("-q", "--leftovers=wait", "--grace=0.3", "--", "sh", "-c", DAEMON)
    left = int(grn_run.wait_for("left"))
    eventually(lambda: not _has_child(process.pid, b"sh"), what="the end of the command")
    process.terminate()
    assert process.wait(PATIENCE_S) == 3
    assert procs.start_time(left) is None


@pytest.mark.parametrize("leftovers", ["kill", "wait"])
def test_of_several_each_is_done_when_its_own_are(grn_run: GrnRun, leftovers: str) -> None:
    """A job's leftovers are its own business; a sibling's processes are not touched."""
    brief = BRIEF.replace("exit 3", "exit 0")
    sibling = "while ! test -s left; do sleep 0.05; done; sleep 1; echo whole >whole"
    done = grn_run("-q", "--gpus=0", f"--leftovers={leftovers}", brief, sibling)
    assert done.returncode == 0, done.stderr
    assert grn_run.wait_for("whole") == "whole"
    assert procs.start_time(int(grn_run.wait_for("left"))) is None
    assert os.path.exists(grn_run.path("over")) == (leftovers == "wait")


def test_device_memory_of_a_leftover_keeps_the_lease(grn_run: GrnRun) -> None:
    """What lives on with device memory holds its share until it ends."""
    job = f"{sys.executable} -m grn.testing.job --memory=1000 --until-file=go --hold-file=holds"
    line = (
        f"(setsid {job} &) >/dev/null 2>&1; while ! test -e holds; do sleep 0.05; done; sleep 0.5"
    )
    assert grn_run("-q", "--memory=2000", line).returncode == 0
    assert [lease["state"] for lease in grn_run.env.status()["leases"]] == ["draining"]
    with open(grn_run.path("go"), "w", encoding="ascii"):
        pass
    eventually(lambda: not grn_run.env.status()["leases"], what="a free lease")


def _has_child(pid: int, name: bytes) -> bool:
    for child in procs.children(pid):
        try:
            with open(f"/proc/{child}/comm", "rb") as file:
                if file.read().strip() == name:
                    return True
        except OSError:  # it has ended
            continue
    return False


@pytest.mark.parametrize("how", ["leftovers", "term"])
def test_children_that_we_found_here_are_not_touched(grn_run: GrnRun, how: str) -> None:
    """A shell that became us had children before: no end of a job, and no stop, concerns them."""
    command = "true" if how == "leftovers" else "echo yes >runs; exec sleep 60"
    run = shlex.join(
        grn_run.argv("-q", "--leftovers=kill", "--grace=0.3", "--", "sh", "-c", command)
    )
    before = "sleep 60 & echo $! >server.new; mv server.new server"
    whole = ["sh", "-c", f"{before}; exec {run}"]
    process = grn_run.env.popen(whole, cwd=grn_run.folder, env=grn_run.env.environ)
    server = int(grn_run.wait_for("server"))
    if how == "term":
        grn_run.wait_for("runs")
        process.terminate()
    assert process.wait(PATIENCE_S) == (0 if how == "leftovers" else -signal.SIGTERM)
    assert procs.start_time(server) is not None
    os.kill(server, signal.SIGKILL)
    wait_gone(server)


def test_a_broker_that_a_command_started_is_no_left_over(grn_run: GrnRun) -> None:
    """It serves others by then: neither the end of the command nor a stop ends it."""
    socket = grn_run.path("other")
    devices = f"sim:1x4GiB,dir={grn_run.path('cards')}"
    inner = grn_run.argv("-q", f"--devices={devices}", f"--socket={socket}", "--", "true")
    environ = {"GRN_IDLE_EXIT": "1h"}
    nested = ["sh", "-c", f"env -u GRN_DEVICES -u GRN_LEASE {shlex.join(inner)}"]
    done = grn_run("-q", "--leftovers=kill", "--grace=0.3", "--", *nested, environ=environ)
    assert done.returncode == 0, done.stderr
    with Client(settings_module.load({"socket": socket}, grn_run.env.environ)) as client:
        broker = int(client.broker["pid"])
        assert client.status()["devices"][0]["total_mib"] == 4096
        client.stop()
    wait_gone(broker)
