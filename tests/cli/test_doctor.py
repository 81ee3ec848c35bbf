"""`grn doctor` as a command: what it shows, where nothing is wrong and where the configuration is."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.doctor.driverlook import look
from grn.doctor.gathering import settings_of
from tests.cli.patient import LONG_S, Machine, files_of
from tests.devices.nvml_machine import environment
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]


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
