"""The names under which the needs of actions are learnt."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit")

from tests.doit.dodofolder import RUNNERS

if TYPE_CHECKING:
    from tests.doit.project import Project

DODO = """
    import os


    def held():
        print(os.environ["GRN_MEM_MIB"])


    @grn_task
    def task_train():
        for model in ("small", "large"):
            yield {"name": model, "actions": [held, "echo $GRN_MEM_MIB"], "verbosity": 2}


    def task_named():
        yield {"name": "a", "actions": [grn(held, job="mine")]}
        yield {"name": "b", "actions": [grn("true"), grn(held, job="{base} {action} {task} {rate}")],
               "params": [{"name": "rate", "default": 3, "type": int}]}
        yield {"name": "c", "actions": [grn(held, job="{nobody}")]}
"""


def types(project: Project) -> set[str]:
    """Return what the broker has heard of, without this project's folder."""
    with_folder = {profile["type"] for profile in project.env.client().profiles()}
    return {name.removeprefix(os.path.realpath(project.folder)) for name in with_folder}


@pytest.mark.parametrize("runner", RUNNERS)
def test_sub_tasks_share_a_type_and_actions_do_not(project: Project, runner: str) -> None:
    """The folder, the task's base name, and the action's number from the second on."""
    project.dodo(DODO)
    project.run(*RUNNERS[runner], "train")
    assert types(project) == {"::train", "::train#2"}


def test_job_names_the_type(project: Project) -> None:
    """As it stands, or with what the task knows filled in; what it does not know is an error."""
    project.dodo(DODO)
    told = project.results("-c", "named", status=2)
    assert types(project) == {"mine", "::named", "named 2 named:b 3"}
    assert (
        "job='{nobody}': there is no {nobody} here; there are action, base, task"
        in told["named:c"]["error"]
    )


def test_the_full_name_goes_first_where_it_is_known(project: Project) -> None:
    """What somebody has set for one sub-task is for that one."""
    project.dodo(DODO)
    client = project.env.client()
    folder = os.path.realpath(project.folder)
    for name, mib in (("train", 1000), ("train:large", 3000), ("train#2", 500)):
        client.profiles("set", type=f"{folder}::{name}", memory_mib=mib)
    told = project.results("train")
    assert told["train:small"]["out"].split()[::2] == ["1000", "500"]
    assert told["train:large"]["out"].split()[::2] == ["3000", "500"]
