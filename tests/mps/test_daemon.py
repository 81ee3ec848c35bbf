"""Whether an MPS daemon answers, as seen from outside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from grn.mps import pipe_folder
from grn.mps.daemon import Question, ask, find
from tests.env import PATIENCE_S
from tests.mps.fakedaemon import FakeDaemon, install_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    NewDaemon = Callable[..., FakeDaemon]


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment in which the tool is found."""
    path = install_tool(tmp_path)
    monkeypatch.setenv("PATH", path)
    return {**os.environ, "PATH": path}


@pytest.fixture
def new_daemon(tmp_path: Path) -> Iterator[NewDaemon]:
    """Start daemons that end with the test."""
    made: list[FakeDaemon] = []

    def start(**options: str | bool) -> FakeDaemon:
        made.append(FakeDaemon(tmp_path / "mps", **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for daemon in made:
        daemon.kill()


def test_the_folder_is_where_the_driver_looks() -> None:
    """The variable that a CUDA program reads, or the driver's default."""
    assert pipe_folder({}) == "/tmp/nvidia-mps"  # noqa: S108 - the driver's
    assert pipe_folder({"CUDA_MPS_PIPE_DIRECTORY": ""}) == "/tmp/nvidia-mps"  # noqa: S108
    assert pipe_folder({"CUDA_MPS_PIPE_DIRECTORY": "/a/b/"}) == "/a/b"


def test_a_daemon_that_lives_answers(environ: dict[str, str], new_daemon: NewDaemon) -> None:
    """It lists its servers, in the time allowed."""
    daemon = new_daemon()
    found = find(daemon.folder)
    assert found is not None
    assert found.uid == os.getuid()
    assert ask(daemon.folder, environ, PATIENCE_S)
    process = found.process()
    assert process is not None
    assert process[0] == daemon.process.pid


def test_a_folder_without_a_socket_has_no_daemon(tmp_path: Path) -> None:
    """Nothing is asked there."""
    assert find(str(tmp_path)) is None


def test_a_socket_whose_daemon_was_killed_does_not_answer(
    environ: dict[str, str], new_daemon: NewDaemon
) -> None:
    """Files prove nothing: they outlive who made them."""
    daemon = new_daemon()
    daemon.kill()
    found = find(daemon.folder)
    assert found is not None
    assert found.process() is None
    assert not ask(daemon.folder, environ, PATIENCE_S)


def test_a_daemon_that_hangs_is_waited_for_no_longer_than_allowed(
    environ: dict[str, str], new_daemon: NewDaemon
) -> None:
    """A question has a deadline, and leaves no process behind."""
    daemon = new_daemon(hangs=True)
    assert not ask(daemon.folder, environ, 0.2)
    question = Question(daemon.folder, environ)
    assert not question.answered()
    with pytest.raises(ChildProcessError):
        os.waitpid(question._process.pid, os.WNOHANG)


def test_without_the_tool_nobody_is_asked(
    new_daemon: NewDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the folder was passed into a container, nothing is promised."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not ask(new_daemon().folder, {"PATH": str(tmp_path)}, PATIENCE_S)


def test_another_daemon_is_told_from_the_first(new_daemon: NewDaemon) -> None:
    """One that was started anew has to be asked anew."""
    first = new_daemon()
    before = find(first.folder)
    assert find(first.folder) == before
    first.kill()
    new_daemon()
    assert find(first.folder) != before


def test_a_daemon_under_a_mask_renumbers_devices(new_daemon: NewDaemon) -> None:
    """Then an index in a client's mask means another device."""
    plain = find(new_daemon().folder)
    assert plain is not None
    assert not plain.may_be_masked()
    masked = find(new_daemon(CUDA_VISIBLE_DEVICES="1").folder)
    assert masked is not None
    assert masked.may_be_masked()


def test_a_daemon_that_cannot_be_seen_may_be_masked(new_daemon: NewDaemon) -> None:
    """What nobody can say is not taken for granted."""
    daemon = new_daemon()
    os.unlink(os.path.join(daemon.folder, "nvidia-cuda-mps-control.pid"))
    found = find(daemon.folder)
    assert found is not None
    assert found.may_be_masked()
