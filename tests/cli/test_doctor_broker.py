"""`grn doctor` on brokers, sockets and what is kept on disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.broker.store import FILE_NAME, SCHEMA_VERSION, ProfileStore
from grn.doctor import machinelook
from grn.doctor.brokerlook import ask_broker, place_of
from tests.cli.patient import Machine, Report, files_of
from tests.env import PATIENCE_S, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv
    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]


# -- the broker -----------------------------------------------------------------------------------


def test_a_running_broker_is_described(env: BrokerEnv, machine: Machine) -> None:
    """Pid, devices, leases and waiters; it goes on undisturbed."""
    pid = env.start()
    report = machine.report(**env.environ)
    assert report.status == 0
    text = report.text("ok", about="broker")
    assert f"pid {pid} of " in text
    assert report.of("note", about="broker") == []
    assert "2 devices, 0 leases, 0 waiting" in text
    assert env.status()["leases"] == []


def test_a_holder_is_shown_with_its_lease(
    new_env: Callable[..., BrokerEnv], machine: Machine, kind: str
) -> None:
    """A job's memory on a card, under its lease; the broker's own claim is no finding."""
    env = new_env(f"{kind}:1x10000MiB")
    talker = env.talker()
    grant = talker.acquire("train", memory_mib=3000)
    job = env.job(talker, grant, "--memory=2000MiB")
    job.wait_holding()
    report = machine.report(**env.environ)
    assert report.status == 0
    (holder,) = report.answer["holders"]
    assert (holder["pid"], holder["mib"], holder["lease"]) == (job.pid, 2000, grant["lease"])
    assert "grn.testing.job" in holder["command"]


def test_a_broker_that_hangs_is_a_problem(env: BrokerEnv, machine: Machine) -> None:
    """It is named by its pid, and not waited for."""
    pid = env.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        report = machine.report(**env.environ)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"kill -9 {pid}" in report.text("problem", about="broker")


def test_whoever_listens_and_never_speaks_is_not_waited_for(tmp_path: Path) -> None:
    """Nor is one whose queue is full."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen(0)
        first = ask_broker(path, within_s=0.5)
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
            for other in (one, two):
                other.setblocking(False)
                other.connect_ex(path)
            second = ask_broker(path, within_s=0.5)
    assert "answer" in first.problem
    assert second.problem


def test_a_dead_brokers_last_warnings_are_told(env: BrokerEnv, machine: Machine) -> None:
    """Of the last broker in the log beside the socket, not of those before."""
    del machine
    with open(f"{env.socket}.log", "w", encoding="utf-8") as log:
        log.write("1 WARNING old\n2 INFO ready pid=5 socket=x\n3 WARNING new\n4 INFO fine\n")
    assert ask_broker(env.socket).log_warnings == ("3 WARNING new",)


def test_how_the_sockets_path_was_chosen(tmp_path: Path) -> None:
    """An option, the variable, the runtime folder, or the temporary folder."""
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert place_of({}, "/x/s", "--socket").chosen == "--socket"
    found = place_of(runtime, None, "")
    if not found.is_system:
        assert found.path == str(tmp_path / "grn" / "broker.sock")
        assert "XDG_RUNTIME_DIR" in found.chosen
        assert "temporary" in place_of({}, None, "").chosen


def test_a_socket_that_is_none_is_a_problem(machine: Machine) -> None:
    """Something else stands at the path."""
    os.mkdir(machine.socket)
    assert machine.report().status == 1


# -- what is kept on disk -------------------------------------------------------------------------


def test_profiles_are_counted_without_a_byte_written(tmp_path: Path) -> None:
    """Their number and size; no file appears beside the store."""
    store = ProfileStore(str(tmp_path / FILE_NAME))
    store.put_many({("train", "T4"): {"a": 1}, ("eval", "T4"): {"a": 1}})
    store.close()
    before = files_of(str(tmp_path))
    state = machinelook.state_of(str(tmp_path))
    assert (state.profiles, state.store_mib, state.store_problem) == (2, 1, "")
    assert files_of(str(tmp_path)) == before


def test_a_damaged_store_is_a_problem(tmp_path: Path) -> None:
    """So is one of a newer version."""
    path = tmp_path / FILE_NAME
    path.write_bytes(b"no database at all" * 100)
    assert "cannot be read" in machinelook.state_of(str(tmp_path)).store_problem
    path.unlink()
    store = ProfileStore(str(path))
    store._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store.close()
    assert "newer" in machinelook.state_of(str(tmp_path)).store_problem


AS_NOBODY = """
import os, sys
import encodings.idna, importlib.metadata, sqlite3, tempfile, shutil, traceback, pynvml, msgpack
import grn.cli.doctor, grn.devices.simulated
from grn.cli.main import main
importlib.metadata.version("msgpack")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_else_in_a_home_that_cannot_be_written(machine: Machine) -> None:
    """The state folder is named as a problem, with the variable that cures it."""
    os.chmod(machine.folder, 0o755)  # noqa: S103 - the others may look
    os.chmod(os.path.dirname(machine.folder), 0o755)  # noqa: S103 - the same
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, "doctor", "--json"],
        env={**machine.environ, "GRN_SOCKET": f"{machine.folder}/s", "GRN_DEVICES": "none"},
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    text = Report(done).text("problem", about="state")
    assert "uid 65534" in text
    assert "GRN_STATE_DIR" in text


def test_a_store_that_is_no_file_is_a_finding(tmp_path: Path) -> None:
    """A pipe of its name would keep SQLite waiting for ever."""
    os.mkfifo(tmp_path / FILE_NAME)
    assert "is not a regular file" in machinelook.state_of(str(tmp_path)).store_problem
