"""The interrupt matrix: who is signalled, how, and that nothing of the job is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

# Each job writes the pids of its long-lived processes, then goes on for a minute.
PLAIN = "echo $$ >pids.new; mv pids.new pids; exec sleep 60"
IGNORES_INT = "trap '' INT; echo $$ >pids.new; mv pids.new pids; while :; do sleep 0.2; done"
OWN_SESSION = (
    "setsid sh -c 'trap \"\" INT; echo $$ >inner; while :; do sleep 0.2; done' &"
    " while ! test -s inner; do sleep 0.05; done; echo $$ $(cat inner) >pids.new;"
    " mv pids.new pids; wait"
)
TWO_COMMANDS = "echo $$ >pids.new; mv pids.new pids; sleep 60; touch went-on; sleep 60"
JOBS = {
    "plain": PLAIN,
    "ignores-int": IGNORES_INT,
    "own-session": OWN_SESSION,
    "two-commands": TWO_COMMANDS,
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def pids_of(grn_run: GrnRun) -> list[int]:
    """Wait until the job runs; return its processes."""
    return [int(word) for word in grn_run.wait_for("pids").split()]


def _only_lease(grn_run: GrnRun) -> dict[str, Any]:
    (lease,) = grn_run.env.status()["leases"]
    return lease


def lease_is_free(grn_run: GrnRun) -> bool:
    """Tell whether the broker holds nothing for anybody."""
    return not grn_run.env.status()["leases"]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_us_ends_the_whole_job(
    grn_run: GrnRun, job: str, number: signal.Signals
) -> None:
    """INT, TERM or HUP from `kill`: every process is gone when we are, and we end by that signal."""
    process = grn_run.start("-q", "--grace=0.3", "--", "sh", "-c", JOBS[job])
    pids = pids_of(grn_run)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == -number
    assert [procs.start_time(pid) for pid in pids] == [None] * len(pids)
    eventually(lambda: lease_is_free(grn_run), what="a free lease")
    assert not _exists(grn_run, "went-on")


@pytest.mark.parametrize("job", JOBS)
def test_ctrl_c_ends_the_whole_job(grn_run: GrnRun, job: str) -> None:
    """Ctrl-C in a terminal: every process is gone when we are, and a shell would see 130."""
    terminal = grn_run.in_terminal("-q", "--grace=0.3", "--", "sh", "-c", JOBS[job])
    pids = pids_of(grn_run)
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT
    assert [procs.start_time(pid) for pid in pids] == [None] * len(pids)
    eventually(lambda: lease_is_free(grn_run), what="a free lease")
    assert not _exists(grn_run, "went-on")


@pytest.mark.parametrize("job", JOBS)
def test_the_command_dies_with_us(grn_run: GrnRun, job: str) -> None:
    """SIGKILL of us: the kernel kills the command; the lease is free when all it started is gone."""
    process = grn_run.start("-q", "--", "sh", "-c", JOBS[job])
    pids = pids_of(grn_run)
    process.kill()
    wait_gone(pids[0])
    orphans = pids[1:]
    if orphans:  # without device memory so far: they may want what is booked at any moment
        eventually(
            lambda: set(orphans) <= {*_only_lease(grn_run)["left_over"]}, what="a kept lease"
        )
        assert _only_lease(grn_run)["state"] == "draining"
    grn_run.end_strays()  # what the command had started are nobody's to end
    eventually(lambda: lease_is_free(grn_run), what="a free lease")


def test_ctrl_c_reaches_a_command_once(grn_run: GrnRun) -> None:
    """The terminal has sent the signal to the command already: it is not passed on a second time."""
    script = (
        "trap 'echo int >>hits' INT; echo $$ >pids.new; mv pids.new pids;"
        " n=0; while test $n -lt 10; do sleep 0.1; n=$((n+1)); done; exit 4"
    )
    terminal = grn_run.in_terminal("-q", "--", "sh", "-c", script)
    pids_of(grn_run)
    terminal.type(b"\x03")
    assert terminal.end() == 4
    with open(grn_run.path("hits"), encoding="ascii") as file:
        assert file.read() == "int\n"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_other_signals_are_passed_on(grn_run: GrnRun, number: signal.Signals) -> None:
    """USR1, USR2 and QUIT reach the command, which decides; we go on."""
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo {name} >got; exit 9' {name}; echo $$ >pids.new; mv pids.new pids; while :; do sleep 0.1; done"
    process = grn_run.start("-q", "--", "sh", "-c", script)
    pids_of(grn_run)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 9
    assert grn_run.wait_for("got") == name


def test_a_command_that_cleans_up_ends_as_it_chose(grn_run: GrnRun) -> None:
    """After TERM the command's own exit status counts, if it ends by itself in time."""
    script = "trap 'exit 42' TERM; echo $$ >pids.new; mv pids.new pids; while :; do sleep 0.1; done"
    process = grn_run.start("-q", "--", "sh", "-c", script)
    pids_of(grn_run)
    process.terminate()
    assert process.wait(PATIENCE_S) == 42


def test_a_command_that_ignores_everything_is_killed(grn_run: GrnRun) -> None:
    """TERM, the grace, then KILL; what a shell sees is the signal that the user sent."""
    script = "trap '' INT TERM; echo $$ >pids.new; mv pids.new pids; while :; do sleep 0.1; done"
    process = grn_run.start("-q", "--grace=0.5", "--", "sh", "-c", script)
    pids = pids_of(grn_run)
    begun = time.monotonic()
    process.terminate()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert time.monotonic() - begun >= 0.5
    assert procs.start_time(pids[0]) is None


def test_a_second_signal_kills_at_once(grn_run: GrnRun) -> None:
    """Who asks twice does not wait for the grace."""
    script = "trap '' INT TERM; echo $$ >pids.new; mv pids.new pids; while :; do sleep 0.1; done"
    process = grn_run.start("-q", "--grace=1h", "--", "sh", "-c", script)
    pids_of(grn_run)
    process.terminate()

    def ended() -> bool:
        process.terminate()  # signals that come close together are one wish
        try:
            return process.wait(0.5) == -signal.SIGTERM
        except subprocess.TimeoutExpired:
            return False

    eventually(ended, what="the end after a second signal")


def test_a_stopped_command_still_gets_the_term(grn_run: GrnRun) -> None:
    """A command that was suspended is woken to be able to clean up."""
    script = (
        "trap 'echo bye >bye; exit 0' TERM; echo $$ >pids.new; mv pids.new pids;"
        " while :; do sleep 0.1; done"
    )
    process = grn_run.start("-q", "--", "sh", "-c", script)
    pids = pids_of(grn_run)
    os.kill(pids[0], signal.SIGSTOP)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    assert grn_run.wait_for("bye") == "bye"


def test_ignored_signals_stay_ignored(grn_run: GrnRun) -> None:
    """Under nohup a hang-up ends neither us nor the command."""
    script = "echo $$ >pids.new; mv pids.new pids; while ! test -e go; do sleep 0.05; done; exit 6"

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = grn_run.start("-q", "--", "sh", "-c", script, preexec_fn=ignore)
    pids_of(grn_run)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    with open(grn_run.path("go"), "w", encoding="ascii"):
        pass
    assert process.wait(PATIENCE_S) == 6


def test_closing_the_terminal_ends_the_job(grn_run: GrnRun) -> None:
    """A hang-up of the terminal stops the command, and what it started in another session."""
    terminal = grn_run.in_terminal("-q", "--grace=0.3", "--", "sh", "-c", OWN_SESSION)
    pids = pids_of(grn_run)
    terminal.close()
    for pid in [*pids, terminal.pid]:
        wait_gone(pid)


# A signal that comes just before a read would be seen after it, at the next key: hence the pipe.
REPL = """\
import os, select, signal, sys, termios, time
def interrupted(*_):
    print("interrupted", flush=True)
woken, wakes = os.pipe()
os.set_blocking(wakes, False)
signal.set_wakeup_fd(wakes)
signal.signal(signal.SIGINT, interrupted)
mode = termios.tcgetattr(0)
mode[3] &= ~termios.ICANON
termios.tcsetattr(0, termios.TCSANOW, mode)
print("prompt", flush=True)
while True:
    ready, _, _ = select.select([0, woken], [], [])
    if woken in ready:
        os.read(woken, 1)
    if 0 in ready and os.read(0, 1) == b"q":
        sys.exit(11)
"""


def test_ctrl_c_at_the_prompt_of_an_interactive_program_is_its_own(grn_run: GrnRun) -> None:
    """A program that reads keys itself gets Ctrl-C and lives on."""
    terminal = grn_run.in_terminal("-q", "--", "python3", "-u", "-c", REPL)
    terminal.wait_for(b"prompt")
    terminal.type(b"\x03")
    terminal.wait_for(b"interrupted")
    time.sleep(2.5)  # longer than an interrupted command is given before it gets TERM
    terminal.type(b"q")
    assert terminal.end() == 11


COMPUTES = REPL.replace(
    'print("prompt", flush=True)',
    """
cooked = termios.tcgetattr(0)
cooked[3] |= termios.ICANON
termios.tcsetattr(0, termios.TCSANOW, cooked)
print("computing", flush=True)
time.sleep(1)
termios.tcsetattr(0, termios.TCSANOW, mode)
print("prompt", flush=True)
""",
)


def test_ctrl_c_ends_a_computation_of_an_interactive_program_and_not_the_program(
    grn_run: GrnRun,
) -> None:
    """A program that is back at its prompt soon after Ctrl-C is not terminated."""
    terminal = grn_run.in_terminal("-q", "--", "python3", "-u", "-c", COMPUTES)
    terminal.wait_for(b"computing")
    terminal.type(b"\x03")
    terminal.wait_for(b"prompt")
    time.sleep(2.5)  # as above
    terminal.type(b"q")
    assert terminal.end() == 11


def test_a_limit_that_passes_during_an_interrupt_counts_when_that_is_called_off(
    grn_run: GrnRun,
) -> None:
    """The program gets two seconds after Ctrl-C, in which its time is up; it lives on at its prompt."""
    terminal = grn_run.in_terminal(
        "-q", "--time-limit=1.5", "--grace=0.2", "--", "python3", "-u", "-c", COMPUTES
    )
    terminal.wait_for(b"computing")
    terminal.type(b"\x03")
    terminal.wait_for(b"prompt")
    assert terminal.end() == 124


def test_ctrl_z_suspends_the_command_with_us(grn_run: GrnRun) -> None:
    """Job control works as it does without us: the whole foreground group stops."""
    terminal = grn_run.in_terminal("-q", "--", "sh", "-c", PLAIN)
    pids = pids_of(grn_run)
    terminal.type(b"\x1a")
    both = [terminal.pid, *pids]
    eventually(lambda: [_state(pid) for pid in both] == ["T", "T"], what="both are stopped")
    os.killpg(terminal.pid, signal.SIGCONT)
    eventually(lambda: [_state(pid) for pid in both] == ["S", "S"], what="both go on")
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT


def test_several_commands_are_all_ended(grn_run: GrnRun) -> None:
    """Ctrl-C ends all that run and starts nothing more; the summary comes, then the signal."""
    line = "echo $$ >{0}.new; mv {0}.new {0}; exec sleep 60"
    terminal = grn_run.in_terminal(
        "--grace=0.3", line.format("pid1"), line.format("pid2"), "touch third"
    )
    pids = [int(grn_run.wait_for(name)) for name in ("pid1", "pid2")]
    terminal.type(b"\x03")
    assert terminal.end() == -signal.SIGINT
    assert [procs.start_time(pid) for pid in pids] == [None, None]
    assert not _exists(grn_run, "third")
    assert b"0 of 3 ok" in terminal.screen


def test_a_signal_while_waiting_leaves_the_queue_at_once(grn_run: GrnRun) -> None:
    """Nothing is started, the request is gone, and we end by the signal."""
    holder = grn_run.start("-q", "--gpus=2", "--memory=whole", "--", "sh", "-c", PLAIN)
    pids_of(grn_run)
    for number in (signal.SIGINT, signal.SIGTERM):
        waiting = grn_run.start("-q", "--", "touch", "started")
        eventually(lambda: grn_run.env.status()["waiters"], what="a waiter")
        waiting.send_signal(number)
        assert waiting.wait(PATIENCE_S) == -number
        eventually(lambda: not grn_run.env.status()["waiters"], what="no waiter")
    holder.terminate()
    holder.wait(PATIENCE_S)
    assert not _exists(grn_run, "started")


def test_die_with_parent_stops_the_job_when_the_caller_is_killed(grn_run: GrnRun) -> None:
    """An adapter that is killed leaves nothing running."""
    words = grn_run.argv("-q", "--die-with-parent", "--grace=0.3", "--", "sh", "-c", OWN_SESSION)
    script = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = grn_run.env.popen(["python3", "-c", script, *words], cwd=grn_run.folder)
    pids = pids_of(grn_run)
    supervisors = procs.children(parent.pid)
    parent.kill()
    for pid in [*pids, *supervisors]:
        wait_gone(pid)


def test_without_it_we_survive_our_parent(grn_run: GrnRun) -> None:
    """As under nohup or ssh: the job goes on to its own end."""
    words = grn_run.argv("-q", "--", "sh", "-c", "echo $$ >pids; sleep 0.5; echo done >done")
    script = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = grn_run.env.popen(["python3", "-c", script, *words], cwd=grn_run.folder)
    pids_of(grn_run)
    supervisors = procs.children(parent.pid)
    parent.kill()
    assert grn_run.wait_for("done") == "done"
    for pid in supervisors:
        wait_gone(pid)
    eventually(lambda: lease_is_free(grn_run), what="a free lease")


def _exists(grn_run: GrnRun, name: str) -> bool:
    try:
        with open(grn_run.path(name), encoding="ascii"):
            return True
    except FileNotFoundError:
        return False


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_signal_that_may_not_be_passed_on_ends_nobody(grn_run: GrnRun) -> None:
    """The job has become another user (sudo): it goes on, and its exit code is ours."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip(
            "needs root, and setpriv, to be somebody who may not signal another user's process"
        )
    powerless = [setpriv, "--bounding-set=-kill", "--inh-caps=-kill"]
    another = f"exec {setpriv} --reuid=65534 sh -c 'read line; exit 7'"
    job = f"echo $$ >pids.new; mv pids.new pids; {another}"
    process = grn_run.env.popen(
        [*powerless, *grn_run.argv("-q", "--", "sh", "-c", job)],
        cwd=grn_run.folder,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    (pid,) = pids_of(grn_run)
    eventually(lambda: os.stat(f"/proc/{pid}").st_uid == 65534, what="a job of another user")
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(b"go on\n", PATIENCE_S)
    assert (process.returncode, said) == (7, b"")
