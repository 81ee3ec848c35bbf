"""`@grn_task`: all actions of all tasks that a creator makes, whatever the form in which it makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("doit")

from doit import create_after, task_params
from doit.action import CmdAction, PythonAction
from doit.exceptions import InvalidTask
from doit.loader import load_tasks
from doit.task import Task

from grn_plugins.doit import GrnAction, grn, grn_task

if TYPE_CHECKING:
    from tests.doit.project import Project


def made(creator: Any, name: str = "task_one") -> dict[str, Any]:
    """Have doit make the tasks of one creator."""
    return {task.name: task for task in load_tasks({name: creator})}


def options(task: Any) -> list[dict[str, Any] | None]:
    """Return what each action is wrapped with, `None` where it is not."""
    return [each.options.given if isinstance(each, GrnAction) else None for each in task.actions]


def test_every_form_of_a_task_is_wrapped() -> None:
    """A dict, sub-tasks, nested generators, doit's own Task objects, groups; and every form of an action."""

    @grn_task(memory="1GiB")
    def one() -> Any:
        """Text of all."""

        def inner() -> Any:
            """Text of the inner."""
            yield {"basename": "deep", "name": "x", "actions": ["true"]}
            yield {"basename": "flat", "actions": ["true"]}

        yield {"name": None, "doc": "the group"}
        yield {
            "name": "a",
            "actions": ["true", ["true"], made, (made, [1]), CmdAction("true"), PythonAction(made)],
        }
        yield inner()
        yield Task("own", ["true"], meta={"mine": 1})
        yield {"basename": "other", "actions": ("true",), "meta": {"mine": 2}}
        yield {"name": "nothing", "actions": None}

    tasks = made(one)
    assert list(tasks) == ["one", "one:a", "deep", "deep:x", "flat", "own", "other", "one:nothing"]
    given = {"memory": "1GiB"}
    assert options(tasks["one:a"]) == [given] * 6
    for name in ("deep:x", "flat", "own", "other"):
        assert options(tasks[name]) == [given]
    command, python = CmdAction, PythonAction
    kinds = [type(each.inner) for each in tasks["one:a"].actions]
    assert kinds == [command, command, python, python, command, python]
    assert (tasks["one"].doc, tasks["deep"].doc, tasks["flat"].doc) == (
        "the group",
        *["Text of the inner."] * 2,
    )
    assert tasks["own"].meta == {"mine": 1, "grn": given}
    assert tasks["other"].meta == {"mine": 2, "grn": given}
    assert options(made(grn_task(lambda: {"actions": ["true"]}))["one"]) == [{}]


def test_a_task_says_more() -> None:
    """Its own options win key by key; False leaves it alone; actions of `grn` stay; clean is untouched."""

    @grn_task(memory="1GiB", gpus=2)
    def one() -> Any:
        yield {"name": "more", "actions": ["true"], "meta": {"grn": {"memory": "2GiB", "job": "j"}}}
        yield {"name": "none", "actions": ["true"], "meta": {"grn": False}}
        yield {"name": "yes", "actions": ["true"], "meta": {"grn": True}}
        yield {"name": "made", "actions": [grn("true", gpus=3), "true"]}
        yield {"name": "ends", "actions": ["true"], "clean": ["true"], "teardown": ["true", made]}

    tasks = made(one)
    assert options(tasks["one:more"]) == [{"memory": "2GiB", "gpus": 2, "job": "j"}]
    assert tasks["one:more"].meta == {"grn": {"memory": "2GiB", "gpus": 2, "job": "j"}}
    assert options(tasks["one:none"]) == [None]
    assert options(tasks["one:yes"]) == [{"memory": "1GiB", "gpus": 2}]
    assert options(tasks["one:made"]) == [{"gpus": 3}, {"memory": "1GiB", "gpus": 2}]
    ends = tasks["one:ends"]
    assert [type(each) for each in (*ends.clean_actions, *ends.teardown)] == [
        CmdAction,
        CmdAction,
        PythonAction,
    ]


def test_the_creator_stays_what_it_was() -> None:
    """Its name, text, line and attributes, so that doit's own decorators may stand above or below."""

    def one(number: int = 0) -> Any:
        """Text."""
        return {"actions": [f"echo {number}"]}

    parameters = [{"name": "number", "default": 5, "type": int}]
    for creator in (
        grn_task(task_params(parameters)(one)),
        task_params(parameters)(grn_task(memory="1GiB")(one)),
    ):
        assert (creator.__name__, creator.__doc__) == ("one", "Text.")
        task = made(creator)["one"]
        assert str(task.actions[0]) == "Cmd: echo 5"
        assert isinstance(task.actions[0], GrnAction)
        assert task.creator_params == parameters
    late = grn_task(create_after(executed="x", creates=["later"])(one))
    assert [task.name for task in load_tasks({"task_one": late}, allow_delayed=True)] == ["later"]
    second = grn_task(lambda: {"actions": ["true"]})
    assert [task.name for task in load_tasks({"task_b": second, "task_a": made_first})] == [
        "b",
        "a",
    ]


@grn_task
def made_first() -> Any:
    """Stand below the other one in this file."""
    return {"actions": ["true"]}


class Creating:
    """An object that creates tasks."""

    @grn_task(memory="1GiB")
    def create_doit_tasks(self) -> Any:
        """Make one."""
        return {"actions": [self.method]}

    def method(self) -> bool:
        """Be an action."""
        return True


def test_a_method_may_be_decorated() -> None:
    """Objects with `create_doit_tasks` work, and a method is an action as well."""
    assert options(made(Creating(), "thing")["thing"]) == [{"memory": "1GiB"}]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: grn_task(gpu=1), "@grn_task: there is no option 'gpu'; did you mean 'gpus'?"),
        (lambda: grn_task(memory="much"), "@grn_task: memory 'much' is not a size"),
        (lambda: grn_task("true"), "'true' is none. A single action is wrapped with grn(…)"),
        (lambda: grn_task(made_first, gpus=1), "by name alone: @grn_task(gpus=1)"),
        (
            lambda: made(grn_task(lambda: _task(["true"], 1))),
            "task <lambda>: meta['grn'] is 1; give a dict",
        ),
        (
            lambda: made(grn_task(lambda: _task(["true"], {"gpu": 1}))),
            "task <lambda>: there is no option 'gpu'",
        ),
        (lambda: made(grn_task(lambda: _task([7], None))), "7 is no action"),
        (lambda: made(grn_task(lambda: [1])), "Must return a dictionary or generator"),
        (lambda: made(grn_task(lambda: _task("true", None))), "attribute 'actions' must be"),
    ],
)
def test_mistakes_are_told_when_the_file_is_loaded(wrong: Any, said: str) -> None:
    """In doit's own class, so that doit shows one line instead of a traceback."""
    with pytest.raises(InvalidTask) as error:
        wrong()
    assert said in str(error.value)


def _task(actions: Any, own: Any) -> dict[str, Any]:
    return {"actions": actions, "meta": None if own is None else {"grn": own}}


DELAYED = """
    from doit import create_after, task_params


    def task_first():
        return {"actions": ["echo x > made"], "targets": ["made"]}


    @create_after(executed="first")
    @grn_task(memory="1GiB")
    def task_over():
        for name in open("made").read().split():
            yield {"name": name, "actions": ["echo $CUDA_VISIBLE_DEVICES"]}


    @grn_task(memory="1GiB")
    @create_after(executed="first", creates=["under"])
    def task_other():
        yield {"basename": "under", "name": "y", "actions": [lambda: print(__import__("os").environ["CUDA_VISIBLE_DEVICES"])]}


    @grn_task
    @task_params([{"name": "many", "long": "many", "default": 1, "type": int}])
    def task_par(many):
        for number in range(many):
            yield {"name": str(number), "actions": ["echo $CUDA_VISIBLE_DEVICES"]}
"""


@pytest.mark.parametrize(
    "words", [(), ("-n", "3"), ("-n", "3", "-P", "thread")], ids=["serial", "process", "thread"]
)
def test_tasks_that_are_made_during_the_run(project: Project, words: tuple[str, ...]) -> None:
    """Creators under and over `@create_after` and `@task_params`, in every runner."""
    project.dodo(DELAYED)
    told = project.results(*words, "first", "over", "under", "par", "--many", "2")
    masks = {told[name]["out"].strip() for name in ("over:x", "under:y", "par:0", "par:1")}
    assert masks <= {"0", "1"}
