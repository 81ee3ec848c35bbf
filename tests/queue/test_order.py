"""The list: its order, and what may be done to a job in which state."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.queue.conftest import QueueEnv

    Make = Callable[..., QueueEnv]


def names(q: QueueEnv, *wanted: str) -> None:
    """Add jobs of these names."""
    for name in wanted:
        q.add("--name", name, "--", "true")


def test_moved_to_the_head(queue: Make) -> None:
    """`next` puts a job first and leaves the others as they were."""
    q = queue()
    names(q, "a", "b", "c")
    q.run("next", "c")
    assert q.order() == ["c", "a", "b"]
    q.run("next", "1", "2")
    assert q.order() == ["a", "b", "c"]


def test_moved_before_another_many_times(queue: Make) -> None:
    """Places between two jobs never run out."""
    q = queue()
    names(q, "a", "b", "c")
    with_store_moves(q, 120)
    assert q.order() == ["c", "a", "b"]
    q.run("move", "c", "--last")
    assert q.order() == ["a", "b", "c"]


def with_store_moves(q: QueueEnv, count: int) -> None:
    """Move two jobs to and fro in the gap before a third."""
    from grn.queue.store import Store

    with Store(q.places) as store:
        for _ in range(count):
            store.put_before(1, 2)
            store.put_before(3, 1)
            store.put_before(1, 2)


def test_added_at_the_head(queue: Make) -> None:
    """`add --first`, and `next` with what is new, go before all others."""
    q = queue()
    names(q, "a", "b")
    q.add("--first", "--name", "c", "--", "true")
    assert q.order() == ["c", "a", "b"]


def test_one_put_first_goes_before_those_that_wait_at_the_broker(queue: Make) -> None:
    """Who has asked the broker already asks again, behind the one that was put first."""
    q = queue("sim:1x10000MiB")
    for name in "abc":
        q.holder(name, "--memory", "whole")
    q.start()
    q.wait_on("a")
    q.until(3, "waiting")
    before = q.job(2)["runner"]
    q.run("next", "c")
    eventually(lambda: q.job(2)["runner"] not in {before, None}, what="b asks again")
    q.until(2, "waiting")
    q.off("a")
    q.wait_on("c")
    assert not q.is_on("b")
    q.off("c")
    q.wait_on("b")
    q.off("b")
    q.run("wait")


def test_waiting_for_nothing_names_what_ended_ill(queue: Make) -> None:
    """A job that is quicker than `wait` has failed: nobody shall take silence for success."""
    q = queue()
    assert "nothing to wait for. " in q.run("wait").stderr
    q.start()
    (bad,) = q.add("--", "false")
    (good,) = q.add("--", "true")
    q.run("wait", str(bad), str(good), status=1)
    said = q.run("wait").stderr
    assert f"1 in the list did not end well ({bad})" in said
    assert "grn queue wait ID" in said


def test_held_until_released(queue: Make) -> None:
    """A held job is passed over."""
    q = queue()
    names(q, "a", "b")
    q.run("hold", "a")
    q.start()
    q.ended(2)
    assert q.job(1)["state"] == "held"
    q.run("release", "a")
    assert q.ended(1)["state"] == "ok"


def test_taken_off(queue: Make) -> None:
    """`rm` takes a job off that has not begun; a name must be one job's."""
    q = queue()
    names(q, "a", "b", "b")
    said = q.run("rm", "b", status=2)
    assert "2, 3" in said.stderr
    q.run("rm", "a", "2")
    assert q.order() == ["b"]
    q.run("rm", "--all")
    assert q.order() == []


def test_what_runs_is_neither_moved_nor_taken_off(queue: Make) -> None:
    """The refusal names the state and the way; nothing is changed."""
    q = queue()
    q.holder("a")
    q.start()
    q.wait_on("a")
    for command in ("rm", "next", "hold"):
        said = q.run(command, "1", status=2)
        assert "run" in said.stderr
    assert q.job(1)["state"] == "running"
    q.off("a")
    q.ended(1)


def test_retried_with_a_new_number(queue: Make) -> None:
    """`retry` adds the same job again; --failed all that did not end well."""
    q = queue()
    q.add("--name", "bad", "--", "false")
    q.add("--name", "good", "--", "true")
    q.start()
    q.ended(1)
    q.ended(2)
    assert q.run("retry", "--failed").stdout == "3\n"
    assert q.ended(3)["name"] == "bad"


def test_cleared_with_their_logs(queue: Make) -> None:
    """`clear` forgets what is over, and only that."""
    q = queue()
    q.add("echo x")
    q.add("--held", "true")
    q.start()
    log = q.ended(1)["log"]
    q.run("clear")
    assert list(q.jobs()) == [2]
    assert not os.path.exists(log)


def test_twice_is_allowed_and_said(queue: Make) -> None:
    """The same command again is added, with a note."""
    q = queue()
    names(q, "a")
    said = q.run("add", "--name", "a", "--", "true")
    assert "already" in said.stderr
    assert q.order() == ["a", "a"]


def test_jobs_from_json(queue: Make) -> None:
    """A list of jobs, each with its own folder and variables; all or none are added."""
    q = queue()
    path = os.path.join(q.folder, "jobs.json")
    good = {
        "command": "echo $MINE",
        "env": {"MINE": "yes"},
        "name": "a",
        "options": ["--gpus", "0"],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump([good, {"command": ["true"], "after": [7]}], file)
    assert "after 7" in q.run("add", "--json", path, status=2).stderr
    with open(path, "w", encoding="utf-8") as file:
        json.dump([good, {"command": ["true"]}], file)
    assert q.add("--json", path) == [1, 2]
    q.start()
    q.ended(1)
    assert q.log(1) == "yes\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["add"], "no command"),
        (["add", "--memory", "lots", "--", "true"], "lots"),
        (["add", "--policy", "best", "--", "true"], "best"),
        (["add", "--after", "9", "--", "true"], "9"),
        (["add", "--after", "x", "--", "true"], "x"),
        (["add", "--json", "none.json"], "none.json"),
        (["add", "none.ipynb"], "none.ipynb"),
        (["info", "9"], "9"),
        (["move", "9", "--last"], "9"),
        (["cancel", "nobody"], "nobody"),
        (["fly"], "fly"),
    ],
)
def test_bad_input_is_named_and_nothing_is_added(queue: Make, words: list[str], named: str) -> None:
    """Status 2 and one line that names it."""
    q = queue()
    said = q.run(*words, status=2)
    assert named in said.stderr
    assert said.stderr.count("\n") == 1
    assert q.jobs() == {}


def test_the_list_fits_eighty_columns(queue: Make) -> None:
    """Long commands and reasons are wrapped, and whole in the JSON."""
    q = queue("sim:1x10000MiB")
    long = "x" * 30
    q.holder("a", "--memory", "whole")
    (job,) = q.add("--memory", "whole", "--", sys.executable, "-c", "pass", *[long] * 5)
    q.start()
    q.wait_on("a")
    q.until(job, "waiting")
    shown = q.run("ls", COLUMNS="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert q.job(job)["command"].count(long) == 5
    q.off("a")
    q.ended(job)


def test_secrets_are_not_shown_and_the_file_is_private(queue: Make) -> None:
    """The stored environment can be read by its user only, and `info` hides what looks secret."""
    q = queue()
    (job,) = q.add("--", "true", MY_API_KEY="s3cret", MY_SIZE="17")
    shown = q.run("info", str(job), "--json").stdout
    assert "s3cret" not in shown
    assert json.loads(shown)["environ"]["MY_SIZE"] == "17"
    for name in os.listdir(q.places.folder):
        assert os.stat(os.path.join(q.places.folder, name)).st_mode & 0o077 == 0
