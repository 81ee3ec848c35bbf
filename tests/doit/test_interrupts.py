"""However doit is ended, in whichever way it runs its tasks: nothing that they have started is left."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit", reason="the extra grn-plugins[doit] is not installed")

from tests.doit.dodofolder import RUNNERS
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from tests.doit.dodofolder import DodoFolder
    from tests.supervise.terminal import Terminal

_DODO = """
    import os
    import time

    RUN = os.environ["RUN"]
    KINDS = {
        "plain": "echo on > {run}-plain; exec sleep 600",
        "deaf": "trap '' INT; echo on > {run}-deaf; sleep 600 & wait; sleep 600",
        "session": "setsid sh -c 'echo on > {run}-session; sleep 600' & sleep 600",
        "two": "echo on > {run}-two; sleep 600; sleep 600",
    }


    def endless():
        with open(f"{RUN}-python", "w", encoding="ascii") as file:
            file.write("on\\n")
        time.sleep(600)


    @grn_task(memory="100MiB")
    def task_endless():
        for kind, text in KINDS.items():
            yield {"name": kind, "actions": [text.format(run=RUN)]}
        yield {"name": "python", "actions": [endless]}
"""
_KINDS = ("plain", "deaf", "session", "two", "python")
_WAYS = ("key", "INT", "TERM", "KILL")
_TOGETHER = ("-n", "5")


def _signal(terminal: Terminal, way: str) -> None:
    if way == "key":
        terminal.type(b"\x03")
    else:
        os.kill(terminal.pid, getattr(signal, f"SIG{way}"))


def _start(dodos: DodoFolder, run: str, *words: str) -> Terminal:
    return dodos.in_terminal("run", "--db-file", f".{run}.db", *words, RUN=run)


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_nothing_is_left(roomy_dodos: DodoFolder, runner: str, way: str) -> None:
    """Ctrl-C, or a signal to doit alone: plain commands, deaf ones, ones that hide, two in a row, Python."""
    dodos = roomy_dodos
    dodos.dodo(_DODO)
    if runner == "serial":
        terminals = [_start(dodos, f"run{kind}", f"endless:{kind}") for kind in _KINDS]
        begun = [f"run{kind}-{kind}" for kind in _KINDS]
    else:
        terminals = [_start(dodos, "run", *RUNNERS[runner], *_TOGETHER)]
        begun = [f"run-{kind}" for kind in _KINDS]
    for name in begun:
        dodos.wait_for(name)
    for terminal in terminals:
        _signal(terminal, way)
    for terminal in terminals:
        assert terminal.end() != 0
    dodos.none_left()


@pytest.mark.parametrize("runner", RUNNERS)
def test_who_waits_leaves_the_queue(dodos: DodoFolder, runner: str) -> None:
    """An interrupted doit takes back what it still waits for."""
    dodos.dodo("""
        @grn_task(memory="whole")
        def task_wait():
            for number in range(6):
                yield {"name": str(number), "actions": [f"echo on > {number}; sleep 600"]}
    """)
    terminal = dodos.in_terminal(*RUNNERS[runner])
    wanted = {"serial": (1, 0), "process": (2, 2), "thread": (2, 2)}[runner]

    def counts() -> tuple[int, int]:
        status = dodos.env.status()
        return len(status["leases"]), len(status["waiters"])

    eventually(lambda: counts() == wanted, what=f"{wanted} leases and waiters")
    terminal.type(b"\x03")
    assert terminal.end() != 0
    dodos.none_left()
    assert not dodos.env.status()["waiters"]


def test_idle_workers_end_with_doit(dodos: DodoFolder) -> None:
    """A killed doit leaves no worker process behind, neither one that never had a task of ours."""
    dodos.dodo("""
        def task_mine():
            return {"actions": [grn("echo on > on; sleep 600")]}


        def task_idle():
            return {"actions": ["true"], "task_dep": ["mine"]}
    """)
    process = dodos.start("-n", "2")
    dodos.wait_for("on")
    process.kill()
    process.wait(PATIENCE_S)
    dodos.none_left()


def test_a_program_may_clean_up_after_ctrl_c(dodos: DodoFolder) -> None:
    """A training that saves what it has on Ctrl-C has the time for that, in a serial run."""
    dodos.write(
        "train.py",
        """
        import time
        try:
            open("on", "w").write("on\\n")
            time.sleep(600)
        except KeyboardInterrupt:
            time.sleep(0.1)
            open("saved", "w").write("saved\\n")
        """,
    )
    dodos.dodo("""
        def task_train():
            return {"actions": [grn("python train.py")]}
    """)
    terminal = dodos.in_terminal()
    dodos.wait_for("on")
    os.kill(terminal.pid, signal.SIGINT)  # it alone: the command must be told by us
    assert terminal.end() != 0
    dodos.none_left()
    assert dodos.read("saved") == "saved\n"


def test_a_second_ctrl_c_ends_what_does_not_want_to_end(dodos: DodoFolder) -> None:
    """Who asks again does not wait for the time of grace."""
    dodos.dodo("""
        def task_deaf():
            return {"actions": [grn("trap '' INT TERM; echo on > on; while :; do sleep 0.1; done", grace="1h")]}
    """)
    terminal = dodos.in_terminal()
    dodos.wait_for("on")

    def gone() -> bool:
        terminal.type(b"\x03")
        time.sleep(0.5)
        return terminal.has_ended

    eventually(gone, what="the end of doit")
    dodos.none_left()


def test_a_long_running_server_ends_by_ctrl_c(dodos: DodoFolder) -> None:
    """`LongRunning` ends normally on Ctrl-C, and nothing of the server is left."""
    dodos.dodo("""
        from doit.tools import LongRunning


        def task_serve():
            return {"actions": [grn(LongRunning("echo on > on; sleep 600; sleep 601"))]}
    """)
    terminal = dodos.in_terminal()
    dodos.wait_for("on")
    terminal.type(b"\x03")
    assert terminal.end() == 0
    dodos.none_left()


def test_an_interactive_program_has_the_terminal(dodos: DodoFolder) -> None:
    """`Interactive` reads from the terminal, and Ctrl-C in it is its own key where it wants that."""
    dodos.write(
        "ask.py",
        """
        import os, signal, tty
        signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted "))
        tty.setcbreak(0)
        os.write(1, b"ready ")
        while os.read(0, 1) != b"q":
            pass
        """,
    )
    dodos.dodo("""
        from doit.tools import Interactive


        def task_ask():
            return {"actions": [grn(Interactive("exec python ask.py"))], "verbosity": 2}
    """)
    terminal = dodos.in_terminal()
    terminal.wait_for(b"ready")
    terminal.type(b"xq")
    assert terminal.end() == 0
    dodos.none_left()
