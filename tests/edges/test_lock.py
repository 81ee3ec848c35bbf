"""One broker per socket: the lock, and the socket's name."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from grn import paths
from grn.broker.lock import (
    InstanceLock,
    TakenError,
    bind_socket,
    is_served,
    refuse_if_served,
    still_own,
    unlink_own,
)
from grn.errors import PathError
from grn.rules import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BROKER = """
import sys
from grn.broker.lock import InstanceLock, bind_socket
from grn.errors import PathError
print("here", flush=True)
sys.stdin.readline()
try:
    lock = InstanceLock(sys.argv[1])
    lock.acquire()
    listener = bind_socket(sys.argv[1])
except PathError as error:
    print(error.message, flush=True)
else:
    print("serving", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the socket is to be."""
    return str(tmp_path / "broker.sock")


@pytest.fixture
def start(path: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start processes that become the broker when they are told to."""
    started: list[subprocess.Popen[str]] = []

    def launch() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", BROKER, path],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        assert said(process) == "here"
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """Wait for a line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(*processes: subprocess.Popen[str]) -> list[str]:
    """Let all begin, then return what each says."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [said(process) for process in processes]


def kill(process: subprocess.Popen[str]) -> None:
    """End a process without a chance to tidy up."""
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def answering(path: str) -> Iterator[Callable[[bytes], None]]:
    """Serve at the path: send these bytes to whoever connects (nothing: close at once)."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve(answer: bytes) -> None:
        def loop() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if answer:
                        connection.sendall(answer)
                        connection.recv(1 << 16)
                        connection.recv(1)

        threading.Thread(target=loop, daemon=True).start()

    yield serve
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_the_first_holder_keeps_the_lock(
    path: str, start: Callable[[], subprocess.Popen[str]]
) -> None:
    """A second broker is told the pid of the first, which is untouched."""
    first, second = start(), start()
    assert go(first) == ["serving"]
    inode = os.stat(path).st_ino
    (answer,) = go(second)
    assert answer.startswith(f"already running, pid {first.pid}")
    assert path in answer
    assert os.stat(path).st_ino == inode


def test_the_lock_dies_with_its_holder(
    path: str, start: Callable[[], subprocess.Popen[str]]
) -> None:
    """After kill -9 the next broker starts at once over the stale socket."""
    first, second = start(), start()
    assert go(first) == ["serving"]
    kill(first)
    assert os.path.exists(path)
    assert go(second) == ["serving"]


def test_of_brokers_that_start_at_once_exactly_one_wins(
    path: str, start: Callable[[], subprocess.Popen[str]]
) -> None:
    """Over a stale socket, twenty times: one serves, the other is told so, nothing is left over."""
    winners: list[subprocess.Popen[str]] = []
    for _ in range(20):
        racers = [start(), start()]
        for winner in winners:
            kill(winner)
        answers = go(*racers)
        winners = [r for r, answer in zip(racers, answers, strict=True) if answer == "serving"]
        assert len(winners) == 1, answers
        assert sum(answer.startswith("already running") for answer in answers) == 1, answers
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        for loser in set(racers) - set(winners):
            kill(loser)
    assert sorted(os.listdir(os.path.dirname(path))) == ["broker.sock", "broker.sock.lock"]


def test_the_lock_file_stays_after_release(path: str) -> None:
    """Unlinking it would allow two holders of one name."""
    lock = InstanceLock(path)
    lock.acquire()
    lock.release()
    assert os.path.exists(paths.beside(path).lock)
    again = InstanceLock(path)
    again.acquire()
    again.release()


def test_a_lock_whose_file_was_replaced_is_not_ours_any_more(path: str) -> None:
    """A broker can notice that someone removed its lock, since another could start now."""
    lock = InstanceLock(path)
    assert not lock.still_ours()
    lock.acquire()
    assert lock.still_ours()
    os.unlink(lock.path)
    assert not lock.still_ours()
    lock.release()


def test_a_lock_whose_file_was_removed_can_be_taken_again(path: str) -> None:
    """Its holder gets the new file's lock, and keeps others out as before."""
    lock = InstanceLock(path)
    lock.acquire()
    os.unlink(lock.path)
    lock.acquire()
    assert lock.still_ours()
    with pytest.raises(TakenError, match=f"pid {os.getpid()}"):
        InstanceLock(path).acquire()
    lock.release()


def test_a_lock_that_another_got_meanwhile_is_the_others(path: str) -> None:
    """Who comes too late is told, and may try again when the other one has left."""
    lock, other = InstanceLock(path), InstanceLock(path)
    lock.acquire()
    os.unlink(lock.path)
    other.acquire()
    with pytest.raises(TakenError):
        lock.acquire()
    assert not lock.still_ours()
    other.release()
    lock.acquire()
    assert lock.still_ours()
    lock.release()


def test_a_symlink_is_no_lock(path: str) -> None:
    """A planted link must not make us write into its target."""
    os.symlink("/dev/null", paths.beside(path).lock)
    with pytest.raises(PathError, match="cannot open the lock"):
        InstanceLock(path).acquire()


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_the_socket_is_0600_whatever_the_umask(path: str, umask: int) -> None:
    """Only its user can connect, and the process's umask is as before."""
    before = os.umask(umask)
    try:
        listener = bind_socket(path)
    finally:
        assert os.umask(before) == umask
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    listener.close()


def test_the_socket_listens(path: str) -> None:
    """Once the path has its name, clients can connect."""
    with bind_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_path_of_107_bytes_can_be_bound_and_replaced(tmp_path: Path) -> None:
    """The name under which the socket is bound first needs no room of its own."""
    path = f"{tmp_path}/".ljust(107, "x")
    bind_socket(path).close()
    with bind_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_client_sees_a_readable_name_of_its_peer(path: str) -> None:
    """An error that names the peer names a place that people know, not a descriptor's number."""
    with bind_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        assert client.getpeername() == f"{path}.new"


def test_a_stale_socket_is_replaced(path: str) -> None:
    """Connection refused proves that nobody serves there."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with bind_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_what_a_killed_start_left_behind_is_replaced(path: str) -> None:
    """A broker killed between bind and rename leaves no litter that grows."""
    folder = os.path.dirname(path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{path}.new")
    with bind_socket(path):
        assert os.listdir(folder) == ["broker.sock"]


@pytest.mark.parametrize("kind", ["file", "folder", "symlink"])
def test_what_is_no_socket_is_never_removed(tmp_path: Path, path: str, kind: str) -> None:
    """A file, a folder or a symlink at the path is refused and stays."""
    place = tmp_path / "broker.sock"
    if kind == "file":
        place.touch()
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("x")
    before = os.lstat(path)
    with pytest.raises(PathError, match=f"is a {kind}, not a socket"):
        bind_socket(path)
    assert os.lstat(path).st_ino == before.st_ino


def test_a_broker_that_answers_is_named(path: str, answering: Callable[[bytes], None]) -> None:
    """A living broker outside our lock is never robbed of its name; its pid is in the error."""
    answering(wire.encode({"op": "hello", "magic": "GRN", "version": 1, "pid": 4711}))
    with pytest.raises(PathError, match="already running, pid 4711"):
        bind_socket(path)
    assert paths.check_socket_place(path)


def test_silence_is_not_death(path: str) -> None:
    """Something that accepts but does not answer in time is left alone."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with pytest.raises(PathError, match=r"not within 0\.2 s; it was not touched"):
            bind_socket(path, patience_s=0.2)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_a_full_queue_of_connections_is_not_death(path: str) -> None:
    """A server too busy to accept is a server."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen(0)
        client.connect(path)
        with pytest.raises(PathError, match="it was not touched"):
            bind_socket(path, patience_s=0.2)


def test_who_serves_is_known_at_once(path: str) -> None:
    """Somebody listens, even with a full queue; a dead socket and an empty path serve nobody."""
    assert not is_served(path)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        assert not is_served(path)
        server.listen(0)
        client.connect(path)
        assert is_served(path)
    assert not is_served(path)


def test_a_broker_that_serves_without_the_lock_is_found(
    path: str, answering: Callable[[bytes], None]
) -> None:
    """A starting broker can ask before it touches anything of another one."""
    refuse_if_served(path + ".other")
    answering(wire.encode({"op": "hello", "magic": "GRN", "version": 1, "pid": 4711}))
    with pytest.raises(TakenError, match="already running, pid 4711"):
        refuse_if_served(path)


def test_another_programs_socket_is_left_alone(
    path: str, answering: Callable[[bytes], None]
) -> None:
    """An answer that is not our protocol means: somebody else's."""
    answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(PathError, match="something other than a broker"):
        bind_socket(path)


def test_a_server_that_hangs_up_is_left_alone(
    path: str, answering: Callable[[bytes], None]
) -> None:
    """It lives as long as it accepts connections."""
    answering(b"")
    with pytest.raises(PathError, match="closes them at once; it was not touched"):
        bind_socket(path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    """The system's reason is in the message."""
    with pytest.raises(PathError, match=r"cannot listen at .*No such file"):
        bind_socket(str(tmp_path / "none" / "broker.sock"))


def test_an_own_socket_is_unlinked(path: str) -> None:
    """A broker that leaves takes its socket with it."""
    with bind_socket(path) as listener:
        assert still_own(path, listener)
        unlink_own(path, listener)
    assert not os.path.exists(path)


def test_another_brokers_socket_stays(path: str) -> None:
    """A broker whose name was taken over in the meantime removes nothing."""
    with bind_socket(path) as old:
        os.rename(path, path + ".old")
        with bind_socket(path):
            assert not still_own(path, old)
            unlink_own(path, old)
            assert os.path.exists(path)


def test_a_socket_that_was_passed_in_stays(path: str) -> None:
    """What systemd made is systemd's to remove."""
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(path)
        assert still_own(path, passed)
        unlink_own(path, passed)
    assert os.path.exists(path)
