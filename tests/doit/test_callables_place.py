"""Where Python actions run, and what reaches doit of their output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit")

from tests.doit.dodofolder import RUNNERS

if TYPE_CHECKING:
    from tests.doit.project import Project

MASK = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize("runner", ["process", "thread"])
def test_masks_and_caps_are_there_before_any_import(project: Project, runner: str) -> None:
    """Two at once see one device each, also in what the dodo file imports at its top."""
    project.write("early.py", "import os\nSEEN = dict(os.environ)\n")
    project.dodo("""
        import os
        import time

        import early


        def look(me, other):
            open(me, "w").close()
            for _ in range(3000):
                if os.path.exists(other):
                    break
                time.sleep(0.01)
            seen = [early.SEEN.get(name) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "GRN_DEVICES")]
            print(*seen)


        @grn_task(memory="1GiB")
        def task_look():
            yield {"name": "a", "actions": [(look, ["a", "b"])]}
            yield {"name": "b", "actions": [(look, ["b", "a"])]}
    """)
    told = project.results("-n", "2", "-P", runner)
    seen = [told[name]["out"].split() for name in ("look:a", "look:b")]
    assert {mask for mask, _, _ in seen} == {"0", "1"}
    assert all(threads.isdecimal() for _, threads, _ in seen)
    assert len({devices for _, _, devices in seen}) == 2


def test_doits_own_process_only_where_it_can_be_right(project: Project) -> None:
    """isolate=False changes doit's process, for the length of the call; beside threads it is refused."""
    project.dodo("""
        import os
        import threading

        LOCK = threading.Lock()
        DONE = []


        def here(word):
            DONE.append(word)
            print(os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"))


        def after():
            print(os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), DONE)


        def task_one():
            yield {"name": "here", "actions": [grn((here, ["a"]), isolate=False), after]}
            yield {"name": "copy", "actions": [grn(lambda: print(os.getpid(), LOCK.locked()), isolate="fork")]}
    """)
    told = project.results()
    here, *_, after = told["one:here"]["out"].splitlines()
    assert here.split() == [after.split()[0], "0"]
    assert after.split(None, 1)[1] == "None ['a']"
    copy = told["one:copy"]["out"].split()
    assert copy[1] == "False"
    assert copy[0] != here.split()[0]
    told = project.results("-c", *RUNNERS["thread"], status=2)
    assert "isolate=False is wrong beside threads" in told["one:here"]["error"]
    assert 'isolate="fork" is wrong beside threads' in told["one:copy"]["error"]


def test_the_debugger_finds_the_callable(project: Project) -> None:
    """With --pdb a callable runs in doit's own process, where its frames can be looked at."""
    project.dodo("""
        def wrong():
            number = 6 * 7
            raise ValueError("boom")


        @grn_task
        def task_one():
            return {"actions": [wrong]}
    """)
    done = project.doit("--pdb", input=b"p number\nq\n")
    assert "(Pdb) 42" in done.out, done
    assert done.code == 2, done


OUTPUT = """
    import os
    import sys

    from doit.action import PythonAction
    from doit.tools import PythonInteractiveAction

    ASKS = os.environ.get("ASKS")


    def speaks():
        print("out of", __name__)
        print("err", file=sys.stderr)
        sys.stdout.write("no end of line")


    def asks():
        print("got", input())


    @grn_task
    def task_one():
        for verbosity in (0, 1, 2):
            yield {"name": f"v{verbosity}", "actions": [speaks], "verbosity": verbosity}
        for name, capture in (("true", True), ("false", False), ("none", None)):
            yield {"name": name, "actions": [speaks], "io": {"capture": capture}, "verbosity": 2}
        yield {"name": "quiet", "actions": [speaks], "io": {"capture": False}, "verbosity": 0}
        if ASKS:
            kind = PythonInteractiveAction if ASKS == "interactive" else PythonAction
            yield {"name": "asks", "actions": [kind(asks)]}
"""


def test_output_is_shown_as_plain_doit_shows_it(project: Project) -> None:
    """Verbosity, capture and standard input, with the console's reporter and with JSON's."""
    told = []
    for write in (project.plain_dodo, project.our_dodo):
        write(OUTPUT)
        for kind in ("interactive", "usual"):
            done = project.doit(input=b"one\ntwo\n", environ={"ASKS": kind})
            assert done.code == 0, done
            told.append((done.out, [line for line in done.err.splitlines() if "grn:" not in line]))
        told.append(project.results())
    assert told[:2] == told[3:5]
    assert {name: _bare(task) for name, task in told[2].items()} == {
        name: _bare(task) for name, task in told[5].items()
    }


def _bare(task: dict[str, object]) -> list[object]:
    return [task["result"], task["out"], task["err"]]


def test_output_comes_as_it_is_written(project: Project) -> None:
    """What a callable prints is shown while it runs; without capture it has doit's terminal itself."""
    project.dodo("""
        import os
        import sys
        import time


        def speaks():
            print("tty", sys.stdout.isatty())
            while not os.path.exists("go"):
                time.sleep(0.01)
            open("went", "w").close()


        @grn_task
        def task_one():
            yield {"name": "kept", "actions": [speaks], "verbosity": 2}
            yield {"name": "direct", "actions": [speaks], "verbosity": 2, "io": {"capture": False}}
    """)
    terminal = project.in_terminal()
    terminal.wait_for(b"tty False")
    project.write("go", "")
    terminal.wait_for(b"tty True")
    assert terminal.end() == 0


@pytest.mark.parametrize("isolate", [True, "fork"])
def test_leftovers_are_seen_to(project: Project, isolate: object) -> None:
    """What a callable leaves behind is killed, waited for, or kept, and holds up no output."""
    project.dodo(f"""
        import subprocess


        def leaves(seconds):
            command = f"sleep {{seconds}}; echo late; touch over{{seconds}}"
            subprocess.Popen(["sh", "-c", command], start_new_session=True)
            print("early")


        def task_one():
            for name, seconds in (("kill", 1000), ("wait", 0.3), ("keep", 1001)):
                action = grn((leaves, [seconds]), leftovers=name, isolate={isolate!r}, grace=1)
                yield {{"name": name, "actions": [action]}}
    """)
    told = project.results()
    assert [told[f"one:{name}"]["out"] for name in ("kill", "wait", "keep")] == [
        "early\n",
        "early\nlate\n",
        "early\n",
    ]
    assert (project.folder / "over0.3").exists()
    words = []
    for pid in project.left():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words.append(file.read())
    assert all(b"1001" in each for each in words)
    assert words


def test_a_task_that_cannot_travel_is_a_view(project: Project) -> None:
    """A callable that asks for its task gets a copy, or what of it can be copied."""
    project.dodo("""
        import threading


        def look(task):
            print(type(task).__name__, task.name, list(task.targets), task.options, sorted(task.meta))


        @grn_task
        def task_one():
            params = [{"name": "rate", "default": 3, "type": int}]
            usual = {"actions": [look], "targets": ["t"], "params": params}
            yield {**usual, "name": "copy", "meta": {"mine": 1}}
            yield {**usual, "name": "view", "targets": ["u"], "meta": {"mine": 1, "lock": threading.Lock()}}
    """)
    told = project.results()
    assert told["one:copy"]["out"] == "Task one:copy ['t'] {'rate': 3} ['grn', 'mine']\n"
    assert told["one:view"]["out"] == "TaskView one:view ['u'] {'rate': 3} ['grn', 'mine']\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(project: Project, method: str) -> None:
    """Process workers that are not forked run Python actions as well."""
    project.dodo(f"""
        import multiprocessing
        import os

        if __name__ == "dodo" and multiprocessing.parent_process() is None:
            multiprocessing.set_start_method({method!r}, force=True)


        def look(targets):
            print(os.environ["CUDA_VISIBLE_DEVICES"], targets)


        @grn_task(memory="1GiB")
        def task_one():
            for name in "abc":
                yield {{"name": name, "actions": [look], "targets": [name]}}
    """)
    told = project.results(*RUNNERS["process"])
    assert [told[f"one:{name}"]["out"].split()[1] for name in "abc"] == ["['a']", "['b']", "['c']"]


def test_what_doit_remembers_is_what_plain_doit_remembers(project: Project) -> None:
    """Results, values and saved output are the same, so nothing runs again that would not anyway."""
    dodo = """
        from doit.task import result_dep


        def told():
            return "text"


        def values():
            return {"a": 1}


        @grn_task
        def task_one():
            yield {"name": "text", "actions": [told], "uptodate": [True]}
            yield {"name": "dict", "actions": [values], "uptodate": [True]}
            yield {"name": "none", "actions": [lambda: None], "targets": ["one"], "uptodate": [True]}
            yield {"name": "after", "actions": [told], "uptodate": [result_dep("one:dict")]}
    """
    (project.folder / "one").touch()
    saved = []
    for write in (project.plain_dodo, project.our_dodo):
        write(dodo)
        project.run("--backend", "json")
        saved.append(project.saved())
        saved.append(project.run("--backend", "json").out)
        assert "-- one:text\n-- one:dict\n-- one:none\n" in saved[-1]
    assert saved[:2] == saved[2:]
