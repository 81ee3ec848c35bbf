"""Python actions under leases, run by the real `doit`, each beside what plain doit makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit")

from tests.doit.dodofolder import RUNNERS

if TYPE_CHECKING:
    from tests.doit.project import Project

RULES = """
    import os
    import signal
    import sys
    import threading

    from doit.exceptions import TaskError, TaskFailed
    from doit.tools import PythonInteractiveAction

    DOIT_CONFIG = {"verbosity": 2}


    class OutOfMemoryError(RuntimeError):
        pass


    def returned(value):
        return lambda: value


    def raises():
        print("before")
        raise ValueError("boom")


    def leaves():
        sys.exit(0)


    def dies(number):
        os.kill(os.getpid(), number)


    def takes(lock):
        return True


    async def later():
        return True


    def out_of_memory():
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


    ACTIONS = {
        "none": returned(None), "true": returned(True), "text": returned("done"), "dict": returned({"a": 1}),
        "false": returned(False), "failed": returned(TaskFailed("no good")), "error": returned(TaskError("bad")),
        "number": returned(42), "raises": raises, "exits": leaves, "coroutine": lambda: later(),
        "segfault": (dies, [signal.SIGSEGV]), "killed": (dies, [signal.SIGKILL]),
        "argument": (takes, [threading.Lock()]), "result": lambda: {"lock": threading.Lock()},
        "memory": out_of_memory, "interactive": PythonInteractiveAction(returned({"b": 2})),
        "signature": (takes, [1, 2, 3]),
    }


    @grn_task(memory="1GiB")
    def task_one():
        for name, action in ACTIONS.items():
            if name in os.environ.get("ONLY", name).split(","):
                yield {"name": name, "actions": [action]}
"""
FINE = ("none", "true", "text", "dict", "interactive")
AS_PLAIN = (*FINE, "false", "failed", "error", "number", "raises")
SAID = {
    "false": "Python Task failed: '<function returned.<locals>.<lambda>",
    "failed": "no good",
    "error": "bad",
    "number": "returned 42 (<class 'int'>)",
    "raises": "ValueError: boom",
    "exits": "called sys.exit(0)",
    "coroutine": "returned <coroutine object later",
    "segfault": "was killed by SIGSEGV",
    "killed": "was killed by SIGKILL",
    "argument": "cannot pickle '_thread.lock' object",
    "result": "returned what cannot leave it: dict",
    "memory": "GRN: the device's memory ran out",
    "signature": "too many positional arguments",
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_whatever_a_callable_does_doit_is_told(project: Project, runner: str) -> None:
    """Values and failures are judged by doit's rules; no death of a callable hangs or ends doit."""
    project.dodo(RULES)
    told = project.results("-c", *RUNNERS[runner], status=2)
    results = {
        name.removeprefix("one:"): task["result"] for name, task in told.items() if ":" in name
    }
    assert {name for name, result in results.items() if result == "success"} == set(FINE)
    assert {name for name, result in results.items() if result == "fail"} == set(SAID)
    for name, said in SAID.items():
        assert said in told[f"one:{name}"]["error"], told[f"one:{name}"]
    assert "before\n" in told["one:raises"]["out"]


def test_rules_are_those_of_plain_doit(project: Project) -> None:
    """What plain doit can be asked without being killed, it says in the same words."""
    only = ",".join(AS_PLAIN)
    project.our_dodo(RULES)
    ours = project.results("-c", "one", status=2, ONLY=only)
    project.plain_dodo(RULES)
    plain = project.results("-c", "one", status=2, ONLY=only)
    for name, task in plain.items():
        mine = ours[name]
        assert (task["result"], task["out"], task["err"]) == (
            mine["result"],
            mine["out"],
            mine["err"],
        )
        first = (task["error"] or "").partition(" at 0x")[0].partition("Traceback")[0]
        assert (mine["error"] or "").startswith(first)


ARGUMENTS = """
    import os
    import sys

    from doit import get_initial_workdir, get_var

    DOIT_CONFIG = {"verbosity": 2, "action_string_formatting": "new"}
    STATE = {"who": "nobody"}


    def everything(task, targets, dependencies, changed, rate, extra, **rest):
        print(task.name, sorted(task.file_dep), targets, dependencies, changed, rate, extra, sorted(rest.items()))


    def surroundings():
        print(get_var("size", "?"), get_initial_workdir(), sys.argv[-2:], os.getcwd(), sys.path[:2])
        print(STATE["who"], __name__, __file__)
        # a process worker has an environment of its own
        print("earlier" if "-n" in sys.argv and "-P" not in sys.argv else os.environ["TOLD"])


    def positional(words, first, second=2):
        print(words, first, second)


    def closure(word):
        captured = {"word": word}
        return lambda: print(captured["word"]) or captured


    def gives():
        return {"number": 7, "text": "seven"}


    class Callable:
        def __call__(self, targets):
            print("an object", targets)

        def method(self):
            print("a method")


    def tells():
        os.environ["TOLD"] = "earlier"


    def task_tell():
        return {"actions": [tells]}


    @grn_task(memory="1GiB")
    def task_all():
        yield {
            "name": "everything", "actions": [(everything, [], {"extra": "x"})], "targets": ["made"],
            "file_dep": ["given"], "params": [{"name": "rate", "default": 0.1, "type": float},
                                              {"name": "more", "default": "m"}],
            "getargs": {"got": ("gives", "number")},
        }
        yield {"name": "around", "actions": [surroundings], "task_dep": ["tell"]}
        yield {"name": "closure", "actions": [closure("captured"), lambda: print("lambda")]}
        yield {"name": "object", "actions": [Callable(), Callable().method, (print_all, (1,), {"b": 2})]}


    def print_all(a, b):
        print(a, b)


    @grn_task(memory="1GiB")
    def task_gives():
        return {"actions": [gives]}


    @grn_task(memory="1GiB")
    def task_words():
        return {"actions": [(positional, [], {"first": 1})], "pos_arg": "words"}
"""


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_callable_finds_what_plain_doit_gives_it(project: Project, runner: str) -> None:
    """Arguments of every kind, closures, methods, `get_var`, folder, path, `os.environ` of earlier tasks."""
    project.write("given", "x")
    words = ("size=5", "tell", "all", "gives", "words", "a", "b")
    project.plain_dodo(ARGUMENTS)
    plain = project.results(*words)  # serially: plain doit's threads mix their output
    project.our_dodo(ARGUMENTS)
    ours = project.results(*RUNNERS[runner], *words)
    kept = {name: (task["result"], task["out"], task["err"]) for name, task in ours.items()}
    assert kept == {
        name: (task["result"], task["out"], task["err"]) for name, task in plain.items()
    }
    assert "all:everything ['given'] ['made'] ['given'] [] 0.1 x [('got', 7)," in str(
        kept["all:everything"]
    )
    assert "['a', 'b'] 1 2" in str(kept["words"])
