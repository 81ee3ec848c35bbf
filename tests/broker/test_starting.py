"""Starting a broker: one per socket, whatever is at the path, however many start it at once."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from grn import paths, procs
from grn.client import connect
from tests.env import PATIENCE_S, eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]

NOBODY = 65534


def refused(env: BrokerEnv, *flags: str) -> str:
    """Start a broker that must refuse to run; return what it says."""
    process = env.spawn_broker(*flags, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 125, said
    text: str = said.decode()
    assert "Traceback" not in text
    return text


# -- what is at the path ----------------------------------------------------------------------------


def test_a_dead_brokers_socket_is_replaced(new_env: NewEnv):
    """A socket that nobody serves any more is no obstacle."""
    env = new_env()
    env.kill()
    assert os.path.lexists(env.socket)
    pid = env.start()
    assert connect(env.settings).broker["pid"] == pid


def test_a_second_broker_is_refused(new_env: NewEnv):
    """Where a broker runs, a second one says so with its pid and leaves it alone."""
    env = new_env()
    talker = env.talker()
    said = refused(env)
    assert "already running" in said
    assert f"pid {env.pid}" in said
    assert talker.status()["broker"]["pid"] == env.pid
    assert connect(env.settings).broker["pid"] == env.pid


def test_a_silent_server_is_left_alone(new_env: NewEnv):
    """Something that accepts and never answers is neither removed nor replaced."""
    env = new_env(start=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(env.socket)
        other.listen()
        inode = os.lstat(env.socket).st_ino
        assert "not within 5 s" in refused(env)
        assert os.lstat(env.socket).st_ino == inode


@pytest.mark.parametrize("kind", ["file", "folder", "symlink"])
def test_what_is_no_socket_is_left_alone(new_env: NewEnv, kind: str):
    """A file, a folder or a symlink at the socket's path stops the start and stays."""
    env = new_env(start=False)
    make: dict[str, Callable[[], Any]] = {
        "file": lambda: open(env.socket, "w", encoding="ascii").close(),
        "folder": lambda: os.mkdir(env.socket),
        "symlink": lambda: os.symlink("/nowhere", env.socket),
    }
    make[kind]()
    before = os.lstat(env.socket)
    said = refused(env)
    assert kind in said
    assert "not a socket" in said
    after = os.lstat(env.socket)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_two_starts_at_one_instant_over_a_stale_socket(new_env: NewEnv):
    """Of two brokers started together exactly one lives, every time."""
    env = new_env()
    env.kill()
    rounds = 10
    for _ in range(rounds):
        pair = [env.spawn_broker() for _ in range(2)]
        alive = eventually(lambda pair=pair: _only_one_serves(env, pair))
        alive.kill()
        alive.wait(PATIENCE_S)
    assert len(env.log_lines("already running")) == rounds
    assert len(env.log_lines(" ready ")) == rounds + 1


def _only_one_serves(env: BrokerEnv, pair: list[Any]) -> Any:
    living = [process for process in pair if process.poll() is None]
    if len(living) != 1:
        if not living:
            pytest.fail("both have left")
        return None
    try:
        connection = connect(env.settings)
    except ConnectionError:
        return None
    connection.close()
    assert connection.broker["pid"] == living[0].pid
    return living[0]


# -- the path ---------------------------------------------------------------------------------------


@pytest.fixture
def short_folder() -> Iterator[str]:
    """Make a folder whose path is short; what falls back to the private folder is removed.

    To be asked for before `new_env`: brokers are to end first, or they make their folders again.
    """
    with tempfile.TemporaryDirectory(prefix="grn-", dir="/tmp") as folder:
        yield folder


@pytest.mark.parametrize(("length", "wide"), [(107, 0), (108, 0), (130, 0), (100, 10)], ids=str)
def test_broker_and_client_agree_on_a_long_path(
    short_folder: str, new_env: NewEnv, length: int, wide: int
):
    """Up to 107 bytes the path is used as it is; beyond, both find the same shorter one."""
    name = ("é" * wide).ljust(length - len(short_folder) - 1, "s")
    path = f"{short_folder}/{name}"
    used = paths.socket_path({"GRN_SOCKET": path})
    fits = len(os.fsencode(path)) <= 107
    assert (used == path) is fits
    assert len(os.fsencode(used)) <= 107
    env = new_env(socket_path=path)
    try:
        assert env.remote().status()["broker"]["pid"] == env.pid
        assert stat.S_ISSOCK(os.lstat(used).st_mode)
        assert [n for n in os.listdir(short_folder) if path.startswith(f"{short_folder}/{n}")] == (
            [name] if fits else []
        )
        env.stop()
    finally:
        _remove_beside(used)


def _remove_beside(path: str) -> None:
    folder, name = os.path.split(path)
    for found in os.listdir(folder):
        if found.startswith(name):
            os.unlink(os.path.join(folder, found))


# -- several users ----------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes of two users")


@as_root
def test_two_users_have_a_broker_each(short_folder: str, new_env: NewEnv):
    """Each user's broker starts, in a private folder, with a private socket, whatever the umask."""
    os.chmod(short_folder, 0o1777)  # noqa: S103 - as the temp folder is
    found = set()
    for uid, umask in ((NOBODY, "077"), (NOBODY - 1, "000")):
        folder = os.path.join(short_folder, str(uid))
        os.mkdir(folder, 0o700)
        os.chown(folder, uid, uid)
        env = new_env(folder=folder, start=False)
        del env.environ["GRN_SOCKET"]
        env.environ["TMPDIR"] = short_folder
        env.program = ["tests.as_user", str(uid), umask, *env.program[1:]]
        env.start()
        path = os.path.join(short_folder, f"grn-{uid}", "broker.sock")
        assert os.stat(path).st_uid == uid
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        found.add(path)
    assert len(found) == 2


@as_root
def test_a_folder_planted_by_another_user_is_refused(short_folder: str, new_env: NewEnv):
    """A private folder that somebody else owns is refused with its owner's number."""
    planted = os.path.join(short_folder, f"grn-{os.geteuid()}")
    os.mkdir(planted, 0o700)
    os.chown(planted, NOBODY, NOBODY)
    env = new_env(start=False)
    del env.environ["GRN_SOCKET"]
    env.environ["TMPDIR"] = short_folder
    said = refused(env)
    assert planted in said
    assert f"uid {NOBODY}" in said


# -- on demand --------------------------------------------------------------------------------------

_ASK = """
import sys
from grn.client import Client
sys.stdin.read()
with Client(start=True) as client:
    lease = client.acquire("t", memory_mib=100)
    print(client.broker["pid"], client.broker["on_demand"])
    lease.release()
"""


def test_sixteen_clients_start_one_broker(new_env: NewEnv):
    """Clients that find no broker at the same instant get the same one, started once."""
    env = new_env("sim:2x10000MiB", start=False, idle_exit="30")
    pipe = subprocess.PIPE
    clients = [env.popen([sys.executable, "-c", _ASK], stdin=pipe, stdout=pipe) for _ in range(16)]
    for client in clients:
        assert client.stdin is not None
        client.stdin.close()
        client.stdin = None
    said = [client.communicate(timeout=PATIENCE_S)[0].split() for client in clients]
    try:
        assert len({pid for pid, _ in said}) == 1
        assert {on_demand for _, on_demand in said} == {b"True"}
        with open(paths.beside(env.socket).log, encoding="utf-8") as log:
            assert log.read().count(" ready ") == 1
    finally:
        for pid in {int(pid) for pid, _ in said}:
            os.kill(pid, signal.SIGTERM)
            wait_gone(pid)


def test_a_broker_on_demand_leaves_when_it_is_idle(new_env: NewEnv):
    """Without lease, waiter or client it leaves after the idle time, and takes its socket along."""
    env = new_env(start=False, idle_exit="1")
    env.start("--on-demand")
    talker = env.talker()
    assert env.broker is not None
    grant = talker.acquire("t", memory_mib=100)
    assert env.broker.poll() is None
    talker.release(grant)
    talker.close()
    assert env.broker.wait(PATIENCE_S) == 0
    env.broker = None
    assert not os.path.lexists(env.socket)
    assert env.log_lines("reason='idle'")


def test_the_shortest_patience_waits_for_the_first_client(new_env: NewEnv):
    """`idle_exit = 0`: it leaves with its last client, and not before there was one."""
    env = new_env(start=False, idle_exit="0")
    command = [sys.executable, "-m", "grn", "run", "-q", "--", "sh", "-c", "exit 3"]
    for _ in range(2):
        ran = subprocess.run(command, env=env.environ, check=False, timeout=PATIENCE_S)
        assert ran.returncode == 3
        with open(paths.beside(env.socket).lock, encoding="ascii") as lock:
            wait_gone(int(lock.read().split()[0]))
        assert not os.path.lexists(env.socket)


def test_a_broker_with_a_lease_is_not_idle(new_env: NewEnv):
    """A broker on demand stays while a lease is held, though nobody is connected."""
    env = new_env(start=False, idle_exit="1")
    env.start("--on-demand")
    talker = env.talker()
    talker.acquire("t", memory_mib=100)
    owner = env.remote()
    lease = owner.acquire("t", memory_mib=100)["lease"]
    owner.close()
    talker.close()
    assert env.broker is not None
    with pytest.raises(subprocess.TimeoutExpired):
        env.broker.wait(2.0)
    owner.connect()
    assert lease in [x["id"] for x in owner.status()["leases"]]


def test_a_broker_without_devices_serves(new_env: NewEnv):
    """Where there is no device, jobs that want none run; others are refused, and status says why."""
    env = new_env("none")
    talker = env.talker()
    assert talker.acquire("cpu", gpus=None)["devices"] == []
    refusal = talker.final(talker.ask("gpu"))
    assert refusal["code"] == "impossible"
    assert "no device" in refusal["message"]
    assert talker.status()["devices"] == []


def test_what_a_broker_says_of_itself(new_env: NewEnv):
    """Its hello names its process, its release and its devices."""
    env = new_env()
    broker = env.client().broker
    assert broker["pid"] == env.pid
    assert re.fullmatch(r"\d+\.\d+\.\d+", broker["release"])
    assert broker["devices"].startswith("sim:1x10000MiB")
    assert broker["on_demand"] is False
    assert procs.start_time(env.pid) is not None
