"""Many tasks at once, in doit's threads and processes: shares, start methods, and who is told to wait no longer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit", reason="the extra grn-plugins[doit] is not installed")

from tests.doit.dodofolder import RUNNERS
from tests.env import eventually

if TYPE_CHECKING:
    from tests.doit.dodofolder import DodoFolder

_PARALLEL = {name: words for name, words in RUNNERS.items() if words}


@pytest.mark.parametrize("runner", _PARALLEL)
def test_tasks_share_and_nobody_gets_too_much(dodos: DodoFolder, runner: str) -> None:
    """Four tasks of 4000 MiB fill two devices of 8000 together; the others wait for a place."""
    dodos.dodo("""
        @grn_task(memory="4000MiB")
        def task_train():
            for number in range(6):
                yield {
                    "name": str(number),
                    "actions": [f"echo $CUDA_VISIBLE_DEVICES >> begun; until test -e go{number // 4}; do sleep 0.02; done"],
                }
    """)
    process = dodos.start(*_PARALLEL[runner], "-n", "6")
    dodos.wait_for("begun", 4)
    eventually(lambda: len(dodos.env.status()["waiters"]) == 2, what="two that wait")
    status = dodos.env.status()
    assert [device["booked_mib"] for device in status["devices"]] == [8000, 8000]
    assert sorted(dodos.lines("begun")) == ["0", "0", "1", "1"]
    dodos.write("go0", "")
    dodos.wait_for("begun", 6)
    dodos.write("go1", "")
    assert process.wait(60) == 0
    dodos.none_left()


@pytest.mark.parametrize("runner", _PARALLEL)
def test_commands_and_callables_have_devices_of_their_own(dodos: DodoFolder, runner: str) -> None:
    """Two that run at the same time, each with a device to itself, see different ones."""
    dodos.dodo("""
        import os
        import time


        def see(name):
            with open("seen", "a", encoding="ascii") as file:
                file.write(os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
            while not os.path.exists("go"):
                time.sleep(0.02)


        @grn_task(memory="whole")
        def task_see():
            yield {"name": "callable", "actions": [(see, ["callable"])]}
            yield {"name": "command", "actions": ["echo $CUDA_VISIBLE_DEVICES >> seen; until test -e go; do sleep 0.02; done"]}
    """)
    process = dodos.start(*_PARALLEL[runner])
    dodos.wait_for("seen", 2)
    dodos.write("go", "")
    assert process.wait(60) == 0
    assert sorted(dodos.lines("seen")) == ["0", "1"]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_start_methods(dodos: DodoFolder, method: str) -> None:
    """Worker processes are forked, served or spawned: devices, values, delayed tasks, failures."""
    dodos.dodo(
        """
        import multiprocessing
        import os

        from doit import create_after

        multiprocessing.set_start_method(os.environ["METHOD"], force=True)


        def see():
            with open("seen", "a", encoding="ascii") as file:
                file.write("callable " + os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
            return {"loss": 3}


        def task_command():
            return {"actions": [grn("echo command $CUDA_VISIBLE_DEVICES >> seen", memory=100)]}


        def task_callable():
            return {"actions": [grn(see, memory=100)]}


        def task_fails():
            return {"actions": [grn("exit 3", memory=100)]}


        @create_after(executed="command")
        def task_later():
            yield {"name": "a", "actions": [grn("echo later $CUDA_VISIBLE_DEVICES >> seen", memory=100)]}


        def task_got():
            return {
                "actions": [grn("echo got %(loss)s >> seen", memory=100)],
                "getargs": {"loss": ("callable", "loss")},
            }
        """
    )
    done = dodos.doit("-c", "-n", "3", environ={"METHOD": method})
    assert done.code == 1, done
    assert "Command failed: 'exit 3' returned 3" in done.out
    seen = dict(line.split() for line in dodos.lines("seen"))
    assert seen.pop("got") == "3"
    assert set(seen) == {"command", "callable", "later"}
    assert set(seen.values()) <= {"0", "1"}
    dodos.none_left()


@pytest.mark.parametrize("runner", RUNNERS)
def test_one_action_belongs_to_one_task(dodos: DodoFolder, runner: str) -> None:
    """The same action object in two tasks is an error that names both, and nothing hangs."""
    dodos.dodo("""
        SAME = grn("true", memory=100)


        def task_one():
            return {"actions": [SAME]}


        def task_two():
            return {"actions": [SAME], "task_dep": ["one"]}
    """)
    done = dodos.doit(*RUNNERS[runner])
    assert done.code in {2, 3}, done
    assert "is task one's already" in done.out + done.err
    dodos.none_left()


_CANCEL = """
    @grn_task(memory="whole", OPTION)
    def task_train():
        for number in range(4):
            yield {"name": str(number), "actions": [f"echo {number} >> begun; until test -e go; do sleep 0.02; done; exit 3"]}


    def task_plain():
        return {"actions": ["true"], "task_dep": ["train:0"]}
"""


@pytest.mark.parametrize("runner", _PARALLEL)
def test_a_failure_drops_what_waits(dodos: DodoFolder, runner: str) -> None:
    """After a failure the waiting tasks of the run are dropped, in threads and across processes."""
    dodos.dodo(_CANCEL.replace("OPTION", "cancel_waiting_on_failure=True"))
    process = dodos.start(*_PARALLEL[runner])
    dodos.wait_for("begun", 2)
    eventually(lambda: len(dodos.env.status()["waiters"]) == 2, what="two that wait")
    dodos.write("go", "")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(dodos.lines("begun")) == 2
    assert out.count(b"GRN: ") == 2
    assert out.count(b"another task of this doit run has failed") == 2
    dodos.none_left()


@pytest.mark.parametrize("runner", _PARALLEL)
@pytest.mark.parametrize("case", ["continue", "not asked for"])
def test_nothing_is_dropped_otherwise(dodos: DodoFolder, runner: str, case: str) -> None:
    """With `--continue`, or without the option, those that wait still run."""
    option = "cancel_waiting_on_failure=True" if case == "continue" else "priority=0"
    dodos.dodo(_CANCEL.replace("OPTION", option))
    dodos.write("go", "")
    words = ("-c",) if case == "continue" else ()
    process = dodos.start(*words, *_PARALLEL[runner])
    process.communicate(timeout=60)
    assert process.returncode == 1 if case == "not asked for" else 2
    assert len(dodos.lines("begun")) == 4


def test_other_runs_are_left_alone(dodos: DodoFolder) -> None:
    """What another doit waits for is not dropped, nor what the same program runs next."""
    dodos.dodo(_CANCEL.replace("OPTION", "cancel_waiting_on_failure=True"))
    dodos.write(
        "other.py",
        """
        from grn_plugins.doit import grn


        def task_other():
            return {"actions": [grn("echo other >> other", memory="whole")]}
        """,
    )
    process = dodos.start("-n", "4")
    dodos.wait_for("begun", 2)
    other = dodos.start("-f", "other.py", "--db-file", "other.db", "-n", "2")
    eventually(lambda: len(dodos.env.status()["waiters"]) == 3, what="three that wait")
    dodos.write("go", "")
    assert process.wait(60) == 2
    assert other.wait(60) == 0
    assert dodos.lines("other") == ["other"]


def test_twice_in_one_program(dodos: DodoFolder) -> None:
    """A program that runs doit twice: the failure of the first run drops nothing of the second."""
    dodos.write(
        "twice.py",
        """
        import sys

        from doit.cmd_base import ModuleTaskLoader
        from doit.doit_cmd import DoitMain
        from grn_plugins.doit import grn

        STATUS = "3"


        def task_one():
            for number in range(3):
                yield {
                    "name": str(number),
                    "actions": [grn(f"echo {number} >> ran; exit {STATUS}", memory="whole", cancel_waiting_on_failure=True)],
                }


        for words in (["-n", "3"], ["-n", "3", "-P", "thread"]):
            STATUS = "3"
            assert DoitMain(ModuleTaskLoader(globals())).run(words) in (1, 2)
            STATUS = "0"
            assert DoitMain(ModuleTaskLoader(globals())).run(words) == 0
        """,
    )
    process = dodos.env.popen([sys.executable, "twice.py"], cwd=dodos.folder)
    assert process.wait(60) == 0


def test_waiting_is_told_once(dodos: DodoFolder) -> None:
    """Who waits longer than two seconds is told why, on standard error alone, and not when all is quiet."""
    dodos.dodo("""
        @grn_task(memory="whole")
        def task_train():
            for number in range(3):
                yield {"name": str(number), "actions": [f"echo {number} >> begun; until test -e go; do sleep 0.02; done"]}
    """)
    for words, told in ((("-n", "3"), True), (("-n", "3", "-P", "thread", "-v", "0"), False)):
        process = dodos.start(*words, "-r", "json", stdout=None if told else -3)
        if told:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert line.startswith("grn: train:"), line
            assert "waits: " in line
        else:
            dodos.wait_for("begun", 5)
        dodos.write("go", "")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert err.count(b"waits: ") == 0
        (dodos.folder / "go").unlink()
