"""Starting a broker on demand: once, detached, and with a clear word when it fails."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from grn import ondemand, paths, procs
from grn.errors import BrokerUnavailable, PathError
from grn.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A broker that serves, writes down who it is, and lives until it is killed.
SERVING = """
import json, os, signal, sys
from grn.broker.lock import InstanceLock, bind_socket
path, notes = sys.argv[1], sys.argv[2]
InstanceLock(path).acquire()
listener = bind_socket(path)
fds = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
       if os.path.exists(f"/proc/self/fd/{name}")}
about = {"pid": os.getpid(), "cwd": os.getcwd(), "umask": os.umask(0), "sid": os.getsid(0),
         "fds": fds, "env": dict(os.environ), "path": sys.path,
         "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
         "hup": signal.getsignal(signal.SIGHUP) == signal.SIG_DFL}
with open(notes, "a") as file:
    file.write(json.dumps(about) + "\\n")
print("serving now", flush=True)
os.write(3, b"READY %d\\n" % os.getpid())
os.close(3)
while True:
    listener.accept()
"""


class Broker:
    """What the brokers of one test wrote down of themselves."""

    def __init__(self, tmp_path: Path) -> None:
        self.socket = str(tmp_path / "broker.sock")
        self.notes = str(tmp_path / "notes")
        self.settings = Settings(socket=self.socket)

    def all(self) -> list[dict[str, object]]:
        """Return the notes of every broker that was started."""
        import json

        if not os.path.exists(self.notes):
            return []
        with open(self.notes) as file:
            return [json.loads(line) for line in file]

    def only(self) -> dict[str, object]:
        """Return the notes of the one broker that was started."""
        (about,) = self.all()
        return about


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that can be started on demand."""
    found = Broker(tmp_path)
    use(monkeypatch, SERVING, found.notes)
    yield found
    for about in found.all():
        pid = about["pid"]
        assert isinstance(pid, int)
        if procs.is_alive(pid, None):
            os.kill(pid, signal.SIGKILL)


def use(monkeypatch: pytest.MonkeyPatch, code: str, *words: str) -> None:
    """Let this program be the broker."""

    def command(path: str, _settings: Settings) -> list[str]:
        return [sys.executable, "-P", "-c", code, path, *words]

    monkeypatch.setattr(ondemand, "_command", command)


def test_a_broker_is_started_once_and_found_again(broker: Broker) -> None:
    """The first call starts one, the second connects to it."""
    for _ in range(2):
        ondemand.ensure_broker(broker.settings).close()
    assert len(broker.all()) == 1


def test_many_clients_at_the_same_instant_start_one_broker(broker: Broker) -> None:
    """Sixteen processes that find no broker end up with the same one."""
    go_read, go_write = os.pipe()
    children = [fork_client(broker, go_read) for _ in range(16)]
    os.close(go_read)
    os.write(go_write, b"x" * 16)
    os.close(go_write)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 16
    assert len(broker.all()) == 1


def fork_client(broker: Broker, go: int) -> int:
    """Fork a client that waits for a byte, then wants a broker."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(go, 1)
            ondemand.ensure_broker(broker.settings).close()
            status = 0
        finally:
            os._exit(status)
    return pid


def test_a_killed_broker_is_replaced(broker: Broker) -> None:
    """A stale socket does not hinder the next start."""
    ondemand.ensure_broker(broker.settings).close()
    pid = broker.only()["pid"]
    assert isinstance(pid, int)
    with os.fdopen(os.pidfd_open(pid)) as pidfd:
        os.kill(pid, signal.SIGKILL)
        import select

        select.select([pidfd], [], [], 10)
    ondemand.ensure_broker(broker.settings).close()
    assert len(broker.all()) == 2


def test_the_broker_is_detached(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own session, root folder, closed umask, no child of ours, nothing inherited."""
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setenv("PYTHONPATH", "some/where", prepend=os.pathsep)
    try:
        ondemand.ensure_broker(broker.settings).close()
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(inherited)
    about = broker.only()
    pid = about["pid"]
    assert isinstance(pid, int)
    assert about["sid"] != os.getsid(0)
    assert (about["cwd"], about["umask"], about["blocked"], about["hup"]) == ("/", 0o077, [], True)
    assert procs.parent(pid) != os.getpid()
    assert pid not in procs.descendants(os.getpid())
    fds = about["fds"]
    assert isinstance(fds, dict)
    assert fds["0"] == os.devnull
    assert fds["1"] == fds["2"] == paths.beside(broker.socket).log
    assert os.devnull not in [fds[name] for name in fds if name != "0"]
    assert os.path.abspath("some/where") in str(about["path"])


def test_relative_folders_are_those_of_who_starts_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker works in the root folder, where they would mean another place."""
    monkeypatch.setenv("GRN_STATE_DIR", "some/state")
    monkeypatch.setenv("GRN_CONFIG", "")
    ondemand.ensure_broker(broker.settings).close()
    env = broker.only()["env"]
    assert isinstance(env, dict)
    assert (env["GRN_STATE_DIR"], env["GRN_CONFIG"]) == (os.path.abspath("some/state"), "")


def test_a_subreaper_does_not_adopt_the_broker(broker: Broker) -> None:
    """A supervisor, which adopts its job's orphans, gets no broker among them, and stays one."""
    code = (
        "import ctypes, os, sys\n"
        "from grn import ondemand, procs\n"
        "from grn.settings import Settings\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "ondemand._command = lambda path, _: [sys.executable, '-c', *sys.argv[2:]]\n"
        "ondemand.ensure_broker(Settings(socket=sys.argv[1])).close()\n"
        "flag = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(37, ctypes.byref(flag), 0, 0, 0)\n"
        "print(flag.value, procs.descendants(os.getpid()))"
    )
    words = [broker.socket, SERVING, broker.socket, broker.notes]
    output = subprocess.run(
        [sys.executable, "-c", code, *words], check=True, capture_output=True, text=True
    ).stdout
    assert output == "1 []\n"


def test_the_brokers_environment_is_not_the_leases(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker started from inside a job belongs to no lease and sees all devices."""
    for name in ("GRN_LEASE", "GRN_DEVICES", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET"):
        monkeypatch.setenv(name, "1")
    ondemand.ensure_broker(broker.settings).close()
    env = broker.only()["env"]
    assert isinstance(env, dict)
    assert not {"GRN_LEASE", "GRN_DEVICES", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET"} & set(env)


def test_outside_a_lease_the_users_mask_is_the_brokers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices that a user chose for the session are what a broker manages."""
    monkeypatch.delenv("GRN_LEASE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    ondemand.ensure_broker(broker.settings).close()
    env = broker.only()["env"]
    assert isinstance(env, dict)
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_files_beside_the_socket_are_private(broker: Broker) -> None:
    """Log and locks are 0600, under any umask."""
    before = os.umask(0)
    try:
        ondemand.ensure_broker(broker.settings).close()
    finally:
        os.umask(before)
    beside = paths.beside(broker.socket)
    for path in (beside.log, beside.lock, beside.spawn_lock):
        assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_reason_that_a_broker_gives_is_passed_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ERROR line on the pipe becomes the error's text."""
    use(monkeypatch, "import os; os.write(3, b'ERROR no room for the journal\\n')")
    with pytest.raises(BrokerUnavailable, match="could not start: no room for the journal"):
        ondemand.ensure_broker(broker.settings)


def test_the_last_words_of_a_dead_broker_are_shown(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at the start is shown with the end of the log, of this start only, and its path."""
    log = paths.beside(broker.socket).log
    with open(log, "w") as file:
        file.write("an older story\n")
    use(monkeypatch, "raise SystemExit('the driver is asleep')")
    with pytest.raises(BrokerUnavailable) as caught:
        ondemand.ensure_broker(broker.settings)
    assert "died while it started" in caught.value.message
    assert "the driver is asleep" in caught.value.message
    assert log in caught.value.message
    assert "older story" not in caught.value.message


def test_a_broker_that_never_gets_ready_is_not_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time the client fails with a message."""
    monkeypatch.setattr(ondemand, "_READY_TIMEOUT_S", 0.3)
    stop = os.path.join(os.path.dirname(broker.socket), "stop")
    os.mkfifo(stop)
    use(monkeypatch, f"open({stop!r})")
    with pytest.raises(BrokerUnavailable, match=r"did not get ready within 0\.3 s"):
        ondemand.ensure_broker(broker.settings)
    with open(stop, "w"):  # lets it end
        pass


def test_a_broker_that_someone_starts_by_hand_is_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """'already running' with nobody listening yet means: in a moment."""
    use(monkeypatch, "import os; os.write(3, b'ERROR already running, pid 1\\n')")
    server = socket.socket(socket.AF_UNIX)
    asked = threading.Event()
    real = ondemand._serves_soon

    def noticed(path: str) -> bool:
        asked.set()
        return real(path)

    def serve() -> None:
        asked.wait(10)
        server.bind(broker.socket)
        server.listen()

    monkeypatch.setattr(ondemand, "_serves_soon", noticed)
    thread = threading.Thread(target=serve)
    thread.start()
    ondemand.ensure_broker(broker.settings).close()
    thread.join()
    server.close()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_else_in_the_sockets_place_is_named(broker: Broker, kind: str) -> None:
    """No broker is started where it could not listen."""
    if kind == "file":
        with open(broker.socket, "w"):
            pass
    else:
        os.mkdir(broker.socket)
    with pytest.raises(PathError, match=f"is a {kind}, not a socket"):
        ondemand.ensure_broker(broker.settings)
    assert broker.all() == []


def test_another_kind_of_socket_is_named(broker: Broker) -> None:
    """A datagram socket at the path is an error that names the path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(broker.socket)
        with pytest.raises(PathError, match=broker.socket):
            ondemand.ensure_broker(broker.settings)


def test_a_socket_that_we_may_not_use_is_named(broker: Broker) -> None:
    """EACCES is no missing broker: a second one would share the devices out twice."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user for a moment")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(broker.socket)
        server.listen()
        os.chmod(broker.socket, 0o600)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.chdir(os.path.dirname(broker.socket))
                os.setuid(65534)
                ondemand.connect("broker.sock")
            except PathError as error:
                status = 0 if "no permission to connect" in error.message else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_only_its_owner_starts_the_machines_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the machine has a broker that is down, users do not start rivals."""
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", broker.socket)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BrokerUnavailable, match="only its owner can start it"):
        ondemand.ensure_broker(broker.settings)


def test_the_spawn_lock_is_free_afterwards(broker: Broker) -> None:
    """Neither the client nor the broker keeps it, and its file stays."""
    ondemand.ensure_broker(broker.settings).close()
    with open(paths.beside(broker.socket).spawn_lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_log_that_grew_long_is_set_aside(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts a thousand times does not fill the disk."""
    monkeypatch.setattr(ondemand, "_LOG_LIMIT", 10)
    log = paths.beside(broker.socket).log
    with open(log, "w") as file:
        file.write("a long story\n")
    ondemand.ensure_broker(broker.settings).close()
    with open(f"{log}.old") as old, open(log) as new:
        assert (old.read(), new.read()) == ("a long story\n", "serving now\n")


def test_the_command_carries_the_settings() -> None:
    """The broker gets the socket, the pipe and every setting that is not the default."""
    command = ondemand._command("/s.sock", Settings(policy="pack", devices="sim:1x4GiB"))
    assert command[:4] == [sys.executable, "-P", "-m", "grn"]
    assert command[4:8] == ["broker", "--on-demand", "--ready-fd=3", "--socket=/s.sock"]
    assert {"--policy=pack", "--devices=sim:1x4GiB"} == set(command[8:])


def test_a_python_without_a_name_cannot_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedded interpreter says what to do instead."""
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(BrokerUnavailable, match="start one with: grn broker"):
        ondemand._command("/s.sock", Settings())
