"""How `grn run` ends: exactly as its command did."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

SHOW = """\
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("X")]))
"""


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", -signal.SIGKILL),
        ("kill -TERM $$", -signal.SIGTERM),
        ("kill -INT $$", -signal.SIGINT),
        ("kill -SEGV $$", -signal.SIGSEGV),
    ],
)
def test_one_command_ends_the_process_as_it_ended_itself(
    grn_run: GrnRun, script: str, status: int
) -> None:
    """The exit code is the command's; a signal that ended it ends `grn run`, in both forms."""
    assert grn_run("--gpus=0", "-q", "--", "sh", "-c", script).returncode == status
    assert grn_run("--gpus=0", "-q", script).returncode == status


def test_a_signal_leaves_no_core_file_of_ours(grn_run: GrnRun) -> None:
    """The signal that is raised again writes no core: one of the command's is enough."""
    assert grn_run("-q", "--", "sh", "-c", "kill -ABRT $$").returncode == -signal.SIGABRT
    assert not [name for name in os.listdir(grn_run.folder) if name.startswith("core")]


def test_a_command_that_is_not_there_is_127(grn_run: GrnRun) -> None:
    """As `env` has it, with one line that names the command."""
    done = grn_run("-q", "--", "no-such-command", "x")
    assert (done.returncode, done.stderr) == (127, b"grn run: no-such-command: not found\n")


def test_a_file_that_is_no_program_is_126(grn_run: GrnRun) -> None:
    """As `env` has it: not executable, or a script without a first line that names its shell."""
    with open(grn_run.path("plain"), "w", encoding="ascii") as file:
        file.write("exit 0\n")
    done = grn_run("-q", "--", "./plain")
    assert (done.returncode, done.stderr) == (126, b"grn run: ./plain: permission denied\n")
    os.chmod(grn_run.path("plain"), 0o700)
    done = grn_run("-q", "--", "./plain")
    assert done.returncode == 126
    assert b"#!/bin/sh" in done.stderr


def test_the_path_of_the_jobs_environment_is_searched(grn_run: GrnRun) -> None:
    """A PATH given with --env is the one in which the command is found."""
    os.mkdir(grn_run.path("bin"))
    with open(grn_run.path("bin/tool"), "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 7\n")
    os.chmod(grn_run.path("bin/tool"), 0o700)
    path = f"{grn_run.path('bin')}:{os.environ['PATH']}"
    assert grn_run("-q", f"--env=PATH={path}", "--", "tool").returncode == 7


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (
            'python3 show.py --arg1 "Argument 1" --arg2 "Argument 2"',
            [["--arg1", "Argument 1", "--arg2", "Argument 2"], None],
        ),
        ("X=1 python3 show.py", [[], "1"]),
        ("python3 show.py 'a b' \"\" é日本", [["a b", "", "é日本"], None]),
        ("python3 show.py '$HOME'", [["$HOME"], None]),
        ("python3 show.py x | cat", [["x"], None]),
    ],
)
def test_a_quoted_line_means_what_it_means_to_a_shell(
    grn_run: GrnRun, line: str, seen: list[object]
) -> None:
    """Quotes, variables, pipes and empty words of a line are the shell's."""
    with open(grn_run.path("show.py"), "w", encoding="utf-8") as file:
        file.write(SHOW)
    done = grn_run("-q", line)
    assert json.loads(done.stdout) == seen


def test_words_after_the_dashes_meet_no_shell(grn_run: GrnRun) -> None:
    """After `--` every word reaches the program as it is, an empty one and a dash too."""
    with open(grn_run.path("show.py"), "w", encoding="utf-8") as file:
        file.write(SHOW)
    words = ["a b", "", "$HOME", "|", "--gpus", "x;y", "é日本"]
    done = grn_run("-q", "--", "python3", "show.py", *words)
    assert json.loads(done.stdout) == [words, None]


def test_one_command_has_our_standard_input(grn_run: GrnRun) -> None:
    """Standard input is the command's, to the last byte, and so is its end."""
    done = grn_run("-q", "--", "cat", input=b"\x00\xc0 bytes")
    assert done.stdout == b"\x00\xc0 bytes"


def test_several_commands_have_an_empty_standard_input(grn_run: GrnRun) -> None:
    """They cannot share one, so each sees its end at once."""
    done = grn_run("-q", "cat; echo end", "cat; echo end", input=b"not theirs\n")
    assert sorted(done.stdout.splitlines()) == [b"[1 cat; echo end] end", b"[2 cat; echo end] end"]


def test_inherited_descriptors_pass_through(grn_run: GrnRun) -> None:
    """A descriptor that the caller opened for the command, such as make's, reaches it."""
    reader, writer = os.pipe()
    script = f"import os; os.write({writer}, b'through')"
    done = grn_run("-q", "--", "python3", "-c", script, pass_fds=[writer])
    os.close(writer)
    assert done.returncode == 0
    assert os.read(reader, 100) == b"through"
    os.close(reader)


def test_the_command_sees_no_descriptor_of_ours(grn_run: GrnRun) -> None:
    """Only 0, 1 and 2 are open in the command: no socket, no pipe, no signal descriptor."""
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    assert grn_run("-q", "--", "python3", "-c", script).stdout == b"['0', '1', '2', '3']\n"


def test_the_command_finds_signals_as_a_shell_would_give_them(grn_run: GrnRun) -> None:
    """Nothing is blocked, and only what was ignored when we started is ignored."""
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    plain = grn_run("-q", "--", "sh", "-c", script).stdout
    assert plain.split() == [b"SigBlk:", b"0" * 16, b"SigIgn:", b"0" * 16]

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    ignoring = grn_run("-q", "--", "sh", "-c", script, preexec_fn=ignore).stdout.split()
    expected = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGUSR1 - 1)
    assert int(ignoring[3], 16) == expected


def test_a_caller_that_ignores_the_end_of_children_still_gets_the_status(grn_run: GrnRun) -> None:
    """An inherited SIG_IGN for SIGCHLD makes the kernel drop statuses; not ours."""

    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    assert grn_run("-q", "--", "sh", "-c", "exit 5", preexec_fn=ignore).returncode == 5


def test_closed_standard_descriptors_stay_closed(grn_run: GrnRun) -> None:
    """Without a standard input nothing of ours takes its number."""
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    line = " ".join(["exec", *grn_run.argv("-q", "--", "python3", "-c", f'"{script}"'), "<&-"])
    done = grn_run.env.popen(["sh", "-c", line], stdout=-1)
    out, _ = done.communicate(timeout=60)
    assert (done.returncode, out) == (0, b"['0', '1', '2']\n")


def test_several_commands_are_all_named_with_their_status(grn_run: GrnRun) -> None:
    """With 0, 3, 0 and a kill the status is not 0, and a summary has each one's own."""
    done = grn_run("-q", "exit 0", "exit 3", "exit 0", "kill -9 $$")
    assert done.returncode == 1
    rows = [line.split() for line in done.stderr.decode().splitlines()]
    assert [row[0] for row in rows[1:5]] == ["1", "2", "3", "4"]
    assert "ok" in rows[1]
    assert rows[2][-2:] == ["exit", "3"]
    assert "ok" in rows[3]
    assert rows[4][-4:] == ["137", "killed", "by", "SIGKILL"]


def test_several_good_commands_are_zero(grn_run: GrnRun) -> None:
    """The status of several is 0 only if all were 0."""
    assert grn_run("true", "true").returncode == 0


def test_the_lease_reaches_the_command(grn_run: GrnRun) -> None:
    """One device in the mask, and the lease's id; with 0 devices an empty mask, with none the old."""
    script = 'echo "${CUDA_VISIBLE_DEVICES-unset} ${GRN_LEASE:+lease}"'
    assert grn_run("-q", "--", "sh", "-c", script).stdout == b"0 lease\n"
    assert grn_run("-q", "--gpus=2", "--", "sh", "-c", script).stdout == b"0,1 lease\n"
    assert grn_run("-q", "--gpus=0", "--", "sh", "-c", script).stdout == b" lease\n"
    assert grn_run("-q", "--gpus=none", "--", "sh", "-c", script).stdout == b"unset lease\n"
    kept = grn_run(
        "-q", "--gpus=none", "--", "sh", "-c", script, environ={"CUDA_VISIBLE_DEVICES": "7"}
    )
    assert kept.stdout == b"7 lease\n"


def test_our_own_mask_narrows_what_the_command_may_get(grn_run: GrnRun) -> None:
    """A user who hid a device does not get it."""
    done = grn_run(
        "-q",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
        environ={"CUDA_VISIBLE_DEVICES": "1"},
    )
    assert done.stdout == b"1\n"


def test_a_command_inside_a_lease_gets_that_lease(grn_run: GrnRun) -> None:
    """Asking again inside a job cannot wait for the job itself: the outer lease is used."""
    inner = " ".join(grn_run.argv("-q", "--", "sh", "-c", "'echo $GRN_LEASE'"))
    done = grn_run("-q", "--memory=whole", "--gpus=2", f"echo $GRN_LEASE; {inner}")
    first, second = done.stdout.split()
    assert first == second
    assert done.returncode == 0
