"""Commands of doit under leases: what doit makes of them is what it makes of them without us."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("doit", reason="the extra grn-plugins[doit] is not installed")

from tests.doit.dodofolder import RUNNERS

if TYPE_CHECKING:
    from tests.doit.dodofolder import DodoFolder, Done

_PLAIN = "def grn(action, **_):\n    return action\n\n\ndef grn_task(**_):\n    return lambda creator: creator\n"
"""Stands for the import where a dodo file is to run without us."""

_KINDS = """
    import pathlib

    from doit.action import CmdAction

    DOIT_CONFIG = {"action_string_formatting": "both", "verbosity": 2}


    def words(targets):
        return "echo made of " + " ".join(targets)


    ACTIONS = {
        "string": "echo {targets} %(targets)s $((1 + 2)) | cat; echo err >&2",
        "list": ["echo", "a b", "$HOME", "|", "{targets}", pathlib.Path("p")],
        "env": CmdAction("echo V=$V HOME=$HOME; PATH=/usr/bin:/bin; env | cut -c 1-4 | sort | head -1", env={"V": "1", "A": "1"}),
        "cwd": CmdAction("pwd | sed 's,.*/,,'", cwd="sub"),
        "executable": CmdAction("echo $0 ${BASH_VERSION:+bash}", executable="/bin/bash"),
        "made": CmdAction(words),
        "save": CmdAction("echo saved", save_out="k"),
        "buffered": CmdAction("echo $PYTHONUNBUFFERED", buffering=1),
        "bytes": CmdAction(r"printf '\\\\377\\\\n'", decode_error="replace"),
        "exit 3": "echo out; exit 3",
        "exit 125": "exit 125",
        "exit 126": "exit 126",
        "exit 200": "exit 200",
        "killed": "kill -9 $$",
        "terminated": "kill -TERM $$",
        "shell 127": "no-such-program-here",
        "template": "echo %(nothing)s",
    }


    def task_kind():
        for name, action in ACTIONS.items():
            yield {
                "name": name,
                "actions": [grn(action, memory="100MiB")],
                "targets": ["made." + name.split()[0]] if " " not in name else [],
                "io": {"capture": True},
            }
"""


def _results(done: Done, name: str, dodos: DodoFolder) -> dict[str, Any]:
    assert done.code == 2, done
    told = json.loads(dodos.read(name))
    return {task["name"]: task for task in told["tasks"]}


def _comparable(task: dict[str, Any]) -> dict[str, Any]:
    kept = ("result", "out", "err", "error")
    picked = {key: task[key] for key in kept}
    picked["error"] = (picked["error"] or "").partition("Traceback")[0]
    return picked


def test_commands_are_as_without_us(dodos: DodoFolder) -> None:
    """Output, error, result and message are the same to the letter, whatever kind of command it is."""
    (dodos.folder / "sub").mkdir()
    words = ("run", "-c", "-r", "json", "--backend", "json")
    dodos.dodo(_KINDS)
    with_us = _results(
        dodos.doit(*words, "-o", "with.json", "--db-file", "with.db", "kind"), "with.json", dodos
    )
    for target in dodos.folder.glob("made.*"):
        target.unlink()
    dodos.dodo(_KINDS, head=_PLAIN)
    plain = _results(
        dodos.doit(*words, "-o", "plain.json", "--db-file", "plain.db", "kind"), "plain.json", dodos
    )
    assert len(with_us) == len(plain) > 15
    for name, task in plain.items():
        assert _comparable(with_us[name]) == _comparable(task), name
    saved_with, saved_plain = (json.loads(dodos.read(f"{name}.db")) for name in ("with", "plain"))
    for name, saved in saved_plain.items():
        mine = saved_with[name]
        for key in ("result:", "_values_:"):
            assert mine.get(key) == saved.get(key), name


def test_uncaptured_kinds_are_as_without_us(dodos: DodoFolder) -> None:
    """`Interactive` and `LongRunning`: what they show, and which exit statuses are failures."""
    text = """
        from doit.tools import Interactive, LongRunning

        DOIT_CONFIG = {"verbosity": 2}


        def task_kind():
            for name, action in {
                "interactive": Interactive("echo interactive"),
                "fails": Interactive("exit 4"),
                "list": Interactive(["sh", "-c", "exit 5"], shell=False),
                "running": LongRunning("echo running; exit 3"),
            }.items():
                yield {"name": name, "actions": [grn(action, memory=100)]}
    """
    dodos.dodo(text)
    ours = dodos.doit("-c")
    dodos.dodo(text, head=_PLAIN)
    plain = dodos.doit("-c")
    assert (ours.code, sorted(ours.out.splitlines())) == (
        plain.code,
        sorted(plain.out.splitlines()),
    )
    assert ours.out.count("TaskFailed") == 2


def test_every_command_has_its_device(dodos: DodoFolder) -> None:
    """String, list and a command with an environment of its own: each sees exactly one device."""
    dodos.dodo("""
        from doit.action import CmdAction

        DOIT_CONFIG = {"verbosity": 2}


        def task_see():
            for name, action in {
                "string": "echo string $CUDA_VISIBLE_DEVICES >> seen",
                "list": ["sh", "-c", "echo list $CUDA_VISIBLE_DEVICES >> seen"],
                "own": CmdAction("echo own$V $CUDA_VISIBLE_DEVICES >> seen", env={"V": "1"}),
                "ours": grn("echo ours$W $CUDA_VISIBLE_DEVICES >> seen", env={"W": "2"}, memory=100),
            }.items():
                yield {"name": name, "actions": [grn(action, memory=100) if name != "ours" else action]}
    """)
    assert dodos.doit().code == 0
    seen = dict(line.split() for line in dodos.lines("seen"))
    assert set(seen) == {"string", "list", "own1", "ours2"}
    assert all(mask in {"0", "1"} for mask in seen.values()), seen


@pytest.mark.parametrize("runner", RUNNERS)
def test_up_to_date_is_doits_own(dodos: DodoFolder, runner: str) -> None:
    """A second run executes nothing, also when the options have changed; a changed dependency runs again."""
    text = """
        def task_make():
            return {"actions": [grn("echo made >> log; cat in > out", memory=MEMORY)], "file_dep": ["in"], "targets": ["out"]}


        def task_use():
            from doit.tools import result_dep

            return {"actions": ["echo used >> log"], "uptodate": [result_dep("say")]}


        def task_say():
            return {"actions": [grn("echo same", memory=MEMORY)]}
    """
    dodos.write("in", "1")
    dodos.dodo(text.replace("MEMORY", "100"))
    assert dodos.doit(*RUNNERS[runner]).code == 0
    dodos.dodo(text.replace("MEMORY", "200"))
    again = dodos.doit(*RUNNERS[runner])
    assert "-- make" in again.out, again
    assert sorted(dodos.lines("log")) == ["made", "used"]
    dodos.write("in", "2")
    assert dodos.doit(*RUNNERS[runner]).code == 0
    assert sorted(dodos.lines("log")) == ["made", "made", "used"]


def test_uncaptured_output_and_verbosity(dodos: DodoFolder) -> None:
    """`io: capture` and verbosity are doit's: each line goes where it goes without us."""
    text = """
        def task_io():
            for name, capture in {"false": False, "none": None, "true": True}.items():
                yield {
                    "name": name,
                    "actions": [grn(f"echo out-{name}; echo err-{name} >&2", memory=100)],
                    "io": {"capture": capture},
                }
    """
    shown: list[list[Any]] = []
    for head in (None, _PLAIN):
        dodos.dodo(text, **({} if head is None else {"head": head}))
        runs = [dodos.doit("-v", level) for level in "210"]
        shown.append(
            [
                (
                    sorted(run.out.splitlines()),
                    sorted(line for line in run.err.splitlines() if not line.startswith("grn: ")),
                )
                for run in runs
            ]
        )
    assert shown[0] == shown[1]
    assert "out-false" in shown[0][2][0]
    assert "out-true" not in shown[0][1][0]


def test_a_reporter_that_is_no_file(dodos: DodoFolder) -> None:
    """Uncaptured output under the JSON reporter is captured: plain doit breaks down there."""
    dodos.dodo("""
        from doit.tools import Interactive


        def task_io():
            yield {
                "name": "uncaptured",
                "actions": [grn("echo out-1; echo err-1 >&2", memory=100)],
                "io": {"capture": False},
                "verbosity": 2,
            }
            yield {"name": "interactive", "actions": [grn(Interactive("echo out-2"))], "verbosity": 2}
    """)
    done = dodos.doit("-r", "json")
    told = json.loads(done.out[done.out.index("{") :])  # doit 0.35 lets the interactive one write
    assert done.code == 0, done
    assert {task["result"] for task in told["tasks"]} >= {"success"}
    assert "out-1\n" in told["tasks"][0]["out"] + told["out"]


def test_output_streams_in_order(dodos: DodoFolder) -> None:
    """With verbosity 2 each line is there when it is written, not at the end."""
    dodos.dodo("""
        def task_slow():
            return {"actions": [grn("echo first; until test -e go; do sleep 0.02; done; echo second")], "verbosity": 2}
    """)
    process = dodos.start()
    assert process.stdout is not None
    assert b"slow" in process.stdout.readline()
    assert process.stdout.readline() == b"first\n"
    dodos.write("go", "")
    assert process.stdout.readline() == b"second\n"
    assert process.wait(30) == 0


def test_standard_input(dodos: DodoFolder) -> None:
    """The command reads doit's own input, in a worker process too, as without us."""
    dodos.dodo("""
        def task_read():
            return {"actions": [grn("cat > read; echo end >> read")]}
    """)
    assert dodos.doit(input=b"typed\n").code == 0
    assert dodos.lines("read") == ["typed", "end"]
    assert dodos.doit("-n", "2", input=b"typed\n").code == 0
    assert dodos.lines("read") == ["typed", "end"]


def test_background_processes_do_not_hold_the_task(dodos: DodoFolder) -> None:
    """A task ends with its command; what that leaves behind is ended, or waited for if so asked."""
    dodos.dodo("""
        DOIT_CONFIG = {"verbosity": 2}


        def task_leaves():
            return {"actions": [grn("sleep 600 & setsid sleep 601 & echo said")]}


        def task_waits():
            return {"actions": [grn("(sleep 0.5; echo late > late) & true", leftovers="wait")]}


        def task_keeps():
            return {
                "actions": [
                    grn("setsid sleep 602 >/dev/null 2>&1 & echo $! > kept", leftovers="keep"),
                    "kill $(cat kept)",
                ]
            }
    """)
    done = dodos.doit()
    assert done.code == 0, done
    assert "said" in done.out
    assert dodos.lines("late") == ["late"]
    dodos.none_left()


def test_values_travel(dodos: DodoFolder) -> None:
    """`save_out`, `getargs`, parameters and positional arguments work as ever, also in workers."""
    dodos.dodo("""
        from doit.action import CmdAction


        def task_one():
            return {"actions": [grn("printf saved", save_out="k", memory=100)]}


        def task_two():
            return {
                "actions": [grn("echo %(got)s %(rate)s %(more)s > two", memory=100)],
                "getargs": {"got": ("one", "k")},
                "params": [{"name": "rate", "short": "r", "default": "0.1"}],
                "pos_arg": "more",
            }
    """)
    for words in ((), ("-n", "2"), ("-n", "2", "-P", "thread")):
        assert dodos.doit("run", "-a", *words, "two", "-r", "0.5", "x", "y").code == 0
        assert dodos.read("two").split() == ["saved", "0.5", "x", "y"]


def test_teardown_and_clean(dodos: DodoFolder) -> None:
    """An action of ours may stand under `teardown` and `clean`; `list` and a dry run ask no broker."""
    dodos.dodo("""
        def task_make():
            return {
                "actions": [grn("echo 1 > out", memory=100)],
                "clean": [grn("echo cleaned > cleaned", gpus=0)],
                "teardown": [grn("echo over > over", gpus=0)],
            }
    """)
    away = {"GRN_SOCKET": "/nonexistent/s"}
    assert dodos.doit("list", "-s", environ=away).code == 0
    assert dodos.doit("clean", "-n", environ=away).code == 0
    assert not dodos.lines("cleaned")
    assert dodos.doit().code == 0
    assert dodos.lines("over") == ["over"]
    assert "executing 'Cmd: echo cleaned" in dodos.doit("clean").out
    assert dodos.lines("cleaned") == ["cleaned"]


def test_a_command_inside_a_lease_uses_that_lease(dodos: DodoFolder) -> None:
    """With doit under `grn run`, actions ask for a part of the outer lease and wait for nothing."""
    dodos.dodo("""
        def task_in():
            for number in range(3):
                yield {"name": str(number), "actions": [grn("echo $CUDA_VISIBLE_DEVICES >> seen")]}
    """)
    argv = [
        sys.executable,
        "-m",
        "grn",
        "run",
        "--memory=whole",
        "--",
        *dodos.argv("-n", "3", "-P", "thread"),
    ]
    process = dodos.env.popen(argv, cwd=dodos.folder)
    assert process.wait(60) == 0
    assert len(set(dodos.lines("seen"))) == 1
    assert len(dodos.lines("seen")) == 3


def test_cores_of_its_own(dodos: DodoFolder) -> None:
    """A command that asks for cores is bound to them."""
    dodos.dodo("""
        def task_bound():
            return {"actions": [grn(["python", "-c", "import os; open('n', 'w').write(str(len(os.sched_getaffinity(0))))"], affinity=True, cpus=1)]}
    """)
    assert dodos.doit().code == 0
    assert dodos.read("n") == "1" if len(os.sched_getaffinity(0)) > 1 else True


def test_what_actions_took_is_recorded(dodos: DodoFolder) -> None:
    """Commands and callables under leases tell that doit ran them, and what they took."""
    dodos.dodo(
        """
        def burn():
            for n in range(10 ** 5):
                n * n


        def task_kinds():
            yield {"name": "command", "actions": [grn("sort /dev/null", memory="100MiB")]}
            yield {"name": "callable", "actions": [grn(burn, memory="100MiB")]}
            yield {"name": "fork", "actions": [grn(burn, memory="100MiB", isolate="fork")]}
        """
    )
    done = dodos.doit()
    assert done.code == 0, f"{done}"
    dodos.env.stop()
    path = os.path.join(dodos.env.environ["GRN_STATE_DIR"], "history.sqlite")
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    found = db.execute("SELECT engine, cpu_s, rss_mib FROM lease ORDER BY seq").fetchall()
    db.close()
    assert [engine for engine, _, _ in found] == ["doit"] * 3
    assert all(cpu_s is not None and rss_mib > 0 for _, cpu_s, rss_mib in found)
