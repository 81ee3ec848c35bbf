"""The standard error of one command: read along for words about memory, and otherwise its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

EVERY_BYTE = "import os; os.write(2, bytes(range(256)) * 40)"
ALTERNATES = "import os\nfor i in range(300):\n    os.write(1, b'out %d\\n' % i); os.write(2, b'err %d\\n' % i)"
IN_TURN = "".join(f"out {i}\nerr {i}\n" for i in range(300)).encode()
LEFT_OVER = (
    "(trap '' HUP; echo $$ >left.new; while ! test -e go; do sleep 0.05; done;"
    " echo late >&2; echo whole >whole) & while ! test -e left.new; do sleep 0.05; done;"
    " echo $! >left; exit 4"
)
SHOWS = (
    "import os, sys\n"
    "print(os.isatty(0), os.isatty(1), os.isatty(2), *os.get_terminal_size(2), flush=True)\n"
    "print(os.ttyname(0) == os.ttyname(2), flush=True)\n"
)
SIZED = 'stty rows 31 cols 97; exec "$@" >out'
FOLLOWS = (
    "import os, signal, time\n"
    "def told(*_): os.write(1, b'told %d %d\\n' % os.get_terminal_size(2))\n"
    "signal.signal(signal.SIGWINCH, told)\n"
    "print('ready', flush=True)\n"
    "while not os.path.exists('go'): time.sleep(0.05)\n"
)


def touch(grn_run: GrnRun, name: str) -> None:
    """Make a file that a command waits for."""
    with open(grn_run.path(name), "w", encoding="ascii"):
        pass


@pytest.mark.parametrize("code", [EVERY_BYTE, "import os; os.write(2, b'x' * 3_000_000)"])
def test_it_passes_byte_for_byte(grn_run: GrnRun, code: str) -> None:
    """Every byte, a last line without an end, and more than any buffer holds."""
    done = grn_run("-q", "--", sys.executable, "-c", code)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", plain.stderr)


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_one_destination_keeps_the_order_of_both(grn_run: GrnRun, kind: str) -> None:
    """With `2>&1` what the command wrote in turn comes out in turn."""
    if kind == "pipe":
        done = grn_run(
            "-q",
            "--",
            sys.executable,
            "-c",
            ALTERNATES,
            capture_output=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.stdout == IN_TURN
        return
    with open(grn_run.path("log"), "wb") as log:
        grn_run(
            "-q",
            "--",
            sys.executable,
            "-c",
            ALTERNATES,
            capture_output=False,
            stdout=log,
            stderr=log,
        )
    with open(grn_run.path("log"), "rb") as file:
        assert file.read() == IN_TURN


def test_other_output_is_not_touched(grn_run: GrnRun) -> None:
    """Standard output of its own is the very file, and without a device all is."""
    code = "import os; print(os.fstat(1).st_ino, os.fstat(2).st_ino)"
    with open(grn_run.path("out"), "wb") as out, open(grn_run.path("err"), "wb") as err:
        inodes = [os.fstat(out.fileno()).st_ino, os.fstat(err.fileno()).st_ino]
        for gpus in ("1", "0"):
            words = ("-q", f"--gpus={gpus}", "--", sys.executable, "-c", code)
            grn_run(*words, capture_output=False, stdout=out, stderr=err)
    with open(grn_run.path("out"), encoding="ascii") as file:
        with_device, without = ([int(word) for word in line.split()] for line in file)
    assert with_device[0] == inodes[0]
    assert with_device[1] != inodes[1]
    assert without == inodes


def test_a_reader_that_leaves_is_met_by_the_command(grn_run: GrnRun) -> None:
    """As without us: SIGPIPE at its next word there, and nothing if it says no more."""
    talks = "while :; do echo word >&2; sleep 0.01; done"
    process = grn_run.start("-q", "--", "sh", "-c", talks)
    assert process.stderr is not None
    process.stderr.read(5)
    process.stderr.close()
    assert process.wait(PATIENCE_S) == -signal.SIGPIPE
    process = grn_run.start("-q", "--", "sh", "-c", "trap '' PIPE; echo a >&2; echo b >&2; exit 6")
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(PATIENCE_S) == 6


def test_background_processes_do_not_hold_us_and_are_heard(grn_run: GrnRun) -> None:
    """We end with the command; what is written later still arrives, and kills nobody."""
    with open(grn_run.path("log"), "wb") as log:
        process = grn_run.start("-q", "--", "sh", "-c", LEFT_OVER, stderr=log)
        assert process.wait(PATIENCE_S) == 4
    left = int(grn_run.wait_for("left"))
    assert procs.start_time(left) is not None
    touch(grn_run, "go")
    assert grn_run.wait_for("whole") == "whole"
    wait_gone(left)

    def arrived() -> bool:
        with open(grn_run.path("log"), "rb") as file:
            return file.read() == b"late\n"

    eventually(arrived, what="the late line")


def test_who_waits_for_the_end_of_stderr_waits_no_longer_than_without_us(grn_run: GrnRun) -> None:
    """The pipe that we were given ends when the last background process has closed its own."""
    process = grn_run.start("-q", "--", "sh", "-c", LEFT_OVER)
    assert process.wait(PATIENCE_S) == 4
    touch(grn_run, "go")
    assert process.stderr is not None
    assert process.stderr.read() == b"late\n"


def test_a_command_finds_a_terminal_where_we_have_one(grn_run: GrnRun) -> None:
    """With its own standard output the error stream is a stand-in of the same size."""
    terminal = grn_run.in_terminal(
        argv=["/bin/sh", "-c", SIZED, "sh", *grn_run.argv("-q", "--", sys.executable, "-c", SHOWS)]
    )
    assert terminal.end() == 0, terminal.screen
    with open(grn_run.path("out"), encoding="ascii") as file:
        assert file.read() == "True False True 97 31\nFalse\n"


def test_a_terminal_for_all_is_left_alone(grn_run: GrnRun) -> None:
    """Programs set its modes through any of the three: they find the real one."""
    terminal = grn_run.in_terminal("-q", "--", sys.executable, "-c", SHOWS)
    assert terminal.end() == 0
    eventually(lambda: b"True True True" in terminal.screen)
    eventually(lambda: terminal.screen.endswith(b"True\r\n"))


def test_on_a_terminal_that_is_read_along_the_order_is_kept(grn_run: GrnRun) -> None:
    """With --retries-on-oom both outputs take one way, and both are terminals still."""
    terminal = grn_run.in_terminal(
        "-q", "--retries-on-oom=1", "--", sys.executable, "-c", ALTERNATES
    )
    assert terminal.end() == 0
    eventually(lambda: terminal.screen == IN_TURN.replace(b"\n", b"\r\n"), what="all of it")
    terminal = grn_run.in_terminal("-q", "--retries-on-oom=1", "--", sys.executable, "-c", SHOWS)
    assert terminal.end() == 0
    eventually(lambda: b"True True True" in terminal.screen)


def test_a_change_of_the_terminals_size_is_followed(grn_run: GrnRun) -> None:
    """The command is told when the stand-in has the new size."""
    terminal = grn_run.in_terminal("-q", "--retries-on-oom=1", "--", sys.executable, "-c", FOLLOWS)
    terminal.wait_for(b"ready")
    terminal.resize(rows=40, columns=132)
    terminal.wait_for(b"told 132 40")
    touch(grn_run, "go")
    assert terminal.end() == 0


def test_job_control_works_where_a_terminal_is_read_along(grn_run: GrnRun) -> None:
    """Ctrl-Z stops us and the command, Ctrl-C ends both."""
    script = "echo $$ >pids.new; mv pids.new pids; exec sleep 60"
    terminal = grn_run.in_terminal("-q", "--retries-on-oom=1", "--", "sh", "-c", script)
    job = int(grn_run.wait_for("pids"))
    terminal.type(b"\x1a")
    eventually(lambda: _state(terminal.pid) == _state(job) == "T", what="both are stopped")
    os.killpg(terminal.pid, signal.SIGCONT)
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT
    assert procs.start_time(job) is None


def test_all_that_was_written_before_a_death_is_shown(grn_run: GrnRun) -> None:
    """On a terminal, too: a crash takes none of its last words with it."""
    code = "import os; os.write(2, b'w' * 20000 + b'END'); os.abort()"
    terminal = grn_run.in_terminal("-q", "--retries-on-oom=1", "--", sys.executable, "-c", code)
    assert terminal.end() == -signal.SIGABRT
    eventually(lambda: terminal.screen.endswith(b"w" * 20000 + b"END"), what="its last words")


def test_a_stderr_that_was_closed_stays_closed(grn_run: GrnRun) -> None:
    """The command finds it as we did."""
    code = "import os; print(os.path.exists('/proc/self/fd/2'))"
    line = f'"$@" {grn_run.path("closed.py")} 2>&-'
    with open(grn_run.path("closed.py"), "w", encoding="ascii") as file:
        file.write(code)
    seen = []
    for words in (["python3"], grn_run.argv("-q", "--", "python3")):
        process = grn_run.env.popen(["sh", "-c", line, "sh", *words], stdout=-1)
        seen.append((process.communicate(timeout=PATIENCE_S)[0], process.returncode))
    assert seen[1] == seen[0]


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]
