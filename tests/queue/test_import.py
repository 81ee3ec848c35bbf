"""Control files of the older notebook scheduler are taken in whole, or set aside with the reason."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.queue.conftest import QueueEnv

    Make = Callable[..., QueueEnv]

pytest.importorskip("nbclient", reason="notebooks need nbclient")
NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def control(q: QueueEnv, number: int, content: dict[str, Any] | str) -> str:
    """Write a control file; files are taken in the order of their times."""
    path = os.path.join(q.folder, f"c{number}.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return path


def notebooks(q: QueueEnv, *names: str) -> None:
    """Write empty notebooks."""
    for name in names:
        with open(os.path.join(q.folder, name), "w", encoding="utf-8") as file:
            json.dump(NOTEBOOK, file)


def test_added_moved_and_deleted(queue: Make) -> None:
    """Each key does what it was meant to do; what was taken is put away."""
    q = queue()
    notebooks(q, "a.ipynb", "b c.ipynb", "d.ipynb")
    control(q, 1, {"ipynb_names_add": ["a.ipynb", "b c.ipynb", "d.ipynb"]})
    control(q, 2, {"ipynb_names_next": "d.ipynb"})
    control(q, 3, {"ipynb_names_del": ["a.ipynb"], "nvidia_base_pids_add": [1, 2]})
    said = q.run("import", q.folder)
    assert q.order() == ["d.ipynb", "b c.ipynb"]
    assert "no process needs protection" in said.stderr
    assert sorted(os.listdir(os.path.join(q.folder, "taken"))) == ["c1.json", "c2.json", "c3.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"ipynb_names_add": ["a.ip', "no JSON"),
        ("[]", "no JSON object"),
        ({"ipynb_names_ad": ["a.ipynb"]}, "ipynb_names_ad"),
        ({"ipynb_names_add": ["a.ipynb", "none.ipynb"]}, "none.ipynb"),
        ({"ipynb_names_del": ["none.ipynb"], "ipynb_names_add": ["a.ipynb"]}, "none.ipynb"),
        ({"ipynb_names_add": 7}, "ipynb_names_add"),
    ],
)
def test_bad_files_change_nothing_and_are_set_aside(
    queue: Make, content: dict[str, Any] | str, reason: str
) -> None:
    """The reason lies beside the file; the good files are taken all the same."""
    q = queue()
    notebooks(q, "a.ipynb", "b.ipynb")
    control(q, 1, content)
    control(q, 2, {"ipynb_names_add": ["b.ipynb"]})
    said = q.run("import", q.folder, status=1)
    assert reason in said.stderr
    assert q.order() == ["b.ipynb"]
    with open(os.path.join(q.folder, "rejected", "c1.json.reason"), encoding="utf-8") as file:
        assert reason in file.read()


def test_a_file_that_is_being_written_is_left(queue: Make) -> None:
    """What is no JSON yet, and young, is taken the next time."""
    q = queue()
    notebooks(q, "a.ipynb")
    path = control(q, 1, '{"ipynb_names_add"')
    os.utime(path)
    assert "being written" in q.run("import", q.folder).stderr
    control(q, 1, {"ipynb_names_add": ["a.ipynb"]})
    q.run("import", q.folder)
    assert q.order() == ["a.ipynb"]


def test_a_file_that_was_taken_but_not_put_away_is_not_taken_twice(queue: Make) -> None:
    """Whoever is killed between the two leaves it there."""
    q = queue(start=False)
    notebooks(q, "a.ipynb")
    path = control(q, 1, {"ipynb_names_add": ["a.ipynb"]})
    again = os.path.join(q.folder, "again")
    os.link(path, again)
    q.run("import", q.folder)
    os.rename(again, path)
    q.run("import", q.folder)
    assert q.order() == ["a.ipynb"]
