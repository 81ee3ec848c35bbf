"""What tasks wish for, wherever it is written. No server, no broker."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("prefect")

from prefect import task

from grn.errors import UsageError
from grn_plugins.prefect import gpu, gpu_options
from grn_plugins.prefect.needs import need_of, options_of, tagged
from tests.prefect import work


def plain() -> None:
    """Have no wishes."""


def asked(function: Any, tags: set[str] | None = None, **defaults: Any) -> dict[str, Any]:
    """Return what a task of this function would ask for."""
    return need_of(function, "it", defaults, tags).request((), {})[0]


def test_the_later_word_wins():
    """Runner, then tags, then the decorator, then the block round the submit, key by key."""

    @gpu(memory="4GiB", priority=3)
    def marked() -> None: ...

    assert asked(plain, gpus=2)["gpus"] == 2
    assert asked(plain, {"gpu:3"}, gpus=2)["gpus"] == 3
    message = asked(marked, {"gpu:3"}, gpus=2, cpus=2)
    assert (message["gpus"], message["memory_mib"], message["cpus"]) == (1, 4096, 2)
    with gpu_options(memory="5GiB"), gpu_options(gpus=4):
        message = asked(marked, gpus=2)
        assert (message["gpus"], message["memory_mib"], message["priority"]) == (4, 5120, 3)
    assert asked(marked)["memory_mib"] == 4096


def test_no_device_drops_what_was_said_of_it():
    """A runner's memory is not for a task that wants no device."""
    need = need_of(gpu(0)(plain.__class__(plain.__code__, globals())), "it", {"memory": 1000}, None)
    assert need.request((), {})[0]["memory_mib"] is None
    assert not need.asks
    assert need.is_ours


def test_environments_are_merged():
    """Variables of an inner level stand beside those of an outer one."""
    with gpu_options(env={"B": "2"}):
        assert need_of(plain, "it", {"env": {"A": "1", "B": "1"}}, None).request((), {})[1] == {
            "A": "1",
            "B": "2",
        }


def test_under_and_over_a_task():
    """`@gpu` may stand on either side of `@task`, and `with_options` keeps it."""

    @task
    @gpu(2)
    def under() -> None: ...

    @gpu(2)
    @task
    def over() -> None: ...

    for each in (under, over, under.with_options(name="x"), over.with_options(retries=1)):
        assert options_of(each.fn)["gpus"] == 2


def test_it_changes_nothing_else():
    """What is decorated is returned itself, so other runners and direct calls never notice."""

    def function() -> int:
        return 1

    assert gpu(3)(function) is function
    assert gpu(function) is function
    assert function() == 1
    wrapped = functools.wraps(function)(lambda: 2)
    assert options_of(wrapped)["gpus"] == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: gpu(1, memroy="8GiB"), "did you mean memory"),
        (lambda: gpu_options(gpu=1), "did you mean gpus"),
        (lambda: gpu(-1), "gpus=-1"),
        (lambda: gpu(memory="8 bananas"), "memory"),
        (lambda: gpu(1)(5), "neither a function nor a task"),
        (lambda: gpu(1)(len), "cannot be marked"),
        (lambda: tagged({"gpu:many"}), "gpu:NUMBER"),
        (lambda: tagged({"gpu-size:1"}), "gpu-memory:SIZE"),
        (lambda: need_of(gpu(0, ram=1)(work.here), "it", {}, {"gpu:x"}), "gpu:NUMBER"),
    ],
)
def test_what_is_wrong_is_said(wrong: Any, said: str):
    """Each mistake is an error that names it and what would do."""
    with pytest.raises(UsageError, match=said):
        wrong()


def test_tags_that_are_not_ours():
    """Other tags are nobody's wish."""
    assert tagged({"nightly", "gpus", "team:gpu", "gpu:2", "gpu-memory:3GiB"}) == {
        "gpus": 2,
        "memory": "3GiB",
    }


def test_job_types():
    """A function of a module is named by it, others by their file, and a name that is given wins."""

    @gpu(type="size {n}")
    def sized(n: int) -> None: ...

    assert asked(work.tell.fn)["type"] == "tests.prefect.work:tell"
    assert need_of(sized, "it", {}, None).request((3,), {})[0]["type"] == "size 3"
    assert asked(lambda: None)["type"].endswith("test_job_types.<locals>.it")
    script: Any = plain.__class__(plain.__code__, globals(), "plain")
    script.__module__ = "__main__"
    assert asked(script)["type"].endswith("test_needs.py::plain")


def test_a_request_says_that_it_is_prefects():
    """Whether the type is the task's own or given, with and without a template."""
    sized = gpu(type="size {n}")(lambda n: n)
    assert asked(plain)["engine"] == "prefect"
    assert need_of(sized, "it", {}, None).request((3,), {})[0]["engine"] == "prefect"
