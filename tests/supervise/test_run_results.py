"""What a run leaves for people and programs: the summary, JSON, and advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

KEYS = {
    "command",
    "type",
    "exit_code",
    "outcome",
    "devices",
    "peak_mib",
    "waited_s",
    "ran_s",
}


def test_json_has_every_job(grn_run: GrnRun) -> None:
    """One object of schema 1; an end by a signal is 128 + n, and named."""
    done = grn_run("-q", "--json", "--memory=1000", "exit 0", "exit 3", "kill -9 $$")
    run = json.loads(done.stdout)
    assert run["schema"] == 1
    assert all(job.keys() >= KEYS for job in run["jobs"])
    assert [job["exit_code"] for job in run["jobs"]] == [0, 3, 137]
    assert [job["outcome"] for job in run["jobs"]] == ["ok", "failed", "killed"]
    assert [job["signal"] for job in run["jobs"]] == [None, None, 9]
    assert all(len(job["devices"]) == 1 for job in run["jobs"])


def test_a_status_descriptor_gets_one_object(grn_run: GrnRun) -> None:
    """Codes can collide; the object on --status-fd cannot. The command does not inherit it."""
    reader, writer = os.pipe()
    script = f"test -e /proc/self/fd/{writer}; echo open=$?; exit 75"
    done = grn_run(f"--status-fd={writer}", "-q", "--", "sh", "-c", script, pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        status = json.loads(file.read())
    assert done.stdout == b"open=1\n"
    assert (done.returncode, status["exit_code"], status["problem"]) == (75, 75, None)
    assert status["schema"] == 1
    assert status.keys() >= KEYS


def test_a_status_descriptor_tells_our_own_failures_apart(grn_run: GrnRun) -> None:
    """A request that cannot be met is 125 with a problem, not a command that ended with 125."""
    reader, writer = os.pipe()
    grn_run(f"--status-fd={writer}", "-q", "--gpus=3", "--", "true", pass_fds=[writer])
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        status = json.loads(file.read())
    assert status["exit_code"] == 125
    assert status["problem"]


def test_commands_that_never_repeat_get_advice(grn_run: GrnRun) -> None:
    """A sweep by seed and date learns nothing: the summary says which arguments to declare."""
    lines = [f"true --date {n}-{n} --seed {n} --lr 1" for n in range(4)]
    done = grn_run("--gpus=0", *lines)
    assert b"--ignore-arg date --ignore-arg seed" in done.stderr
    done = grn_run("--gpus=0", "--ignore-arg=seed", "--ignore-arg=date", *lines)
    assert b"--ignore-arg" not in done.stderr


def test_quiet_says_nothing_when_all_is_well(grn_run: GrnRun) -> None:
    """-q leaves the commands' own output."""
    done = grn_run("-q", "--gpus=0", "echo one", "true")
    assert (done.stdout, done.stderr) == (b"[1 echo one] one\n", b"")


def test_progress_is_told_in_lines_where_there_is_no_terminal(grn_run: GrnRun) -> None:
    """Start with the device, end with what is known."""
    done = grn_run("--memory=1000", "exit 0", "exit 3")
    lines = done.stderr.decode().splitlines()
    assert "[1 exit 0] started on device 0" in lines
    assert "[2 exit 3] started on device 1" in lines
    assert any(line.startswith("[2 exit 3] exit 3, ") for line in lines)


def test_explain_runs_nothing_and_needs_no_broker(grn_run: GrnRun) -> None:
    """The request and the environment are shown; nothing is started, not even a broker."""
    socket = grn_run.path("none.sock")
    done = grn_run(
        *("--explain", "--memory=4GiB", f"--socket={socket}", "--", "touch", "started"),
        environ={"OMP_NUM_THREADS": "3"},
    )
    assert done.returncode == 0
    text = done.stdout.decode()
    assert "type: touch started" in text
    assert "4 GiB" in text
    assert "CUDA_VISIBLE_DEVICES" in text
    assert [line.split()[-1] for line in text.splitlines() if "OMP_NUM" in line] == ["kept"]
    assert not os.path.exists(grn_run.path("started"))
    assert not os.path.exists(socket)


def test_usage_is_2_and_one_line(grn_run: GrnRun) -> None:
    """A mistake in the arguments costs nothing and names itself."""
    done = grn_run("--memory=lots", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith(b"grn run: ")
    assert done.stderr.count(b"\n") == 1
    done = grn_run("python3", "train.py")
    assert done.returncode == 2
    assert b"-- " in done.stderr


def test_the_short_way_imports_little() -> None:
    """`grn run -- true` is over before a heavy module could have been loaded."""
    script = "import sys, grn.cli.main, grn.cli.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    heavy = {
        *("dataclasses", "typing", "inspect", "asyncio", "subprocess", "pathlib", "rich", "psutil"),
        *("sqlite3", "logging", "json", "shutil", "tempfile", "tomllib", "contextlib", "threading"),
        *("argparse", "re", "random", "uuid", "concurrent", "difflib", "shlex", "termios"),
    }
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, check=True
    )
    loaded = set(done.stdout.decode().split()) - set(bare.stdout.decode().split())
    assert not loaded & heavy
