"""What several commands write: whole labelled lines, no byte lost, nothing waited for in vain."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

WRITER = """\
import os, sys
for i in range(1000):
    os.write(1, b"%s %04d %s\\n" % (sys.argv[1].encode(), i, b"x" * 190))
"""
BYTES = """\
import os
for _ in range(3940):
    os.write(1, b"a" * 1000 if _ < 3803 else b"a" * 940 if _ == 3803 else b"")
os.write(1, b"\\xc0end\\n")
"""


def script(grn_run: GrnRun, text: str) -> str:
    """Write a script; return its name."""
    with open(grn_run.path("script.py"), "w", encoding="ascii") as file:
        file.write(text)
    return "script.py"


def test_lines_of_many_jobs_stay_whole(grn_run: GrnRun) -> None:
    """8 jobs with 1000 lines each: 8000 whole lines, each labelled, in order per job; no escapes."""
    name = script(grn_run, WRITER)
    with open(grn_run.path("out"), "wb") as out:
        done = grn_run(
            "-q",
            "--gpus=0",
            *(f"python3 {name} job{n}" for n in range(1, 9)),
            stdout=out,
            capture_output=False,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 0, done.stderr
    with open(grn_run.path("out"), "rb") as file:
        data = file.read()
    assert b"\x1b" not in data
    lines = data.splitlines()
    assert len(lines) == 8000
    seen: dict[int, int] = {}
    for line in lines:
        match = re.fullmatch(rb"\[(\d) python3 script.py job\d\] job(\d) (\d{4}) x{190}", line)
        assert match, line[:80]
        number, own, count = (int(part) for part in match.groups())
        assert number == own
        assert seen.get(number, -1) + 1 == count
        seen[number] = count


def test_lines_on_a_terminal_stay_whole_under_the_status_line(grn_run: GrnRun) -> None:
    """On a terminal labels may be coloured and a status line comes and goes; lines stay whole."""
    line = "for i in 1 2 3 4 5 6 7 8; do echo line-$i-{}; sleep 0.1; done"
    terminal = grn_run.in_terminal("--gpus=0", line.format("one"), line.format("two"))
    assert terminal.end() == 0
    eventually(lambda: b"2 of 2 ok" in terminal.screen)
    shown = re.sub(rb"\x1b\[[0-9;]*[mK]", b"", terminal.screen)
    lines = [part.rpartition(b"\r")[2] for part in shown.replace(b"\r\n", b"\n").split(b"\n")]
    for number, word in ((1, b"one"), (2, b"two")):
        label = b"[%d for i in 1 2 3 4 5 6 7..] " % number
        own = [text for text in lines if text.startswith(label + b"line")]
        assert own == [label + b"line-%d-%s" % (i, word) for i in range(1, 9)]
    assert b"\x1b[36m[1 for" in terminal.screen
    assert b"2 running" in shown


def test_no_color_is_respected(grn_run: GrnRun) -> None:
    """NO_COLOR takes the colour off the labels on a terminal."""
    terminal = grn_run.in_terminal("-q", "--gpus=0", "echo one", "echo two", NO_COLOR="1")
    assert terminal.end() == 0
    eventually(lambda: b"two" in terminal.screen)
    assert b"\x1b" not in terminal.screen


def test_colour_depends_on_each_stream_alone(grn_run: GrnRun) -> None:
    """Labels on a terminal are coloured, those of the other stream in a file are not."""
    line = "echo one; echo two >&2"
    words = [*grn_run.argv("-q", "--gpus=0"), f"'{line}'", "true"]
    terminal = grn_run.in_terminal(argv=["/bin/sh", "-c", f"exec {' '.join(words)} 2>errors"])
    assert terminal.end() == 0
    eventually(lambda: b"one" in terminal.screen)
    assert b"\x1b[36m[1 echo one" in terminal.screen
    with open(grn_run.path("errors"), "rb") as file:
        assert file.read() == b"[1 echo one; echo two >&2] two\n"


def test_stderr_goes_to_stderr(grn_run: GrnRun) -> None:
    """What a job writes to its standard error comes out of ours, and only there."""
    done = grn_run("-q", "--gpus=0", "echo out; echo err >&2", "true")
    assert done.stdout == b"[1 echo out; echo err >&2] out\n"
    assert done.stderr == b"[1 echo out; echo err >&2] err\n"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_bytes_that_are_no_utf8_pass_unchanged(grn_run: GrnRun, locale: str) -> None:
    """3.8 MB and a byte that no decoder takes: kept to the byte in the file and on our output."""
    name = script(grn_run, BYTES)
    expected = b"a" * 3_803_940 + b"\xc0end\n"
    done = grn_run(
        "-q",
        "--gpus=0",
        "--log-dir=logs",
        f"python3 {name}",
        "true",
        environ={"LC_ALL": locale},
    )
    assert done.returncode == 0
    with open(grn_run.path("logs/1.log"), "rb") as file:
        assert file.read() == expected
    parts = done.stdout.splitlines()
    assert all(part.startswith(b"[1 python3 script.py +] ") for part in parts[1:])
    assert b"".join(part.partition(b"] ")[2] for part in parts) == expected[:-1]


def test_a_log_of_one_command_keeps_its_output_as_it_passes(grn_run: GrnRun) -> None:
    """With --log-dir one command's output goes through unlabelled, and into the file."""
    done = grn_run("-q", "--gpus=0", "--log-dir=logs", "--", "printf", "a\\300b")
    assert done.stdout == b"a\xc0b"
    with open(grn_run.path("logs/1.log"), "rb") as file:
        assert file.read() == b"a\xc0b"


def test_a_last_line_without_newline_gets_one(grn_run: GrnRun) -> None:
    """So that the next job's line begins at the left."""
    done = grn_run("-q", "--gpus=0", "printf end", "true")
    assert done.stdout == b"[1 printf end] end\n"


def test_a_background_process_with_the_pipe_does_not_hold_us(grn_run: GrnRun) -> None:
    """The run ends with its jobs, not with whoever inherited their output."""
    begun = time.monotonic()
    done = grn_run("-q", "--gpus=0", "sleep 60 & echo $! >left; echo early", "true")
    assert time.monotonic() - begun < 30
    assert done.stdout == b"[1 sleep 60 & echo $! >le..] early\n"
    os.kill(int(grn_run.wait_for("left")), signal.SIGKILL)


def test_a_background_process_is_heard_while_others_run(grn_run: GrnRun) -> None:
    """What a finished job left in the background is still labelled until the run ends."""
    waits = "while ! test -e late; do sleep 0.05; done"
    first = "(sleep 0.3; echo late; touch late) &"
    done = grn_run("-q", "--gpus=0", first, f"{waits}; sleep 0.3")
    assert done.stdout == b"[1 (sleep 0.3; echo late;..] late\n"


def test_a_slow_reader_loses_nothing(grn_run: GrnRun) -> None:
    """A reader that pauses gets every line in the end, and jobs wait rather than fill our memory."""
    name = script(grn_run, WRITER)
    process = grn_run.start("-q", "--gpus=0", *(f"python3 {name} job{n}" for n in range(1, 5)))
    assert process.stdout is not None
    time.sleep(1)
    data = process.stdout.read()
    assert process.wait(PATIENCE_S) == 0
    assert len(data.splitlines()) == 4000


def test_a_signal_is_served_while_the_reader_stands_still(grn_run: GrnRun) -> None:
    """A paused pager must not make us deaf to the request to end."""
    name = script(grn_run, "import os\nwhile True: os.write(1, b'y' * 99 + b'\\n')\n")
    process = grn_run.start("-q", "--gpus=0", f"python3 {name}", "true")
    assert process.stdout is not None
    process.stdout.peek(1)  # type: ignore[attr-defined]  # Popen's pipes are buffered readers
    time.sleep(0.5)
    process.terminate()

    def ended() -> bool:
        process.terminate()  # the second one gives up what nobody reads
        return process.poll() is not None

    eventually(ended)
    assert process.returncode == -signal.SIGTERM


def test_a_closed_reader_ends_the_run_quietly(grn_run: GrnRun) -> None:
    """As other tools do under `| head`: jobs are stopped, and we end by SIGPIPE without a word."""
    name = script(grn_run, "import os\nwhile True: os.write(1, b'y' * 99 + b'\\n')\n")
    process = grn_run.start("-q", "--gpus=0", "--grace=0.3", f"python3 {name}", "sleep 60")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(PATIENCE_S) == -signal.SIGPIPE
    assert b"Traceback" not in process.stderr.read()


def test_json_moves_the_jobs_output_to_stderr(grn_run: GrnRun) -> None:
    """With --json standard output is one JSON object and nothing else."""
    done = grn_run("-q", "--gpus=0", "--json", "echo one", "true")
    assert done.stdout.startswith(b'{"schema": 1, "jobs": [')
    assert done.stderr == b"[1 echo one] one\n"
    done = grn_run("-q", "--gpus=0", "--json", "--", "echo", "one")
    assert done.stdout.startswith(b'{"schema": 1, "jobs": [')
    assert done.stderr == b"one\n"
