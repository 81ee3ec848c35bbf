"""A broker whose names are taken away: it takes them again, or gives way to who was faster."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn import paths
from grn.broker.lock import InstanceLock, bind_socket
from grn.client import connect
from grn.errors import BrokerUnavailable
from grn.rules import wire
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def in_a_folder_of_its_own(new_env: NewEnv, tmp_path: Any, **more: Any) -> BrokerEnv:
    """Start a broker whose folder holds nothing but its own files, the simulated devices' too."""
    path = str(tmp_path / "run" / "sock")
    env = new_env(start=False, socket_path=path, **more)
    env.environ["GRN_DEVICES"] = "sim:1x10000MiB"
    env.start()
    return env


def broker_pid(env: BrokerEnv) -> int | None:
    """Return the broker at the path; `None` if nobody listens there just now."""
    try:
        with contextlib.closing(connect(env.settings)) as connection:
            pid: int = connection.broker["pid"]
    except BrokerUnavailable:
        return None
    return pid


def wait_served(env: BrokerEnv) -> None:
    """Wait until this broker can be reached at its path."""
    eventually(lambda: broker_pid(env) == env.pid, what="the same broker serves at the path")


def wait_restored(env: BrokerEnv, times: int = 1) -> None:
    """Wait until the broker has said so often that it took its names again."""
    eventually(lambda: len(env.log_lines("name-restored")) >= times)
    wait_served(env)


def remove_folder(env: BrokerEnv) -> None:
    """Remove the broker's folder so that it sees all of it gone at once."""
    os.kill(env.pid, signal.SIGSTOP)
    shutil.rmtree(os.path.dirname(env.socket))
    os.kill(env.pid, signal.SIGCONT)


def remove_folder_step_by_step(env: BrokerEnv) -> None:
    """Remove the broker's folder while it already makes it again; wait for the end of both."""
    shutil.rmtree(os.path.dirname(env.socket), ignore_errors=True)
    beside = paths.beside(env.socket)
    eventually(lambda: all(map(os.path.exists, [env.socket, beside.lock, beside.journal])))


def refused(env: BrokerEnv) -> str:
    """Start a second broker, which must not come up; return what it says."""
    second = env.spawn_broker(stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    _, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 125, said
    text: str = said.decode()
    return text


def job_types(env: BrokerEnv) -> list[str]:
    """Return the types of the leases that are held."""
    return [lease["type"] for lease in env.status()["leases"]]


# -- healing ----------------------------------------------------------------------------------------


def test_a_removed_socket_comes_back(new_env: NewEnv):
    """A client connects again at the same path, to the same broker; old connections live on."""
    env = new_env()
    talker = env.talker()
    os.unlink(env.socket)
    wait_served(env)
    assert talker.status()["broker"]["pid"] == env.pid
    assert env.log_lines("name-restored")[0].endswith("lost=socket")


@pytest.mark.parametrize("name", ["lock", "journal"])
def test_a_removed_file_beside_the_socket_comes_back(new_env: NewEnv, name: str):
    """The lock keeps a second broker out as before; the journal is there for a successor."""
    env = new_env()
    talker = env.talker()
    talker.acquire("kept", memory_mib=100)
    path = getattr(paths.beside(env.socket), name)
    os.unlink(path)
    eventually(lambda: os.path.exists(path))
    eventually(lambda: env.log_lines("name-restored"))
    assert f"pid {env.pid}" in refused(env)
    assert job_types(env) == ["kept"]


def test_an_idle_broker_heals_too(new_env: NewEnv):
    """With no client, lease or timer to wake it, it still notices: the kernel says so."""
    env = new_env()
    eventually(lambda: sleeps(env.pid, 0.5))
    os.unlink(env.socket)
    eventually(lambda: os.path.exists(env.socket))


@pytest.mark.parametrize("remove", [remove_folder, remove_folder_step_by_step])
def test_a_removed_folder_comes_back_with_everything(
    new_env: NewEnv, tmp_path: Any, remove: Callable[[BrokerEnv], None]
):
    """Its leases are still known, a second client reaches it, and a successor takes them over."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    owner = env.remote()
    lease = owner.acquire("long", memory_mib=4000)["lease"]
    remove(env)
    wait_restored(env)
    assert [x["id"] for x in env.status()["leases"]] == [lease]
    second = env.popen([sys.executable, "-m", "grn", "run", "--memory=1GiB", "--", "true"])
    assert second.wait(PATIENCE_S) == 0
    assert broker_pid(env) == env.pid

    env.restart()
    assert [x["id"] for x in env.status()["leases"]] == [lease]


@pytest.mark.parametrize("remove", [remove_folder, remove_folder_step_by_step])
def test_simulated_devices_outlive_their_folder(
    new_env: NewEnv, tmp_path: Any, remove: Callable[[BrokerEnv], None]
):
    """They come back with what is held on them: a real card would not be lost with a folder."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    talker = env.talker()
    grant = talker.acquire("long", memory_mib=4000)
    job = env.job(talker, grant, "--memory=3GiB")
    job.wait_holding()
    assert talker.status()["devices"][0]["measured_mib"] == 3072
    remove(env)
    wait_restored(env)

    def as_before() -> bool:
        device = talker.status()["devices"][0]
        return device["state"] == "ok" and device["measured_mib"] == 3072

    eventually(as_before)
    job.finish()


def test_a_renamed_folder_is_left_where_it_is(new_env: NewEnv, tmp_path: Any):
    """The path leads to the broker again, in a new private folder; the old one is not touched."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    talker = env.talker()
    talker.acquire("kept", memory_mib=100)
    folder = os.path.dirname(env.socket)
    before = sorted(os.listdir(folder))
    os.rename(folder, folder + ".old")
    wait_restored(env)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert job_types(env) == ["kept"]
    assert sorted(os.listdir(folder + ".old")) == before
    env.restart()
    assert job_types(env) == ["kept"]


def test_a_folder_above_it_may_be_renamed_too(new_env: NewEnv, tmp_path: Any):
    """Not the files nor their folder changed, and still the path leads nowhere."""
    os.mkdir(tmp_path / "above")
    path = str(tmp_path / "above" / "run" / "sock")
    env = new_env(socket_path=path)
    os.rename(tmp_path / "above", tmp_path / "elsewhere")
    wait_restored(env)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_mount_over_its_folder_is_noticed(new_env: NewEnv, tmp_path: Any):
    """A login that mounts a new runtime folder over the old one changes no file, and hides all."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    folder = os.path.dirname(env.socket)
    mounting = subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=False)
    if mounting.returncode:
        pytest.skip("this container may not mount")
    try:
        wait_restored(env)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    wait_restored(env, 2)


def test_a_path_that_cannot_be_made_is_taken_when_it_can(new_env: NewEnv, tmp_path: Any):
    """Until then the broker serves whom it has, and says in its status what is wrong."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    talker = env.talker()
    folder = os.path.dirname(env.socket)
    os.rename(folder, folder + ".old")
    wait_restored(env)
    os.kill(env.pid, signal.SIGSTOP)
    shutil.rmtree(folder)
    with open(folder, "w", encoding="ascii"):
        pass
    os.kill(env.pid, signal.SIGCONT)
    eventually(lambda: any("cannot be made again" in x for x in talker.status()["warnings"]))
    os.unlink(folder)
    wait_restored(env, 2)
    assert talker.status()["warnings"] == []


def test_rapid_removals_are_all_healed(new_env: NewEnv, tmp_path: Any):
    """As fast as somebody removes them, the names come back."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    folder = os.path.dirname(env.socket)
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
    wait_served(env)
    for _ in range(5):
        eventually(lambda: os.path.exists(env.socket))
        os.unlink(env.socket)
    wait_restored(env)
    assert "pid" in refused(env)


def test_clients_in_the_queue_of_the_old_socket_are_served(new_env: NewEnv):
    """Who had connected when the socket was removed is not sent away."""
    env = new_env()
    os.kill(env.pid, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(env.socket)
        os.unlink(env.socket)
        os.kill(env.pid, signal.SIGCONT)
        wait_restored(env)
        waiting.settimeout(0.0)
        with pytest.raises(BlockingIOError):  # open, and nothing to hear before our hello
            waiting.recv(1)


# -- silence ----------------------------------------------------------------------------------------


def wake_ups(pid: int) -> int:
    """Return how often a process has gone to sleep."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


def sleeps(pid: int, for_s: float) -> bool:
    """Whether a process does not wake up for so long."""
    before = wake_ups(pid)
    time.sleep(for_s)  # an observation of silence takes its time
    return wake_ups(pid) == before


def test_the_guard_is_silent_while_nothing_happens(new_env: NewEnv, tmp_path: Any):
    """No wake-up at all, also after it has healed, and whatever happens to other files there."""
    env = in_a_folder_of_its_own(new_env, tmp_path)
    os.unlink(env.socket)
    wait_restored(env)
    other = os.path.join(os.path.dirname(env.socket), "other")

    def sleeps_while_others_work() -> bool:
        before = wake_ups(env.pid)
        for _ in range(20):
            with open(other, "w", encoding="ascii") as file:
                file.write("x")
            os.unlink(other)
        return sleeps(env.pid, 2.5) and wake_ups(env.pid) == before

    # On a busy machine it may still have to get round to what it was woken for before.
    eventually(sleeps_while_others_work)


# -- giving way -------------------------------------------------------------------------------------


def take_over_by_force(env: BrokerEnv) -> tuple[InstanceLock, socket.socket]:
    """Remove the broker's names while it is stopped, and serve at its path in its place."""
    os.kill(env.pid, signal.SIGSTOP)
    beside = paths.beside(env.socket)
    for path in (env.socket, beside.lock, beside.journal):
        os.unlink(path)
    lock = InstanceLock(env.socket)
    lock.acquire()
    with open(beside.journal, "w", encoding="ascii") as journal:
        journal.write("another broker's")
    listener = bind_socket(env.socket)
    os.kill(env.pid, signal.SIGCONT)
    return lock, listener


def test_a_broker_gives_way_to_one_that_serves_at_its_path(new_env: NewEnv):
    """It grants nothing more, says so, leaves with its last lease, and touches no file of the other."""
    env = new_env()
    talker = env.talker()
    held = talker.acquire("held", memory_mib=6000)
    waiting = talker.ask("waits", memory_mib=6000)
    assert not talker.decided([waiting])
    lock, listener = take_over_by_force(env)
    inode = os.lstat(env.socket).st_ino
    assert talker.final(waiting)["code"] == "shutting-down"
    assert any("another broker serves" in x for x in talker.status()["warnings"])
    assert env.log_lines("name-taken")
    assert talker.final(talker.ask("more", memory_mib=1))["code"] == "shutting-down"
    talker.release(held)
    assert env.broker is not None
    assert env.broker.wait(PATIENCE_S) == 0
    env.broker = None
    assert os.lstat(env.socket).st_ino == inode
    with open(paths.beside(env.socket).journal, encoding="ascii") as journal:
        assert journal.read() == "another broker's"
    assert lock.still_ours()
    lock.release()
    listener.close()


def test_without_a_lease_it_leaves_at_once(new_env: NewEnv):
    """Where another broker serves, one that keeps nothing has no reason to stay."""
    env = new_env()
    lock, listener = take_over_by_force(env)
    assert env.broker is not None
    assert env.broker.wait(PATIENCE_S) == 0
    env.broker = None
    lock.release()
    listener.close()


def test_two_brokers_that_lost_their_names_do_not_block_each_other(new_env: NewEnv):
    """Who gets the lock and finds another one serving gives way, lock and all."""
    env = new_env()
    os.kill(env.pid, signal.SIGSTOP)
    os.unlink(env.socket)
    os.unlink(paths.beside(env.socket).lock)
    with bind_socket(env.socket) as listener:  # a broker whose lock was removed in its turn
        serving = threading.Thread(target=answer_every_hello, args=(listener,), daemon=True)
        serving.start()
        os.kill(env.pid, signal.SIGCONT)
        assert env.broker is not None
        assert env.broker.wait(PATIENCE_S) == 0
        env.broker = None
        lock = InstanceLock(env.socket)
        lock.acquire()
        lock.release()
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(PATIENCE_S)


def answer_every_hello(listener: socket.socket) -> None:
    """Speak as a broker does, until the listener is shut down."""
    hello = wire.encode({"op": "hello", "magic": wire.MAGIC, "version": 1, "pid": os.getpid()})
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as client:
                client.settimeout(0.1)  # one that only looks who listens says nothing
                with contextlib.suppress(TimeoutError):
                    if client.recv(1024):
                        client.sendall(hello)


def test_a_second_broker_that_gives_up_changes_nothing(new_env: NewEnv):
    """While one that may yet give up has the lock, the broker goes on, and takes the lock after it."""
    env = new_env()
    talker = env.talker()
    os.kill(env.pid, signal.SIGSTOP)
    os.unlink(paths.beside(env.socket).lock)
    passing = InstanceLock(env.socket)
    passing.acquire()
    os.kill(env.pid, signal.SIGCONT)
    eventually(lambda: any("already running" in x for x in talker.status()["warnings"]))
    talker.release(talker.acquire("t", memory_mib=100))
    passing.release()
    wait_restored(env)
    assert talker.status()["warnings"] == []
    assert f"pid {env.pid}" in refused(env)


def test_a_socket_from_systemd_is_systemds(new_env: NewEnv):
    """Its name is not made again by the broker; the lock beside it is."""
    env = new_env(start=False)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(env.socket)
    listener.listen()
    env.environ["LISTEN_FDS"] = "1"
    script = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid());"
        "os.execv(sys.executable, [sys.executable, '-m', 'grn', 'broker'])"
    )
    with listener, open(env.log_path, "ab") as log:
        argv = [sys.executable, "-c", script, str(listener.fileno())]
        env.broker = env.popen(argv, pass_fds=[listener.fileno()], stdout=log, stderr=log)
    wait_served(env)
    lock = paths.beside(env.socket).lock
    os.unlink(env.socket)
    os.unlink(lock)
    eventually(lambda: env.log_lines("name-restored"))
    assert os.path.exists(lock)
    assert not os.path.exists(env.socket)


# -- without inotify --------------------------------------------------------------------------------


def test_without_inotify_it_looks_now_and_then(new_env: NewEnv, tmp_path: Any):
    """Where the kernel cannot say so, a lost name is found by looking."""
    (tmp_path / "blind.py").write_text(
        "import sys\n"
        "from grn.broker import namewatch\n"
        "import grn.broker.guard as guard\n"
        "def none():\n"
        "    raise OSError(24, 'Too many open files')\n"
        "guard.NameWatch = none\n"
        "from grn.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n",
        encoding="ascii",
    )
    env = new_env(start=False)
    env.environ["PYTHONPATH"] = str(tmp_path)
    env.program = ["blind"]
    env.start()
    os.unlink(env.socket)
    wait_restored(env)
    assert env.log_lines("no-inotify")
