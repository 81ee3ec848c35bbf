"""`grn`: choosing a command, and how the process ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn import __version__
from grn.cli import main as cli
from grn.errors import BrokerUnavailable, UsageError, WaitExpired

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def grn(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m grn` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "grn", *words],
        check=False,
        text=True,
        capture_output=True,
        timeout=60,
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let `grn status` raise what is given."""

    def install(error: BaseException) -> None:
        def run(_argv: list[str]) -> int:
            raise error

        monkeypatch.setitem(cli.COMMANDS, "status", run)

    return install


def test_version_goes_to_stdout() -> None:
    """`grn --version` prints the version and ends with 0."""
    done = grn("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"grn {__version__}\n", "")


def test_help_names_every_command() -> None:
    """`grn --help` prints every command on stdout and ends with 0."""
    done = grn("--help")
    assert done.returncode == 0
    assert all(f"\n  {name}" in done.stdout for name in cli.COMMANDS)


def test_nothing_at_all_is_a_usage_error() -> None:
    """`grn` alone explains itself on stderr and ends with 2."""
    done = grn()
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: grn" in done.stderr


def test_unknown_command_suggests_the_nearest() -> None:
    """A mistyped command is named, with what was probably meant, and ends with 2."""
    done = grn("stauts")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'stauts'" in done.stderr
    assert "`grn status`" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(UsageError("no"), 2), (WaitExpired("no"), 75), (BrokerUnavailable("no"), 125)],
)
def test_errors_become_one_line_and_a_code(
    command: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: UsageError,
    status: int,
) -> None:
    """An error that GRN raises on purpose is one line on stderr and its own exit status."""
    command(error)
    assert cli.main(["status"]) == status
    assert capsys.readouterr().err == "grn status: no\n"


def test_interrupt_ends_by_its_signal() -> None:
    """Ctrl-C ends the process by SIGINT, so that a calling shell script stops too."""
    code = (
        "from grn.cli import main as cli\n"
        "def run(argv):\n raise KeyboardInterrupt\n"
        "cli.COMMANDS['status'] = run\n"
        "cli.main(['status'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGINT


def test_closed_pipe_ends_silently() -> None:
    """A reader that has left, as `head` does, causes no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "grn", "--help"],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    "words", ["--version", "nonsense", "status --help", "run --gpus", "config"]
)
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">&-", "2>&-", "2>/dev/full", ">/dev/full"])
def test_streams_that_nobody_can_write_to(streams: str, words: str) -> None:
    """A closed stream is /dev/null, one that is full costs one line; a traceback or 120 nothing."""
    run = f'"$0" -m grn {words}'
    usual = subprocess.run(["sh", "-c", run, sys.executable], check=False, capture_output=True)
    done = subprocess.run(
        ["sh", "-c", f"{run} {streams}", sys.executable], check=False, capture_output=True
    )
    if usual.stdout and streams == ">/dev/full":
        assert done.returncode == 125
        assert re.fullmatch(rb"grn.*: No space left on device\n", done.stderr)
    else:
        assert done.returncode == usual.returncode
        assert done.stderr == (b"" if "2>" in streams else usual.stderr)


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    """What is printed must never land in a database that was opened as number 1."""
    environ = {**os.environ, "GRN_STATE_DIR": str(tmp_path)}
    run = '"$0" -m grn queue add -- true >&- 2>&- <&-'
    assert (
        subprocess.run(["sh", "-c", run, sys.executable], env=environ, check=False).returncode == 0
    )
    done = subprocess.run(
        [sys.executable, "-m", "grn", "queue", "ls", "--json"],
        env=environ,
        capture_output=True,
        check=True,
    )
    assert [job["command"] for job in json.loads(done.stdout)["jobs"]] == ["true"]


def test_what_the_system_refuses_is_one_line() -> None:
    """An error of the operating system that nobody foresaw is told without a traceback, as 125."""
    code = (
        "from grn.cli import main as cli\n"
        "def run(argv):\n open('/nowhere/at/all')\n"
        "cli.COMMANDS['status'] = run\n"
        "cli.main(['status'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    text = "grn status: [Errno 2] No such file or directory: '/nowhere/at/all'\n"
    assert (done.returncode, done.stderr) == (125, text)


def test_only_the_chosen_command_is_imported() -> None:
    """Choosing a command imports no other command, and nothing heavy by itself."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import grn.cli.main\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        check=True,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )
    loaded = set(done.stdout.split())
    heavy = {
        "argparse",
        "asyncio",
        "dataclasses",
        "inspect",
        "json",
        "rich",
        "subprocess",
        "typing",
    }
    assert {"grn.cli.run", "grn.cli.broker", "grn.cli.status", "grn.cli.profiles"} & loaded == set()
    assert heavy & loaded == set()
