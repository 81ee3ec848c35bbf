"""`grn doctor` asks other programs, and waits for none."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from grn.doctor import machinelook
from grn.doctor.asking import ask
from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]


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
