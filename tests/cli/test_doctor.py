"""`grn doctor` as a command: on machines of all kinds, whatever is broken there."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker.store import FILE_NAME, SCHEMA_VERSION, ProfileStore
from grn.clashes import clashing_bindings, clashing_package
from grn.devices.claim import claim
from grn.doctor import machinelook
from grn.doctor.asking import ask
from grn.doctor.brokerlook import ask_broker, place_of
from grn.doctor.driverlook import look
from grn.doctor.gathering import settings_of
from tests.devices.nvml_machine import environment
from tests.env import PATIENCE_S, ROOT, eventually
from tests.fakenvml.box import VERSION_MISMATCH, Box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

    NewBox = Callable[..., Box]

LONG_S = 600.0


class Report:
    """What `grn doctor --json` printed."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr == ""
        self.status = done.returncode
        self.answer: dict[str, Any] = json.loads(done.stdout)
        assert self.answer["schema"] == 1
        assert self.answer["problems"] == len(self.of("problem"))
        assert self.status == (1 if self.answer["problems"] else 0)

    def of(self, *levels: str, about: str = "") -> list[dict[str, str]]:
        """The findings of these levels, about one topic or all."""
        return [
            finding
            for finding in self.answer["findings"]
            if finding["level"] in levels and about in ("", finding["about"])
        ]

    def text(self, *levels: str, about: str = "") -> str:
        """The same as one text."""
        return "\n".join(f"{f['what']} -> {f['do']}" for f in self.of(*levels, about=about))


class Machine:
    """A home and a socket's place of the test's own, in which `grn doctor` is run."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.socket = os.path.join(folder, "broker.sock")
        self.environ = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": folder,
            "COLUMNS": "80",
            "GRN_SOCKET": self.socket,
        }

    def run(
        self, *words: str, box: Box | None = None, cwd: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        driver = box.environ if box is not None else {}
        return subprocess.run(
            [sys.executable, "-m", "grn", "doctor", *words],
            env={**self.environ, **driver, **variables},
            cwd=cwd,
            capture_output=True,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=4 * PATIENCE_S,
        )

    def report(
        self, *words: str, box: Box | None = None, cwd: str | None = None, **variables: str
    ) -> Report:
        """Run it with `--json`."""
        return Report(self.run("--json", *words, box=box, cwd=cwd, **variables))


@pytest.fixture
def machine(tmp_path: Path, clean_environ: None) -> Machine:
    """A machine without a broker."""
    del clean_environ
    folder = tmp_path / "home"
    folder.mkdir()
    return Machine(str(folder))


def files_of(folder: str) -> set[str]:
    """All that there is below a folder."""
    return {
        os.path.join(at, name)
        for at, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }


# -- no broker, no driver -------------------------------------------------------------------------


def test_without_driver_and_broker_nothing_is_wrong(machine: Machine) -> None:
    """Simulated devices are all that is wanted: no problem, and nothing is made or started."""
    report = machine.report(GRN_DEVICES="sim:2x16GiB")
    assert report.status == 0
    assert "none runs" in report.text("ok", about="broker")
    assert report.text("ok", about="device").count("simulated") == 2
    assert files_of(machine.folder) == set()


def test_each_finding_has_the_promised_keys(machine: Machine) -> None:
    """Level, topic, what was found, what to do."""
    report = machine.report()
    assert all(set(f) >= {"level", "about", "what", "do"} for f in report.answer["findings"])
    topics = {finding["about"] for finding in report.answer["findings"]}
    assert {"python", "driver", "mask", "socket", "broker", "state", "cpus", "ram"} <= topics


def test_text_is_plain_and_narrow(machine: Machine) -> None:
    """80 columns and no escape sequence where it does not go to a terminal."""
    done = machine.run(GRN_DEVICES="sim:2x16GiB")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert "No problem found" in done.stdout


def test_a_terminal_is_served_too(machine: Machine) -> None:
    """With lines and colour, and the same sentences."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "grn", "doctor"],
        env={**machine.environ, "TERM": "xterm", "GRN_DEVICES": "sim:2x16GiB"},
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
    )
    os.close(theirs)
    text = b""
    try:
        while select.select([ours], [], [], PATIENCE_S)[0]:
            text += os.read(ours, 65536)
    except OSError:  # the other side is closed: how a terminal tells its end
        pass
    os.close(ours)
    assert child.wait(PATIENCE_S) == 0
    assert b"none runs" in text


def test_quiet_leaves_out_what_is_well(machine: Machine) -> None:
    """`-q` shows notes and problems only."""
    done = machine.run("-q", GRN_DEVICES="sim:1x1GiB", CUDA_VISIBLE_DEVICES="9")
    assert not any(line.startswith("ok ") for line in done.stdout.splitlines())
    assert "PROBLEM  mask" in done.stdout


def test_a_broken_configuration_file_is_a_finding(machine: Machine) -> None:
    """It is named, and the rest is looked at all the same."""
    path = os.path.join(machine.folder, "config.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write("devices = [[\n")
    report = machine.report(GRN_CONFIG=path)
    assert path in report.text("problem", about="settings")
    assert "none runs" in report.text("ok", about="broker")


def test_a_broken_flavor_is_a_finding(machine: Machine) -> None:
    """File and line are named, as `grn config` names them, in the user's file."""
    path = os.path.join(machine.folder, "config.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write("cpu_reserve = 1\n[flavors.big]\ngpus = 'many'\n")
    report = machine.report(GRN_CONFIG=path)
    (finding,) = report.of("problem", about="configuration")
    assert f"{path}:2, [flavors.big], key gpus" in finding["what"]
    assert not report.of("problem", about="settings")


@pytest.mark.parametrize(("name", "prefix"), [("grn.toml", ""), ("pyproject.toml", "[tool.grn]\n")])
def test_a_broken_project_file_is_a_finding(machine: Machine, name: str, prefix: str) -> None:
    """That of the folder in which it is asked for; what is no TOML has its line as well."""
    path = os.path.join(machine.folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{prefix}flavors = ?\n")
    (finding,) = machine.report(cwd=machine.folder).of("problem", about="configuration")
    assert path in finding["what"]
    assert f"at line {1 + prefix.count(chr(10))}" in finding["what"]
    assert not machine.report(cwd="/").of("problem", about="configuration")


def test_a_bad_variable_is_a_finding(machine: Machine) -> None:
    """So is an unknown description of devices."""
    report = machine.report(GRN_MARGIN="much")
    assert "GRN_MARGIN" in report.text("problem", about="settings")
    assert "neither" not in machine.report("--devices=sim:1x1GiB").text("problem")
    assert "'foo'" in machine.report("--devices=foo").text("problem", about="device")


def test_settings_that_are_wrong_still_find_the_broker() -> None:
    """The socket is taken from where it was named."""
    settings, problem = settings_of({}, {"GRN_SOCKET": "/a/b", "GRN_POLICY": "best", "HOME": "/h"})
    assert settings.socket == "/a/b"
    assert settings.state_dir == "/h/.local/state/grn"
    assert "GRN_POLICY" in problem


@pytest.mark.parametrize(
    ("mask", "level", "words"),
    [
        ("1,0", "ok", "leaves devices 1, 0"),
        ("GPU-51d00000-0000-4000-8000-000000000001", "ok", "by UUID"),
        ("", "note", "hides every device"),
        ("0,x", "problem", "entry 2"),
        ("0,0", "problem", "names a device twice"),
        ("7", "problem", "past the last device"),
    ],
)
def test_the_mask_of_this_shell(machine: Machine, mask: str, level: str, words: str) -> None:
    """It is read as CUDA reads it, and the entry that is wrong is named."""
    report = machine.report(GRN_DEVICES="sim:2x16GiB", CUDA_VISIBLE_DEVICES=mask)
    assert words in report.text(level, about="mask")
    assert report.status == (1 if level == "problem" else 0)


# -- the driver -----------------------------------------------------------------------------------


def test_a_driver_is_described(machine: Machine, new_box: NewBox) -> None:
    """Version, CUDA, library, each card, and who holds what, with user and command."""
    box = new_box("2x24GiB")
    box.add_process(0, 18000, pid=os.getpid())
    report = machine.report(box=box)
    assert report.status == 0
    text = report.text("ok", about="driver")
    assert "570.124.06, CUDA 12.8, 2 cards" in text
    assert box.library in text
    assert box.uuid(1) in report.text("ok", about="device")
    (holder,) = report.answer["holders"]
    assert (holder["device"], holder["pid"], holder["mib"]) == (box.uuid(0), os.getpid(), 18000)
    assert (holder["lease"], bool(holder["user"]), bool(holder["command"])) == (None, True, True)


def test_a_mismatch_after_an_upgrade(machine: Machine, new_box: NewBox) -> None:
    """The library does not fit the kernel module: a problem with its cure."""
    box = new_box()
    box.fail("nvmlInit", code=VERSION_MISMATCH)
    assert "reboot" in machine.report(box=box).text("problem", about="driver")


def test_a_driver_that_is_not_loaded(machine: Machine, new_box: NewBox) -> None:
    """The library alone is a problem, with its cure."""
    box = new_box()
    box.remove_driver()
    assert "modprobe" in machine.report(box=box).text("problem", about="driver")


def test_a_driver_that_hangs_is_said_and_not_waited_for(machine: Machine, new_box: NewBox) -> None:
    """The command ends, though the driver would not answer for ten minutes."""
    box = new_box()
    box.fail("nvmlInit", delay_s=LONG_S)
    started_s = time.monotonic()
    report = machine.report(box=box)
    assert time.monotonic() - started_s < LONG_S / 2
    assert "did not answer" in report.text("problem", about="driver")


def test_a_card_that_hangs_later_costs_only_itself(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found, and then did not answer: the other one has a reading."""
    monkeypatch.setattr("grn.doctor.driverlook.ANSWER_WITHIN_S", 4.0)
    box = new_box("2x24GiB")
    box.fail("nvmlDeviceGetRemappedRows", card=0, delay_s=LONG_S)
    with environment(box.environ):
        found = look(within_s=PATIENCE_S)
    assert list(found.readings) == [box.uuid(1)]


def test_prohibited_and_lost_cards(machine: Machine, new_box: NewBox) -> None:
    """One is a note with the command that cures it, the other a problem."""
    box = new_box("3x24GiB,lost=1")
    box.set(0, mode=2)
    report = machine.report(box=box)
    assert "card 0 is in prohibited compute mode" in report.text("note", about="device")
    assert "nvidia-smi -i 0 -c DEFAULT" in report.text("note", about="device")
    assert "card 1" in report.text("problem", about="device")


def test_the_claim_of_another_broker(machine: Machine, new_box: NewBox) -> None:
    """Who has the card is named; with it all cards are gone, so it is a problem."""
    box = new_box("1x24GiB")
    claims = claim(box.uuids)
    try:
        report = machine.report(box=box)
    finally:
        claims.close()
    text = report.text("problem", about="device")
    assert f"pid {os.getpid()}" in text
    assert "GRN_SOCKET" in text


def test_a_clashing_binding_is_named(machine: Machine, new_box: NewBox, tmp_path: Path) -> None:
    """A `pynvml` that is not the right one, and the package that brought it."""
    (tmp_path / "pynvml.py").write_text("old = True\n")
    (tmp_path / "nvidia_ml_py3-7.352.0.dist-info").mkdir()
    before = os.environ.get("PYTHONPATH")
    path = f"{tmp_path}:{before}" if before else str(tmp_path)
    report = machine.report(box=new_box(), PYTHONPATH=path)
    text = report.text("problem", about="python")
    assert str(tmp_path / "pynvml.py") in text
    assert "pip uninstall nvidia-ml-py3" in text


def test_packages_that_clash_are_found_by_their_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older negotiator and three bindings; the newer `pynvml` brings no module of its own."""
    names = (
        "gpu_resource_negotiator-0.1.dist-info",
        "nvidia_ml_py3-7.352.0.dist-info",
        "py3nvml-0.2.7.egg-info",
        "pynvml-11.5.0.dist-info",
    )
    for name in names:
        (tmp_path / name).mkdir()
    newer = tmp_path / "newer"
    (newer / "pynvml-13.0.1.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(newer), str(tmp_path / "x.zip")])
    assert "pip uninstall gpu-resource-negotiator" in (clashing_package() or "")
    assert clashing_bindings() == [
        (name, str(tmp_path)) for name in sorted(("nvidia-ml-py3", "py3nvml", "pynvml"))
    ]


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


# -- other programs -------------------------------------------------------------------------------


def test_a_program_is_asked_for_a_bounded_time() -> None:
    """Its answer, or nothing if it fails, is not there, or does not end."""
    assert ask(["cat"], PATIENCE_S, said="hello\n") == "hello\n"
    assert ask(["false"], PATIENCE_S) is None
    assert ask(["/no/such/program"], PATIENCE_S) is None
    assert ask(["sleep", "600"], 0.2) is None


def test_whoever_keeps_a_pipe_open_is_not_waited_for() -> None:
    """A child of the program that was asked may live on with its output."""
    sleeper = ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"]
    assert ask(sleeper, 0.2) is None


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, str]]:
    """Install a control program that does this, and a pipe folder with a control socket."""

    def install(script: str) -> dict[str, str]:
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(str(tmp_path / "control"))
        return {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}

    return install


def test_an_mps_daemon_is_asked_for_its_servers(mps: Callable[[str], dict[str, str]]) -> None:
    """By its own control program, with the folder that was named."""
    environ = mps('read line; test "$line" = get_server_list && echo 4711')
    assert machinelook.mps_of(environ).answer == "4711\n"


def test_an_mps_daemon_that_hangs(
    mps: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a problem, and not waited for."""
    monkeypatch.setattr(machinelook, "_MPS_WITHIN_S", 0.2)
    assert "does not answer" in machinelook.mps_of(mps("exec sleep 600")).problem


def test_no_mps_daemon(tmp_path: Path) -> None:
    """Where the folder has no control socket there is none."""
    found = machinelook.mps_of({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert (found.chosen, found.present, found.problem) == (True, False, "")


# -- what others pay ------------------------------------------------------------------------------


def test_other_commands_do_not_load_it() -> None:
    """Neither `grn run` nor `grn status` imports a module of it."""
    code = (
        "import sys\n"
        "import grn.cli.main, grn.cli.run, grn.cli.status, grn.broker.server\n"
        "print(*[name for name in sys.modules if 'doctor' in name or name == 'grn.cli.devices'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, text=True, capture_output=True, timeout=60
    )
    assert done.stdout.split() == []


def test_it_leaves_no_process_behind(new_box: NewBox) -> None:
    """What asked the driver ends with it, also where it was stuck."""
    box = new_box()
    box.fail("nvmlInit", delay_s=LONG_S)
    with environment(box.environ):
        look(within_s=1.0)
    sign = f"FAKE_NVML_CONFIG={box.config}".encode()

    def left() -> list[int]:
        return [
            int(name)
            for name in os.listdir("/proc")
            if name.isdigit() and int(name) != os.getpid() and sign in _environ(name)
        ]

    eventually(lambda: not left(), what="workers have ended")


def _environ(pid: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
