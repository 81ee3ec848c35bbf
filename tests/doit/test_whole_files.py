"""Whole dodo files of the kinds that people have, run from beginning to end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit")

from tests.doit.project import Project

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

KINDS = """
    import os
    import sys
    import time

    from doit.action import CmdAction

    DOIT_CONFIG = {"verbosity": 0}
    MASK = "CUDA_VISIBLE_DEVICES"


    def alone():
        print(os.environ.get(MASK))


    def pair(me, other):
        open(me, "w").close()
        while not os.path.exists(other):
            time.sleep(0.01)
        print(os.environ.get(MASK))
        open(f"done-{me}", "w").close()


    def task_all():
        kinds = {
            "string": f"echo mask ${MASK}",
            "list": ["echo", "a b", "$HOME", "|", "x"],
            "env": CmdAction(f"echo V=$V mask ${MASK}", env={"V": "1", "PATH": os.environ["PATH"]}),
            "callable": alone,
        }
        for name, action in kinds.items():
            yield {"name": name, "actions": [grn(action, memory="100MiB")]}
        for me, other in ("ab", "ba"):
            yield {"name": me, "actions": [grn((pair, [me, other]), memory="5000MiB")], "targets": [f"done-{me}"],
                   "uptodate": [True]}
"""


@pytest.mark.parametrize("runner", ["process", "thread"])
def test_each_kind_of_action_sees_one_device(project: Project, runner: str) -> None:
    """Shell lines keep their shell, lists stay without one, `env` and mask go together, two see two devices."""
    project.dodo(KINDS)
    told = project.results("-n", "2", "-P", runner)
    said = {name.removeprefix("all:"): task["out"].strip() for name, task in told.items()}
    assert said["string"] in {"mask 0", "mask 1"}
    assert said["list"] == "a b $HOME | x"
    assert said["env"] in {"V=1 mask 0", "V=1 mask 1"}
    assert said["callable"] in {"0", "1"}
    assert {said["a"], said["b"]} == {"0", "1"}
    again = project.results("-n", "2", "-P", runner)
    assert (again["all:a"]["result"], again["all:b"]["result"]) == ("up-to-date", "up-to-date")


KINDS_OF_TRAINING = {"train_a": 1000, "train_b": 3000, "train_c": 2000}


def _trainers() -> str:
    job = f"{sys.executable} -m grn.testing.job --seconds 0.3"
    return f"""
    JOBS = {{
        "a": "{job} --plan '0:400MiB 0.1:1000MiB'",
        "b": "{job} --plan '0:375MiB 0.1:750MiB 0.15:1500MiB 0.2:3000MiB'",
        "c": "{job} --memory 2000MiB --preallocate 0.75",
    }}


    def task_download():
        return {{"actions": ["touch images labels"], "targets": ["images", "labels"], "uptodate": [True]}}


    @grn_task
    def task_train():
        for kind, job in JOBS.items():
            for number in range(3):
                yield {{"basename": f"train_{{kind}}", "name": str(number), "actions": [f"echo $GRN_MEM_MIB; {{job}}"],
                        "file_dep": ["images", "labels"], "uptodate": [False]}}
    """


@pytest.mark.parametrize("runner", ["process", "thread"])
def test_nine_trainings_of_three_kinds(
    new_env: Callable[..., BrokerEnv], tmp_path: Path, runner: str
) -> None:
    """The first of each kind is measured alone, then they share; a second run shares from the start."""
    env = new_env("sim:2x16384MiB", sample_fast=0.05)
    project = Project(env, tmp_path / "project")
    project.dodo(_trainers())
    for turn in (1, 2):
        told = project.results("-n", "9", "-P", runner)
        booked = {name: task["out"].split()[0] for name, task in told.items() if ":" in name}
        assert len(booked) == 9
        whole = {name.partition(":")[0] for name, mib in booked.items() if mib == "16384"}
        assert whole == (set(KINDS_OF_TRAINING) if turn == 1 else set()), booked
        profiles = {each["type"].rpartition("::")[2]: each for each in env.client().profiles()}
        assert {
            name: profile["peak_mib"] for name, profile in profiles.items()
        } == KINDS_OF_TRAINING
        assert told["download"]["result"] == ("success" if turn == 1 else "up-to-date")


PIPELINE = """
    import os


    def credentials():
        os.environ["API_USERNAME"] = "ada"


    def download(targets):
        with open(targets[0], "w") as file:
            file.write(os.environ["API_USERNAME"])


    def prepare(dependencies, targets):
        with open(dependencies[0]) as given, open(targets[0], "w") as made:
            made.write(given.read().upper())


    def train():
        with open("trained", "a") as file:
            file.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.environ['API_USERNAME']}\\n")
"""
PIPELINE_DODO = """
    import pipeline

    DOIT_CONFIG = {"default_tasks": ["train"]}


    def task_credentials():
        return {"actions": [pipeline.credentials]}


    def task_download():
        return {"actions": [pipeline.download], "targets": ["raw"], "setup": ["credentials"], "uptodate": [True]}


    def task_prepare():
        return {"actions": [pipeline.prepare], "file_dep": ["raw"], "targets": ["ready"], "uptodate": [True]}


    def task_train():
        return {"actions": [grn(pipeline.train, memory="1GiB")], "file_dep": ["ready"], "setup": ["credentials"],
                "uptodate": [False]}


    if __name__ == "__main__":
        import doit

        doit.run(globals())
"""


def test_a_pipeline_of_callables(project: Project) -> None:
    """Only the training gets a lease; variables of earlier tasks are there; a second run trains alone."""
    project.write("pipeline.py", PIPELINE)
    project.dodo(PIPELINE_DODO)
    first = project.run()
    assert [line.strip(". ") for line in first.out.splitlines()] == [
        "credentials",
        "download",
        "prepare",
        "train",
    ]
    assert project.lines("trained") == ["0 ada"]
    second = project.run()
    assert "-- download" in second.out
    assert "-- prepare" in second.out
    assert second.out.splitlines()[-1] == ".  train"
    assert [each["type"].rpartition("::")[2] for each in project.env.client().profiles()] == [
        "train"
    ]


def test_a_dodo_file_that_is_run_as_a_program(project: Project) -> None:
    """`python dodo.py` works as well: what is in `__main__` travels by value."""
    project.write("pipeline.py", PIPELINE)
    project.dodo(PIPELINE_DODO)
    done = project.env.popen(
        [sys.executable, "dodo.py"], cwd=project.folder, stdin=None, stdout=-1, stderr=-1, text=True
    )
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, out + err
    assert project.lines("trained") == ["0 ada"]
