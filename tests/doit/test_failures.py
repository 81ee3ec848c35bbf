"""What goes wrong with a lease, and how doit and its user are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit", reason="the extra grn-plugins[doit] is not installed")

from tests.doit.dodofolder import RUNNERS

if TYPE_CHECKING:
    from tests.doit.dodofolder import DodoFolder

_WRONG = {
    "grn('true', gpsu=1)": "there is no option 'gpsu'; did you mean 'gpus'?",
    "grn('true', gpu=1)": "did you mean 'gpus'?",
    "grn('true', timeout=3)": "did you mean 'wait'?",
    "grn('true', nonsense=3)": "there is no option 'nonsense'; there are gpus, memory",
    "grn('true', gpus=-1)": "gpus=-1 is not a whole number of 0 or more, or None",
    "grn('true', memory='8Gbyte')": "memory",
    "grn('true', memory=[8])": "memory=[8]",
    "grn('true', leftovers='eat')": "leftovers='eat' is not one of: kill, wait, keep",
    "grn('true', isolate='spawn')": "isolate='spawn' is not one of: True, False, 'fork'",
    "grn('true', retries_on_oom=True)": "retries_on_oom=True",
    "grn('true', env={'A': 1})": "names and values are texts",
    "grn('true', grace='soon')": "grace",
    "grn('true', flavor='none-such')": "none-such",
    "grn('true', job=' ')": "names nothing",
    "grn(print, cwd='/')": "cwd is for commands",
    "grn(grn('true'))": "is a GRN action already",
    "grn(3)": "3 is no action",
    "grn(())": "() is no action",
    "grn(dict)": "can not be a class",
    "grn(Own())": "which GRN cannot start",
    "grn(asynchronous)": "asyncio.run(asynchronous(…))",
    "grn('true', '4GiB')": "options are given by name, such as grn(…, memory='4GiB'); got '4GiB'",
    "grn(task_train)": "decorate it with @grn_task",
    "grn('true', stdout=1)": "there is no option 'stdout'",
}


def test_wrong_options_are_told_at_load(dodos: DodoFolder) -> None:
    """Each mistake is one line that names the task and what would do, exit status 3, and nothing runs."""
    dodos.write(
        "wrong.py",
        """
        import sys

        from doit.action import BaseAction
        from doit.cmd_base import ModuleTaskLoader
        from doit.doit_cmd import DoitMain
        from grn_plugins.doit import grn


        class Own(BaseAction):
            def execute(self, out=None, err=None):
                pass


        async def asynchronous():
            pass


        for text in sys.stdin.read().splitlines():
            def task_train():
                return {"actions": [eval(text)]}


            sys.stderr.write(f"{DoitMain(ModuleTaskLoader({'task_train': task_train})).run(['list'])} ")
            sys.stderr.write("\\n")
        """,
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "wrong.py"],
        input="\n".join(_WRONG).encode(),
        cwd=dodos.folder,
        env=dodos.env.environ,
        capture_output=True,
        check=True,
    )
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2 * len(_WRONG), lines
    for (call, said), line, code in zip(_WRONG.items(), lines[::2], lines[1::2], strict=True):
        assert line.startswith("ERROR: task train ("), line
        assert said in line, (call, line)
        assert code.strip() == "3"


def test_a_mistake_outside_of_a_task_names_its_line(dodos: DodoFolder) -> None:
    """An action that is made at the top of the dodo file."""
    dodos.dodo("ACTION = grn('true', gpsu=1)\n")
    done = dodos.doit("list")
    assert done.code == 3
    assert "ERROR: dodo.py, line 2: there is no option 'gpsu'" in done.err


@pytest.mark.parametrize("runner", RUNNERS)
def test_failures_of_ours_are_task_errors(dodos: DodoFolder, runner: str) -> None:
    """Impossible, not in time: one line with numbers, without a traceback, and the run goes on."""
    dodos.dodo("""
        def task_impossible():
            return {"actions": [grn("true", memory="9000MiB")]}


        def task_late():
            return {"actions": [grn("true", memory="whole", gpus=2, wait=0.2)], "task_dep": ["hold"]}


        def task_hold():
            return {"actions": ["true"]}


        def task_fine():
            return {"actions": [grn("echo fine > fine", memory=100)]}
    """)
    with dodos.env.client().acquire("other", memory_mib=4000):
        done = dodos.doit("-c", *RUNNERS[runner])
    assert done.code == 2, done
    assert "TaskError - taskid:impossible\nGRN: " in done.out
    assert "8000" in done.out
    assert "TaskError - taskid:late\nGRN: not granted within 0.2 s: " in done.out
    assert "Traceback" not in done.out + done.err
    assert dodos.lines("fine") == ["fine"]


def test_without_a_broker(dodos: DodoFolder) -> None:
    """No broker can be had: a task error; with if_unavailable='run' the command runs, and that is said."""
    dodos.write("file", "")
    away = {"GRN_SOCKET": str(dodos.folder / "file" / "sock")}
    dodos.dodo("""
        def task_fails():
            return {"actions": [grn("echo ran > fails")]}


        def task_runs():
            return {"actions": [grn("echo ${CUDA_VISIBLE_DEVICES-none} > runs", if_unavailable="run", env={"X": "1"})]}
    """)
    done = dodos.doit("-c", environ=away)
    assert done.code == 2, done
    assert "TaskError - taskid:fails\nGRN: " in done.out
    assert not dodos.lines("fails")
    assert dodos.lines("runs") == ["none"]
    assert "grn: runs runs without a lease: " in done.err


def test_device_memory_that_ran_out_is_a_failed_task_with_a_hint(dodos: DodoFolder) -> None:
    """Recognised by what the program says: TaskFailed, what was booked, and what to do."""
    dodos.dodo("""
        def task_train():
            return {"actions": [grn("echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 200", memory="1000MiB")]}
    """)
    done = dodos.doit()
    assert done.code == 1, done
    assert "TaskFailed - taskid:train" in done.out
    assert "GRN: the device's memory ran out; 1000 MiB were booked on each device" in done.out
    assert "retries_on_oom=2" in done.out


def test_it_runs_again_with_more_if_so_asked(dodos: DodoFolder) -> None:
    """With retries_on_oom the action runs again, larger each time, and what it prints is the last run's."""
    dodos.dodo("""
        from doit.action import CmdAction

        TRAIN = (
            "echo $GRN_MEM_MIB >> ran; test $GRN_MEM_MIB -gt 2000 && { echo fits; exit 0; };"
            " echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1"
        )


        def task_train():
            return {"actions": [grn(TRAIN, memory="1000MiB", retries_on_oom=4, save_out="k")]}
    """)
    done = dodos.doit("run", "--backend", "json")
    assert done.code == 0, done
    booked = [int(line) for line in dodos.lines("ran")]
    assert booked == sorted(booked)
    assert len(booked) > 1
    saved = dodos.saved()["train"]
    assert saved["_values_:"] == {"k": "fits\n"}
    assert "grn: train: the device's memory ran out, try 2 follows" in done.err
    dodos.none_left()


def test_a_command_that_cannot_be_started(dodos: DodoFolder) -> None:
    """Not found, not executable, no such folder, a keyword that Popen does not like: the run goes on."""
    dodos.write("data", "no program\n")
    dodos.dodo("""
        from doit.action import CmdAction

        def task_bad():
            for name, action in {
                "missing": grn(["no-such-program"], memory=100),
                "data": grn(["./data"], memory=100),
                "folder": grn("true", cwd="no-such-folder", memory=100),
                "keyword": grn(CmdAction("true", nonsense=3), memory=100),
                "word": grn([3], memory=100),
                "function": grn(CmdAction(lambda: 1 / 0), memory=100),
            }.items():
                yield {"name": name, "actions": [action]}


        def task_fine():
            return {"actions": ["echo fine > fine"]}
    """)
    done = dodos.doit("run", "-c", "-r", "json", "-o", "report")
    assert done.code == 2, done
    told = {task["name"]: task["error"] for task in json.loads(dodos.read("report"))["tasks"]}
    assert "returned 127 (no-such-program: not found)" in told["bad:missing"]
    assert "returned 126 (./data: permission denied)" in told["bad:data"]
    assert "No such file or directory: 'no-such-folder'" in told["bad:folder"]
    assert "nonsense" in told["bad:keyword"]
    assert "must be a str or Path" in told["bad:word"]
    assert "ZeroDivisionError" in told["bad:function"]
    assert dodos.lines("fine") == ["fine"]
    dodos.none_left()


def test_a_broker_that_dies_is_not_noticed(dodos: DodoFolder) -> None:
    """Killed and started again, it finds the running action's lease; who waited gets its turn."""
    dodos.dodo("""
        @grn_task(memory="whole")
        def task_train():
            for number in range(3):
                yield {"name": str(number), "actions": [f"echo {number} >> begun; until test -e go; do sleep 0.02; done"]}
    """)
    process = dodos.start("-n", "3", "-P", "thread")
    dodos.wait_for("begun", 2)
    dodos.env.restart()
    dodos.write("go", "")
    assert process.wait(60) == 0
    assert len(dodos.lines("begun")) == 3
    dodos.none_left()
