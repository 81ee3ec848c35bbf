"""Under systemd: the socket is passed in, readiness is told, and jobs inherit nothing of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from grn.client import connect
from grn.errors import BrokerUnavailable
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.connection import Connection
    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]

# What systemd does: it listens, and becomes the service with the socket as descriptor 3.
LAUNCHER = """
import os, socket, sys
path, count, pid = sys.argv[1:4]
sock = socket.socket(socket.AF_UNIX)
sock.bind(path)
if count != "deaf":
    sock.listen()
os.dup2(sock.fileno(), 3)
os.set_inheritable(3, True)
os.environ["LISTEN_FDS"] = "1" if count == "deaf" else count
os.environ["LISTEN_PID"] = pid or str(os.getpid())
os.environ["LISTEN_FDNAMES"] = "grn"
os.execv(sys.executable, [sys.executable, "-m", "grn", "broker"])
"""


def launch(env: BrokerEnv, count: str = "1", pid: str = "", path: str = "") -> None:
    """Start the broker as systemd would."""
    argv = [sys.executable, "-c", LAUNCHER, path or env.socket, count, pid]
    with open(env.log_path, "ab") as log:
        env.broker = env.popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")


def _connected(env: BrokerEnv) -> Connection | None:
    try:
        return connect(env.settings)
    except BrokerUnavailable:
        return None


def test_the_passed_socket_is_served_and_left_in_place(new_env: NewEnv):
    """A broker serves the socket that it was given, and does not remove its name at the end."""
    env = new_env(start=False)
    launch(env)
    connection = eventually(lambda: _connected(env), what="it listens")
    assert connection.broker["pid"] == env.pid
    connection.close()
    inode = os.stat(env.socket).st_ino
    assert env.stop() == 0
    assert os.stat(env.socket).st_ino == inode


def test_readiness_and_leaving_are_told(new_env: NewEnv):
    """The service manager hears READY=1 once the broker serves, and STOPPING=1 at its end."""
    env = new_env(start=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{env.folder}/notify")
        manager.settimeout(PATIENCE_S)
        env.environ["NOTIFY_SOCKET"] = f"{env.folder}/notify"
        launch(env)
        assert manager.recv(1024) == b"READY=1"
        connect(env.settings).close()
        assert env.stop() == 0
        assert manager.recv(1024) == b"STOPPING=1"


def test_a_socket_for_another_process_is_not_taken(new_env: NewEnv):
    """Variables that were inherited and mean another process are ignored."""
    env = new_env(start=False)
    launch(env, pid="1", path=f"{env.folder}/not-mine")
    eventually(lambda: os.path.exists(env.socket))
    eventually(lambda: env.log_lines(" ready "))
    assert connect(env.settings).broker["pid"] == env.pid


def test_what_is_no_listening_socket_is_refused(new_env: NewEnv):
    """More than one descriptor, or one that does not listen, stops the start with the reason."""
    env = new_env(start=False)
    for count in ("2", "deaf"):
        launch(env, count=count, path=f"{env.folder}/{count}")
        assert env.broker is not None
        assert env.broker.wait(PATIENCE_S) == 125
        env.broker = None
    assert len(env.log_lines("exactly one listening Unix stream socket")) == 2
