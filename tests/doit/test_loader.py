"""Leases without a word in the dodo file: the loader plugin, chosen in `pyproject.toml`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit")

from tests.doit.dodofolder import RUNNERS

if TYPE_CHECKING:
    from tests.doit.project import Project

CHOSEN = '[tool.doit]\nloader = "grn"\n'
RULES = """
    [[tool.grn.doit]]
    match = "train:small"
    memory = "1GiB"

    [[tool.grn.doit]]
    match = ["train", "late*", "thing"]
    memory = "2GiB"
    job = "train"

    [[tool.grn.doit]]
    match = "hidden"
    gpus = "none"
"""
DODO = """
    import os

    from doit import create_after, task_params

    DOIT_CONFIG = {"verbosity": 2}


    def look():
        print(os.environ.get("GRN_MEM_MIB", "none"), os.environ.get("CUDA_VISIBLE_DEVICES", "none"))


    def task_train():
        for name in ("small", "large"):
            yield {"name": name, "actions": [look]}
        yield {"name": "own", "actions": [look], "meta": {"grn": {"memory": "3GiB"}}}
        yield {"name": "not", "actions": [look], "meta": {"grn": False}}


    def task_meta():
        return {"actions": ["echo $GRN_MEM_MIB"], "meta": {"grn": {"memory": "3GiB"}}}


    def task_plain():
        return {"actions": [look], "meta": {"mine": 1}}


    def task_hidden():
        return {"actions": [look]}


    @create_after(executed="plain")
    def task_late():
        yield {"name": "x", "actions": [look]}


    @create_after(executed="plain", creates=["later"])
    def task_other():
        return {"actions": [look]}


    class Creating:
        def create_doit_tasks(self):
            return {"actions": [look]}


    thing = Creating()
    del Creating
"""
TOLD = {
    "train:small": "1024 0",
    "train:large": "2048 0",
    "train:own": "3072 0",
    "train:not": "none none",
    "meta": "3072",
    "plain": "none none",
    "hidden": "0 none",  # a lease of no device leaves the mask alone
    "late:x": "2048 0",
    "later": "2048 0",
    "thing": "2048 0",
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_tasks_are_wrapped_by_meta_and_by_rule(project: Project, runner: str) -> None:
    """The first rule that matches, what the task says itself over it; also what is made during the run."""
    project.dodo(DODO, head="")
    project.write("pyproject.toml", CHOSEN + textwrap.dedent(RULES))
    told = project.results(*RUNNERS[runner])
    assert {name: told[name]["out"].strip().replace(" 1", " 0") for name in TOLD} == TOLD
    assert (
        "meta       : {'grn': {'job': 'train', 'memory': '2GiB'}}"
        in project.doit("info", "train:large").out
    )


def test_without_being_chosen_it_does_nothing(project: Project) -> None:
    """Installed alone it changes no task; its rules may stand in grn.toml."""
    project.dodo(DODO, head="")
    project.write("grn.toml", textwrap.dedent(RULES).replace("tool.grn.", ""))
    assert "none none" in project.results("train:large")["train:large"]["out"]
    project.write("pyproject.toml", CHOSEN)
    assert project.results("train:large")["train:large"]["out"].startswith("2048 ")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            'memory = "1GiB"',
            "pyproject.toml:3, [[tool.grn.doit]] number 1: write match = 'PATTERN'",
        ),
        (
            'match = "a"\nmemry = "1GiB"',
            "number 1: there is no option 'memry'; did you mean 'memory'?",
        ),
        ('match = "a"\nmemory = "much"', "number 1: memory 'much' is not a size"),
        ("match = [1]", "number 1: write match = 'PATTERN'"),
        ('match = "a"\nflavor = "none-such"', "number 1: there is no flavor 'none-such'"),
        ('match = "a"\n[tool.grn.doits]', "unknown key 'tool.grn.doits'"),
    ],
)
def test_a_wrong_rule_is_one_line(project: Project, rule: str, said: str) -> None:
    """With its file, its line and what is wrong, and nothing is run."""
    project.dodo(DODO, head="")
    project.write("pyproject.toml", f"{CHOSEN}[[tool.grn.doit]]\n{rule}\n")
    done = project.run("list", status=3)
    assert said in done.err
    assert done.err.startswith("ERROR: ")
    assert "Traceback" not in done.err


def test_a_table_in_place_of_rules(project: Project) -> None:
    """Single brackets are told of."""
    project.dodo(DODO, head="")
    project.write("pyproject.toml", f'{CHOSEN}[tool.grn.doit]\nmatch = "a"\n')
    assert (
        "rules are written with two brackets: [[tool.grn.doit]]"
        in project.run("list", status=3).err
    )
