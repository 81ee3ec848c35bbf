"""What ends a command under the shim, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone
from tests.shim.shimmed import ENDLESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.shim.shimmed import Shimmed

_KILLED = 128 + signal.SIGKILL


def _endless() -> dict[str, list[str]]:
    return {kind: ["sh", "-c", text.format(file=kind)] for kind, text in ENDLESS.items()}


def test_the_callers_death_ends_everything(shimmed: Shimmed):
    """Killed as nothing can be prepared for, a caller takes all its commands with it."""
    callers = [shimmed.call(*argv)[0] for argv in _endless().values()]
    for kind in ENDLESS:
        shimmed.wait_for(kind)
    for caller in callers:
        caller.kill()
    shimmed.none_left()


def test_a_caller_that_is_gone_before_the_start(shimmed: Shimmed):
    """A command whose caller has died before is not started."""
    code = (
        "import os, sys; from grn import shim; print('\\n'.join(shim.command(['touch', 'made'])))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env=shimmed.environ, capture_output=True, check=True
    )
    words = told.stdout.decode().splitlines()
    assert subprocess.run(words, cwd=shimmed.folder, check=False).returncode == 125
    assert not os.path.exists(shimmed.path("made"))


def test_an_intermediate_process_is_no_caller(shimmed: Shimmed):
    """Started through a shell that ends, the command runs on: the caller is who made the words."""
    from grn import shim

    words = " ".join(f"'{x}'" for x in shim.command(["sh", "-c", "sleep 0.3; echo end > end"]))
    subprocess.run(["sh", "-c", f"{words} &"], env=shimmed.environ, cwd=shimmed.folder, check=True)
    shimmed.wait_for("end")
    shimmed.none_left()


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP"])
def test_a_signal_to_the_shim_ends_everything(shimmed: Shimmed, name: str):
    """`kill` of the shim alone ends the command and all that it has started, in every form."""
    started = {kind: shimmed.start(*argv) for kind, argv in _endless().items()}
    for kind, process in started.items():
        shimmed.wait_for(kind)
        process.send_signal(getattr(signal, f"SIG{name}"))
    for kind, process in started.items():
        assert process.wait(PATIENCE_S) != 0, kind
    shimmed.none_left(0)


def test_sigkill_of_the_shim_ends_its_command(shimmed: Shimmed):
    """The kernel ends the command of a shim that is killed; its caller sees the signal."""
    process = shimmed.start(*_endless()["plain"])
    shimmed.wait_for("plain")
    process.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    shimmed.none_left()


def test_a_command_ends_by_the_signal_that_was_sent(shimmed: Shimmed):
    """SIGTERM to the shim: it ends as the command does, by SIGTERM; one that exits then, by its status."""
    dies = shimmed.start("sh", "-c", "echo on > dies; exec sleep 600")
    exits = shimmed.start("sh", "-c", "trap 'exit 7' TERM; echo on > exits; sleep 600 & wait")
    for name in ("dies", "exits"):
        shimmed.wait_for(name)
    dies.terminate()
    exits.terminate()
    assert dies.wait(PATIENCE_S) == -signal.SIGTERM
    assert exits.wait(PATIENCE_S) == 7
    shimmed.none_left(0)


def test_one_that_ignores_everything_is_killed_after_the_grace(shimmed: Shimmed):
    """SIGKILL comes when the time of grace is up, and no earlier."""
    code = "trap '' TERM INT; echo on > on; while :; do sleep 0.1; done"
    process = shimmed.start("sh", "-c", code, of_shim={"grace_s": 1.5})
    shimmed.wait_for("on")
    begun = time.monotonic()
    process.terminate()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert time.monotonic() - begun >= 1.5
    shimmed.none_left(0)


def test_a_second_signal_kills_at_once(shimmed: Shimmed):
    """Who asks again does not wait for the time of grace."""
    code = "trap '' TERM INT; echo on > on; while :; do sleep 0.1; done"
    process = shimmed.start("sh", "-c", code, of_shim={"grace_s": 600.0})
    shimmed.wait_for("on")

    def asked_again() -> bool:
        process.terminate()
        time.sleep(0.3)  # what comes within a quarter of a second is meant once
        return process.poll() is not None

    eventually(asked_again, what="the end of the command")
    assert process.returncode == -signal.SIGKILL
    shimmed.none_left(0)


@pytest.mark.parametrize("name", ["USR1", "USR2", "QUIT"])
def test_other_signals_are_the_commands_business(shimmed: Shimmed, name: str):
    """They are passed on, and end nothing by themselves."""
    code = f"trap 'echo got > got; exit 3' {name}; echo on > on; while :; do sleep 0.05; done"
    process = shimmed.start("sh", "-c", code)
    shimmed.wait_for("on")
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(PATIENCE_S) == 3
    shimmed.wait_for("got")


def test_an_interrupted_program_may_clean_up(shimmed: Shimmed):
    """A Python program gets its KeyboardInterrupt, and ends by itself."""
    code = (
        "import time\n"
        "try:\n open('on', 'w').write('on'); time.sleep(600)\n"
        "except KeyboardInterrupt:\n open('saved', 'w').write('saved')\n raise SystemExit(5)\n"
    )
    process = shimmed.start(sys.executable, "-c", code)
    shimmed.wait_for("on")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 5
    shimmed.wait_for("saved")


def _by_end(told: int, tell: int) -> None:
    del told
    os.close(tell)


def _by_order(told: int, tell: int) -> None:
    del told
    os.write(tell, b"T")


def _by_interrupt(told: int, tell: int) -> None:
    del told
    os.write(tell, b"I")


@pytest.mark.parametrize("order", [_by_end, _by_order, _by_interrupt])
def test_the_control_descriptor_ends_everything(
    shimmed: Shimmed, order: Callable[[int, int], None]
):
    """Its end, or an order on it, ends the command in every form."""
    begun = []
    for kind, argv in _endless().items():
        told, tell = os.pipe()
        process = shimmed.start(*argv, pass_fds=[told], of_shim={"control_fd": told})
        os.close(told)
        begun.append((kind, process, tell))
    for kind, _, tell in begun:
        shimmed.wait_for(kind)
        order(0, tell)
    for kind, process, _ in begun:
        assert process.wait(PATIENCE_S) != 0, kind
    shimmed.none_left(0)
    for *_, tell in begun:
        try:
            os.close(tell)
        except OSError:  # that was the order
            continue


def test_ctrl_c_in_a_terminal(shimmed: Shimmed):
    """Ctrl-C reaches the command by the terminal, once, and nothing of it is left."""
    terminals = {kind: shimmed.in_terminal(*argv) for kind, argv in _endless().items()}
    code = "import time\ntry:\n open('once', 'w').write('on'); time.sleep(600)\nexcept KeyboardInterrupt:\n time.sleep(0.3); raise SystemExit(9)"
    once = shimmed.in_terminal(sys.executable, "-c", code)
    for kind in (*ENDLESS, "once"):
        shimmed.wait_for(kind)
    for terminal in (*terminals.values(), once):
        terminal.type(b"\x03")
    assert once.end() == 9
    for kind, terminal in terminals.items():
        assert terminal.end() != 0, kind
    assert len(shimmed.left()) <= len(terminals) + 1  # the leaders of the sessions


def test_a_program_that_takes_ctrl_c_as_a_key_lives_on(shimmed: Shimmed):
    """In a terminal without lines Ctrl-C is for the program, which goes on after it."""
    code = (
        "import os, termios, tty, signal\n"
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'interrupted'))\n"
        "tty.setcbreak(0)\n"
        "os.write(1, b'ready')\n"
        "while os.read(0, 1) != b'q': pass\n"
        "raise SystemExit(6)\n"
    )
    terminal = shimmed.in_terminal(sys.executable, "-c", code)
    terminal.wait_for(b"ready")
    terminal.type(b"\x03")
    terminal.wait_for(b"interrupted")
    time.sleep(2.5)  # longer than an interrupted program may take to end by itself
    terminal.type(b"q")
    assert terminal.end() == 6


def test_leftovers_are_ended(shimmed: Shimmed):
    """Background processes end with the command, sessions of their own and pipes regardless."""
    code = "sleep 600 & setsid sleep 601 & (setsid sh -c 'sleep 602 & sleep 603' &); exit 4"
    ended = shimmed.run("sh", "-c", code)
    assert ended.returncode == 4
    shimmed.none_left(0)


def test_leftovers_are_waited_for(shimmed: Shimmed):
    """With "wait" the shim ends with the last of them, and by the command's status."""
    code = "(setsid sh -c 'sleep 0.5; echo end > end' &); exit 4"
    ended = shimmed.run("sh", "-c", code, of_shim={"leftovers": "wait"})
    assert ended.returncode == 4
    assert os.path.exists(shimmed.path("end"))


def test_waiting_for_leftovers_can_be_ended(shimmed: Shimmed):
    """A signal while it waits for them ends them."""
    process = shimmed.start(
        "sh",
        "-c",
        "(trap '' HUP; echo on > on; exec sleep 600) & exit 0",
        of_shim={"leftovers": "wait"},
    )
    shimmed.wait_for("on")
    time.sleep(0.1)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    shimmed.none_left(0)


def test_leftovers_are_kept(shimmed: Shimmed):
    """With "keep" they live on, and the shim does not."""
    code = "sleep 600 > /dev/null 2>&1 & echo $! > pid; exit 0"
    assert shimmed.run("sh", "-c", code, of_shim={"leftovers": "keep"}).returncode == 0
    with open(shimmed.path("pid"), encoding="ascii") as file:
        pid = int(file.read())
    assert procs.start_time(pid) is not None
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)


def test_others_are_not_signalled(shimmed: Shimmed):
    """Neither the caller's other children nor processes of its group hear of a stop."""
    other = shimmed.start("sleep", "600", of_shim={"watch_caller": False})
    code = "trap 'echo hit > hit' TERM INT HUP; echo on > bystander; while :; do sleep 0.1; done"
    bystander = shimmed.start("sh", "-c", code)
    plain = subprocess.Popen(["sleep", "600"])
    shimmed.wait_for("bystander")
    for _ in range(3):
        process = shimmed.start(*_endless()["orphan"])
        shimmed.wait_for("orphan")
        os.unlink(shimmed.path("orphan"))
        process.terminate()
        process.wait(PATIENCE_S)
    assert plain.poll() is None
    assert not os.path.exists(shimmed.path("hit"))
    plain.kill()
    plain.wait()
    for process in (other, bystander):
        process.send_signal(signal.SIGUSR1)
        process.terminate()
    bystander.kill()
    other.wait(PATIENCE_S)
    shimmed_pid = bystander.pid
    wait_gone(shimmed_pid)
    eventually(lambda: not shimmed.left(), what="the end of the bystander")
