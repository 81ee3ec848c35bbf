"""doit's other commands, beside what they say of the same file without us."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("doit")

if TYPE_CHECKING:
    from tests.doit.project import Project

DODO = """
    import os


    def made(targets):
        open(targets[0], "w").close()


    def told():
        print("cleaning")


    @grn_task(gpus=1, memory="1GiB")
    def task_all():
        '''All of it'''
        yield {"name": "call", "actions": [made], "targets": ["a"], "clean": True}
        yield {"name": "list", "actions": [["touch", "b"]], "targets": ["b"], "clean": [told, "echo clean"]}
        yield {"name": "line", "actions": ["echo %(targets)s > c"], "targets": ["c"], "file_dep": ["a"]}


    def task_one():
        return {"actions": [grn("touch d", memory="1GiB")], "targets": ["d"], "teardown": ["echo down"], "verbosity": 2}
"""
COMMANDS = (
    ["list", "--all", "--status"],
    ["list", "--deps"],
    ["info", "all:line"],
    [],
    ["list", "--all", "-s"],
    ["clean", "-n"],
    ["forget", "all:call"],
    ["clean", "all"],
    ["list", "-s"],
)


def test_other_commands_say_what_they_said(project: Project) -> None:
    """list, info, clean, forget: word for word, but for the options that `info` shows."""
    said = []
    for write in (project.plain_dodo, project.our_dodo):
        write(DODO)
        for name in "abcd":
            (project.folder / name).unlink(missing_ok=True)
        said.append([project.doit(*words).out for words in COMMANDS])
    plain, ours = said
    assert plain[:2] == ours[:2]
    assert (
        ours[2].replace("\nmeta       : {'grn': {'gpus': 1, 'memory': '1GiB'}}\n", "") == plain[2]
    )
    assert plain[3:] == ours[3:]
    assert "U all:line" in ours[4]
