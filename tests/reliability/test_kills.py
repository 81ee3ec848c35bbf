"""Real processes: brokers that are killed under a crowd, clients that are killed at every point.

`GRN_TEST_KILLS=1000` kills as many brokers as before a release.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from grn.broker.connection import peer_has_died
from tests.env import PATIENCE_S, ROOT, eventually
from tests.reliability.crowd import Log, overlaps, read_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]

KILLS = int(os.environ.get("GRN_TEST_KILLS", "100"))
CLIENTS = 50


def _said(folder: str) -> int:
    """How much the clients have written by now."""
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


@pytest.mark.timeout(PATIENCE_S * KILLS)
def test_brokers_killed_under_a_crowd(new_env: NewEnv) -> None:
    """A hundred times kill -9 under fifty clients: by their own logs nothing was ever given twice.

    Every client goes on and ends well, and the last broker's books are empty.
    """
    env = new_env("sim:3x10000MiB", debug="no")
    folder = os.path.join(env.folder, "logs")
    os.mkdir(folder)
    crowd = env.popen(
        [sys.executable, "-m", "tests.reliability.crowd", str(CLIENTS), folder], cwd=ROOT
    )
    eventually(lambda: len(os.listdir(folder)) == CLIENTS)
    for _ in range(KILLS):
        before = _said(folder)
        eventually(lambda before=before: _said(folder) > before + 4000, 4 * PATIENCE_S)
        env.restart()
    with open(os.path.join(folder, "stop"), "wb"):
        pass
    assert crowd.wait(4 * PATIENCE_S) == 0
    os.unlink(os.path.join(folder, "stop"))
    logs = read_logs(folder)
    assert overlaps(logs, 10000) == []
    assert all(log.left for log in logs)
    leases = [lease for log in logs for _, _, lease, _, _ in log.held]
    assert len(set(leases)) == len(leases)
    assert sum(log.asked for log in logs) == len(leases)
    assert len(leases) > 10 * KILLS
    eventually(lambda: env.status()["leases"] == [])


def test_the_checker_finds_what_was_given_twice() -> None:
    """Two that hold 6 of 10 GiB at one time are found; one after the other they are not."""
    one = Log([(1.0, 2.0, "a", ("d", "e"), 6000)])
    assert overlaps([one, Log([(1.9, 3.0, "b", ("e",), 6000)])], 10000)
    assert not overlaps([one, Log([(2.1, 3.0, "b", ("e",), 6000)])], 10000)
    assert not overlaps([one, Log([(1.9, 3.0, "b", ("f",), 6000)])], 10000)
    assert not overlaps([one, Log([(1.9, 3.0, "b", ("e",), 4000)])], 10000)


def _is_killed_while(env: BrokerEnv, point: str, *, child: bool) -> Any:
    """Let a client be killed at this point; return its job, if that lives on."""
    victim = env.remote()
    if point == "waiting":
        victim.ask("t", memory_mib=10000)
        eventually(lambda: env.status()["waiters"])
        victim.kill()
        return None
    if point == "granted":  # and it has not read that yet
        victim.ask("t", memory_mib=6000)
        eventually(lambda: env.status()["leases"])
        victim.kill()
        return None
    grant = victim.acquire("t", memory_mib=6000)
    job = env.job(victim, grant, "--memory=6000MiB")
    job.wait_holding()
    eventually(lambda: env.status()["leases"][0]["measured_mib"] == 6000)
    if point == "releasing":
        victim.tell("release", id=77, lease=grant["lease"], exit_code=0)
    victim.kill()
    if not child:
        os.kill(job.pid, signal.SIGKILL)
        return None
    return job


@pytest.mark.parametrize("restarted", [False, True], ids=["same-broker", "next-broker"])
@pytest.mark.parametrize(
    ("point", "child"),
    [
        ("waiting", False),
        ("granted", False),
        ("running", False),
        ("running", True),
        ("releasing", False),
        ("releasing", True),
    ],
)
def test_a_client_is_killed(new_env: NewEnv, point: str, *, child: bool, restarted: bool) -> None:
    """What the dead held is free, unless a process of theirs holds memory: then when that ends."""
    env = new_env()
    holder = env.talker() if point == "waiting" else None
    held = holder.acquire("t", memory_mib=10000) if holder is not None else None
    job = _is_killed_while(env, point, child=child)
    if restarted and holder is None:
        env.restart()
    other = env.talker()
    request = other.ask("t", memory_mib=10000)
    if holder is not None and held is not None:
        eventually(lambda: len(env.status()["waiters"]) == 1)
        holder.release(held)
    if job is not None:
        eventually(lambda: [x["state"] for x in env.status()["leases"]] == ["draining"])
        assert not other.decided([request])
        job.finish()
    other.release(other.granted(request))
    eventually(lambda: env.status()["leases"] == [])


def test_a_suspended_client_keeps_what_it_has(new_env: NewEnv) -> None:
    """SIGSTOP is no death: its lease outlives brokers, its place in the line too, and it goes on."""
    env = new_env()
    sleeper, other = env.remote(), env.talker()
    grant = sleeper.acquire("t", memory_mib=6000)
    waiting = sleeper.ask("t", memory_mib=10000)
    eventually(lambda: env.status()["waiters"])
    os.kill(sleeper.pid, signal.SIGSTOP)
    try:
        request = other.ask("t", memory_mib=4000)
        assert not other.decided([request]), "the suspended one is first in the line"
        env.restart()
        again = env.talker()
        assert [x["id"] for x in again.status()["leases"]] == [grant["lease"]]
        small = again.acquire("t", memory_mib=4000)
        assert not again.decided([again.ask("t", memory_mib=6000)])
        again.release(small)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    del waiting
    sleeper.connect()
    assert sleeper.call("adopt", leases=[grant["lease"]])["leases"] == [grant["lease"]]
    sleeper.release(grant)


def test_a_suspended_broker_takes_everything_in_when_it_wakes(new_env: NewEnv) -> None:
    """What clients said, and who died, while it was stopped: afterwards the books are right."""
    env = new_env()
    dies, gives, other = env.remote(), env.talker(), env.talker()
    dies.acquire("t", memory_mib=4000)
    grant = gives.acquire("t", memory_mib=4000)
    os.kill(env.pid, signal.SIGSTOP)
    try:
        gives.tell("release", id=900, lease=grant["lease"], exit_code=0)
        request = other.ask("t", memory_mib=10000)
        dies.kill()
    finally:
        os.kill(env.pid, signal.SIGCONT)
    assert gives.next(900)["op"] == "released"
    other.release(other.granted(request))
    assert env.status()["leases"] == []


def test_who_connected_is_known_by_more_than_a_number() -> None:
    """The kernel says whether the process that made a connection lives, while its number is taken."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as own:
        listener.bind("")  # a name that the kernel chooses
        listener.listen()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                socket.socket(socket.AF_UNIX).connect(listener.getsockname())
            os._exit(0)
        os.waitpid(pid, 0)
        of_the_dead, _ = listener.accept()
        own.connect(listener.getsockname())
        of_the_living, _ = listener.accept()
        with of_the_dead, of_the_living:
            if not _kernel_knows_peers(of_the_living):
                pytest.skip("this kernel does not tell a connection's process (Linux 6.5)")
            before = len(os.listdir("/proc/self/fd"))
            assert peer_has_died(of_the_dead)
            assert not peer_has_died(of_the_living)
            assert len(os.listdir("/proc/self/fd")) == before


def _kernel_knows_peers(sock: socket.socket) -> bool:
    try:
        os.close(sock.getsockopt(socket.SOL_SOCKET, 77))
    except OSError:
        return False
    return True
