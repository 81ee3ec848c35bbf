"""The broker dies or leaves: jobs go on, leases are taken over, waiters are told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from grn import paths
from grn.connection import Connection
from grn.errors import BrokerGone
from grn.rules.model import LONGEST_GAP_S
from grn.rules.wire import Frames, decode, encode
from tests.env import PATIENCE_S, eventually
from tests.talker import Talker

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.client import Lease
    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def test_a_killed_brokers_leases_are_taken_over(new_env: NewEnv):
    """After kill -9 the next broker has the same leases on the same devices, and books are right."""
    env = new_env("sim:2x10000MiB")
    owner = env.remote()
    owner.know("t", 6000)
    grants = [owner.acquire("t") for _ in range(2)]
    jobs = [env.job(owner, grant, "--memory=6000MiB") for grant in grants]
    for job in jobs:
        job.wait_holding()
    before = {lease["id"]: lease for lease in owner.status()["leases"]}
    env.restart()
    late = env.talker()
    after = {lease["id"]: lease for lease in late.status()["leases"]}
    assert after.keys() == before.keys()
    for lease, told in after.items():
        for key in ("devices", "booked_mib", "owner_pid", "pid", "type", "measured_mib"):
            assert told[key] == before[lease][key], key
    third = late.ask("t")
    assert not late.decided([third])

    owner.connect()
    held = [grant["lease"] for grant in grants]
    assert owner.call("adopt", leases=[*held, "gone-1"])["leases"] == held
    jobs[0].finish()
    owner.release(grants[0])
    assert late.granted(third, within_s=10)["devices"] == grants[0]["devices"]
    jobs[1].finish()
    owner.release(grants[1])


def test_a_running_job_does_not_notice_the_brokers_death(new_env: NewEnv):
    """A job that runs while the broker is killed ends with its own exit status."""
    env = new_env()
    talker = env.talker()
    job = env.job(talker, talker.acquire("t", memory_mib=4000), "--memory=1GiB", "--exit-code=3")
    job.wait_holding()
    env.kill()
    assert job.finish() == 3
    env.start()


def test_the_next_broker_learns_no_peak_that_it_did_not_see(new_env: NewEnv):
    """A first run under two brokers: its time is that of both, its peak is unknown, a next run is measured."""
    env = new_env(sample_fast="0.05")
    owner = env.remote()
    grant = owner.acquire("t")
    begun = time.monotonic()
    job = env.job(owner, grant, "--memory=3000MiB")
    job.wait_holding()
    eventually(lambda: owner.status()["leases"][0]["peak_mib"] == 3000)
    env.kill()
    eventually(lambda: time.monotonic() > begun + 2 * LONGEST_GAP_S)
    env.start()
    owner.connect()
    assert owner.call("adopt", leases=[grant["lease"]])["leases"] == [grant["lease"]]
    owner.tell("started", lease=grant["lease"], pid=job.pid)  # as a client does that comes back
    eventually(lambda: owner.status()["leases"][0]["peak_mib"] == 3000)
    held_s = time.monotonic() - begun
    job.finish()
    told = owner.release(grant)
    assert (told["outcome"], told["peak_mib"]) == ("ok", None)
    assert told["ran_s"] >= held_s - 1
    assert "its broker died as it ran" in " ".join(told["notes"])
    assert [x["estimate_mib"] for x in owner.profiles()] == [None]
    assert owner.acquire("t")["probe"] is True


def test_the_dead_are_forgotten_by_the_next_broker(new_env: NewEnv):
    """A lease whose owner died while no broker ran is free at the next broker's start."""
    env = new_env()
    owner, living = env.remote(), env.remote()
    owner.acquire("a", memory_mib=4000)
    kept = living.acquire("a", memory_mib=4000)
    env.kill()
    owner.kill()
    env.start()
    talker = env.talker()
    eventually(lambda: [x["id"] for x in talker.status()["leases"]] == [kept["lease"]])
    talker.release(talker.acquire("b", memory_mib=6000))


def test_a_dead_owners_job_is_taken_over_too(new_env: NewEnv):
    """A job whose submitter died while no broker ran keeps its lease until it ends."""
    env = new_env()
    owner = env.remote()
    job = env.job(owner, owner.acquire("a", memory_mib=4000), "--memory=4000MiB")
    job.wait_holding()
    owner.status()
    env.kill()
    owner.kill()
    env.start()
    waiter = env.talker()
    request = waiter.ask("b", memory_mib=8000)
    eventually(lambda: [x["state"] for x in waiter.status()["leases"]] == ["draining"])
    assert not waiter.decided([request])
    job.finish()
    waiter.granted(request, within_s=10)


def test_every_acknowledged_grant_survives(new_env: NewEnv):
    """Whatever was granted and not given back before kill -9 is held after it, five times over."""
    env = new_env("sim:4x10000MiB")
    held: dict[str, Any] = {}
    for round_ in range(5):
        talker = env.talker()
        assert set(talker.call("adopt", leases=list(held))["leases"]) == set(held)
        for number in talker.ask_many(20, "t", memory_mib=100):
            grant = talker.granted(number)
            held[grant["lease"]] = grant
        for lease in list(held)[round_::3]:
            talker.release(held.pop(lease))
        env.restart()
        assert {lease["id"] for lease in env.status()["leases"]} == set(held)


def test_a_blocking_client_finds_the_next_broker(new_env: NewEnv):
    """A client keeps its lease over the broker's death and gives it back to the next one."""
    env = new_env()
    with env.client() as client:
        lease = client.acquire("a", memory_mib=4000)
        env.restart()
        lease.release()
        env.kill()
        with pytest.raises(BrokerGone):
            client.status()
    env.start()
    assert env.status()["leases"] == []


class DyingBroker(threading.Thread):
    """Greets as a broker does, and is gone as soon as it is told anything else."""

    def __init__(self, env: BrokerEnv, hello: dict[str, Any]) -> None:
        super().__init__()
        self._env, self._hello = env, hello
        os.unlink(env.socket)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(env.socket)
        self._listener.listen()
        self.told: list[dict[str, Any]] = []

    def run(self) -> None:
        """Be it, once; then start a broker that stays."""
        with self._listener, self._listener.accept()[0] as sock:
            frames = Frames()
            while len(self.told) < 2:
                self.told += map(decode, frames.feed(sock.recv(65536)))
                if len(self.told) == 1:
                    sock.sendall(encode(self._hello))
        self._env.start()


@pytest.mark.parametrize("what", ["acquire", "release"])
def test_a_successor_that_dies_while_it_takes_over_is_none(new_env: NewEnv, what: str):
    """The next one is looked for: what was held is held there, and the call goes on."""
    env = new_env()
    with env.client() as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        lease = client.acquire("a", memory_mib=4000)
        env.kill()
        dying = DyingBroker(env, client.broker)
        dying.start()
        if what == "acquire":
            second = client.acquire("b", memory_mib=4000)
            assert len(env.status()["leases"]) == 2
            second.release()
        lease.release()
        dying.join()
        assert [message["op"] for message in dying.told[:2]] == ["hello", "adopt"]
    assert env.status()["leases"] == []


def test_a_broker_that_dies_before_it_greeted_is_waited_for_like_any(new_env: NewEnv):
    """A client had connected and asked when it died: it asks the next one, and holds nothing twice."""
    env = new_env(start=False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(env.socket)
        listener.listen()
        client = env.client()
        leases: list[Lease] = []
        asking = threading.Thread(
            target=lambda: leases.append(client.acquire("t", memory_mib=4000))
        )
        asking.start()
        frames, told = Frames(), []
        with listener.accept()[0] as dying:
            while len(told) < 2:
                told += map(decode, frames.feed(dying.recv(65536)))
    assert [message["op"] for message in told] == ["hello", "acquire"]
    env.start()
    asking.join(PATIENCE_S)
    assert [lease["id"] for lease in env.status()["leases"]] == [lease.id for lease in leases]
    leases[0].release()
    assert env.status()["leases"] == []


_WAIT = """
from grn.client import Client
with Client() as client:
    lease = client.acquire("t", whole=True)
    print(client.broker["pid"], lease.id, flush=True)
    lease.release()
"""


def test_a_waiting_client_finds_the_next_broker(new_env: NewEnv):
    """A client that waits when the broker dies waits on at the next one, and is granted there."""
    env = new_env()
    talker = env.remote()
    grant = talker.acquire("t", memory_mib="whole")
    waiter = env.popen([sys.executable, "-c", _WAIT], stdout=subprocess.PIPE)
    eventually(lambda: env.status()["waiters"])
    pid = env.restart()
    (again,) = eventually(lambda: env.status()["waiters"])
    assert again["pid"] == waiter.pid
    talker.connect()
    talker.release(grant)
    said, _ = waiter.communicate(timeout=PATIENCE_S)
    assert said.split()[0] == str(pid).encode()
    assert waiter.returncode == 0


def test_a_grant_whose_word_was_lost_is_not_kept(new_env: NewEnv):
    """What was granted in the broker's last moment and is not claimed by who returns is freed."""
    env = new_env()
    first = Connection(connected(env), session="one")
    other = Connection(connected(env), session="two")
    for line in (first, other):
        Talker(line).acquire("t", memory_mib=1000)
    env.restart()
    kept = {lease["id"] for lease in env.status()["leases"]}
    back = Talker(Connection(connected(env), session="one"))
    assert back.call("adopt", leases=[])["leases"] == []
    (left,) = back.status()["leases"]
    assert left["id"] in kept
    assert len(kept) == 2
    for line in (first, other, back):
        line.close()


def connected(env: BrokerEnv) -> socket.socket:
    """Return a socket at the other end of which the broker is."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(env.socket)
    return sock


def test_a_leaving_broker_tells_who_waits(new_env: NewEnv):
    """On SIGTERM waiters are refused with the reason, leases stay, and the status is 0."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("a", memory_mib="whole")
    request = talker.ask("b", memory_mib="whole")
    assert not talker.decided([request])
    assert env.stop(signal.SIGTERM) == 0
    told = talker.final(request)
    assert (told["op"], told["code"]) == ("refused", "shutting-down")
    assert not os.path.lexists(env.socket)
    env.start()
    again = env.talker()
    assert again.call("adopt", leases=[grant["lease"]])["leases"] == [grant["lease"]]


def test_a_client_can_stop_the_broker(new_env: NewEnv):
    """`stop` is answered, and the broker leaves in order."""
    env = new_env()
    with env.client() as client:
        client.stop()
    assert env.broker is not None
    assert env.broker.wait(30) == 0
    env.broker = None


def test_a_torn_journal_is_cut_and_used(new_env: NewEnv):
    """Half a record at the end of the journal costs that record only, and status says so."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("a", memory_mib=4000)
    env.kill()
    with open(paths.beside(env.socket).journal, "ab") as journal:
        journal.write(b"\0\0\0\x7fhalf a record")
    env.start()
    status = env.status()
    assert [lease["id"] for lease in status["leases"]] == [grant["lease"]]
    assert any("cut off" in warning for warning in status["warnings"])


def test_lease_ids_go_on_after_a_restart(new_env: NewEnv):
    """No lease id is used twice, also not by the next broker."""
    env = new_env()
    seen = []
    for _ in range(3):
        talker = env.talker()
        grant = talker.acquire("a", memory_mib=100)
        seen.append(grant["lease"])
        talker.release(grant)
        env.restart()
    assert len(set(seen)) == 3
