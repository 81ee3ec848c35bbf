"""Pid namespaces, as containers have them: whose a process is that has another number inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from grn.devices import simfolder
from tests.env import ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

_PLAIN = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@cache
def in_namespace() -> list[str]:
    """Return the words that run a command in a pid namespace of its own; skip where not allowed."""
    why = "there is no unshare(1)"
    for words in (_PLAIN, [*_PLAIN, "--user", "--map-root-user"]):
        try:
            done = subprocess.run([*words, "true"], check=False, capture_output=True, text=True)
        except FileNotFoundError:
            break
        if done.returncode == 0:
            return words
        why = done.stderr.strip()
    return pytest.skip(f"no pid namespace can be made here: {why}")


def inside(pid: int) -> int | None:
    """Return the process below `pid` that is the first one of a pid namespace, by our number."""
    return next((p for p in procs.descendants(pid) if numbers(p)[1:] == (1,)), None)


def numbers(pid: int) -> tuple[int, ...]:
    """Return a process's pids from our pid namespace down to its own; () if it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            found = next(line for line in file if line.startswith("NSpid:"))
    except OSError:
        return ()
    return tuple(int(word) for word in found.split()[1:])


JOB = """
import os, sys
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.replace(sys.argv[1] + ".new", sys.argv[1])
sys.stdin.read()
"""


class Job:
    """`grn run` of a program in a pid namespace, in which it holds memory of device 0."""

    def __init__(self, env: BrokerEnv, *before: str) -> None:
        self._env = env
        said = os.path.join(env.folder, "number")
        words = [*before, *in_namespace(), sys.executable, "-c", JOB, said]
        argv = [sys.executable, "-m", "grn", "run", "--memory", "1000MiB", "--", *words]
        self.process = env.popen(argv, stdin=subprocess.PIPE)
        self.own_number = int(eventually(lambda: os.path.exists(said) and open(said).read()))  # noqa: SIM115
        self.pid = eventually(lambda: inside(self.process.pid)) or 0

    def hold(self, mib: int) -> None:
        """Say what the job holds, as a driver on the host does: by its number here."""
        key = (0, simfolder.WHOLE)
        start = procs.start_time(self.pid)
        record = simfolder.Holding(key, self.pid, mib, start, live=True).record()
        simfolder.write_file(os.path.join(simfolder.procs_path(self._env.sim_dir), "it"), record)

    def measured(self) -> int:
        """Return what the broker says that its lease holds."""
        (lease,) = self._env.status()["leases"]
        return int(lease["measured_mib"])

    def end(self) -> int:
        """Let it end; return the status of `grn run`."""
        self.process.communicate()
        return self.process.wait()


def test_a_process_has_a_number_in_each_namespace(new_env: Callable[..., BrokerEnv]) -> None:
    """The first is ours and the last its own; by ours its parents are found."""
    job = Job(new_env())
    assert job.own_number == 1
    assert numbers(job.pid) == (job.pid, 1)
    assert job.process.pid in procs.ancestors(job.pid)
    assert job.end() == 0


@pytest.mark.parametrize("before", [(), ("env", "-i")], ids=["marked", "unmarked"])
def test_a_job_in_a_namespace_is_its_leases(
    before: tuple[str, ...], new_env: Callable[..., BrokerEnv]
) -> None:
    """By its marker, or without one as a descendant, it is found under its number on the host."""
    job = Job(new_env(), *before)
    job.hold(700)
    eventually(lambda: job.measured() == 700, what="the job's 700 MiB are its lease's")
    assert job.end() == 0


def test_a_client_in_a_container_is_served_by_the_hosts_broker(
    new_env: Callable[..., BrokerEnv],
) -> None:
    """Its job is measured and waits its turn, and when it is killed the lease is free."""
    env = new_env()
    argv = [sys.executable, "-m", "grn", "run", "--memory", "6000MiB", "--"]
    work = [sys.executable, "-c", JOB, os.path.join(env.folder, "number")]
    inside_it = env.popen([*in_namespace(), *argv, *work], stdin=subprocess.PIPE, cwd=ROOT)
    eventually(lambda: os.path.exists(os.path.join(env.folder, "number")))
    other = env.talker()
    waits = other.ask("t", memory_mib=6000)
    assert not other.decided([waits])
    inside_it.kill()
    inside_it.wait()
    other.release(other.granted(waits))
    eventually(lambda: env.status()["leases"] == [])


def test_a_broker_in_a_container_serves_no_client_of_the_host(
    new_env: Callable[..., BrokerEnv],
) -> None:
    """Whom it cannot see it could not give a lease that ends with them: it says so, and what to do."""
    env = new_env(start=False)
    told, tell = os.pipe()
    broker = env.popen(
        [*in_namespace(), sys.executable, "-m", "grn", "broker", f"--ready-fd={tell}"],
        pass_fds=[tell],
        cwd=ROOT,
    )
    os.close(tell)
    with open(told, "rb") as ready:
        assert ready.readline().startswith(b"READY")
    argv = [sys.executable, "-m", "grn", "run", "--memory", "1GiB", "--", "touch", "ran"]
    done = subprocess.run(
        argv, env=env.environ, cwd=env.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert "another pid namespace" in done.stderr
    assert "--pid=host" in done.stderr
    assert not os.path.exists(os.path.join(env.folder, "ran"))
    assert env.status()["leases"] == []
    subprocess.run([*argv[:3], "broker", "stop"], env=env.environ, check=True)
    assert broker.wait() == 0


LOOK = """
import json, sys
from grn import procs
from grn.broker.whose import Whose
from grn.devices.base import DeviceReading, ProcessUse
from grn.rules.model import Lease, LeaseState, Owner, Request

me = Owner(1, procs.start_time(1))
lease = Lease("a", 1, Request(1, "t", me), ("d0", "d1"), 500, LeaseState.RUNNING, 0.0, 1, main=me)
whose = Whose(procs.ProcessTable())
told = []
for _ in range(3):
    by_our_number = DeviceReading("d0", "ok", "", 60, (ProcessUse(1, 60),))
    by_the_hosts = DeviceReading("d1", "ok", "", 1800, (ProcessUse(int(sys.argv[1]), 1800),))
    for reading in whose.readings([by_our_number, by_the_hosts], {"a": lease}):
        told.append([reading.leases, reading.strangers])
json.dump({"first": procs.in_first_pid_namespace(), "told": told}, sys.stdout)
"""


def test_a_broker_in_a_namespace_does_not_trust_the_hosts_numbers() -> None:
    """A stranger is one at the second look; from then on nothing is said of any lease."""
    words = [*in_namespace(), sys.executable, "-c", LOOK, str(os.getpid())]
    said: Any = subprocess.run(words, check=True, capture_output=True, cwd=ROOT).stdout
    answer = json.loads(said)
    assert answer["first"] is False
    first = [[{"a": 60}, []], [None, []]]
    later = [[None, []], [None, [os.getpid()]]]
    assert answer["told"] == first + later + later


def test_who_sees_all_processes_is_in_the_first_namespace() -> None:
    """The kernel's threads are children of process 2, which only the first namespace has."""
    if procs.in_first_pid_namespace():
        assert procs.parent(2) == 0
    else:
        pytest.skip("these tests run in a pid namespace themselves")
