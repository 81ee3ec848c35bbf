"""What a decorated function is, and what cannot be one."""

from __future__ import annotations

import inspect
import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import grn
from grn.errors import UsageError
from tests.python import decorated
from tests.python.books import profiles
from tests.python.decorated import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device


# -- what it is -----------------------------------------------------------------------------------


def test_a_decorated_function_looks_like_itself() -> None:
    """Name, documentation, signature and kind are the function's."""
    assert decorated.train.__name__ == "train"
    assert decorated.train.__doc__ == "Return what was given, and where this runs."
    assert str(inspect.signature(decorated.train)).startswith("(rate: 'float', *, epochs")
    assert inspect.iscoroutinefunction(decorated.fetch)
    assert decorated.train.__wrapped__(2.0)["pid"] == os.getpid()


def test_a_decorated_function_is_picklable() -> None:
    """By its name, as any function: pools and queues take it."""
    assert pickle.loads(pickle.dumps(decorated.train)) is decorated.train  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(Trainer(2).fit)).__self__.size == 2  # noqa: S301 - the same


def test_functions_of_main_are_jobs(scripts: Callable[..., Any]) -> None:
    """A script needs no guard, and its functions may use each other and its globals."""
    out = (
        scripts()
        .run(
            "import grn, os\n"
            "FACTOR = 3\n"
            "class Point:\n    x = 14\n"
            "@grn.job\n"
            "def times(point): return point.x * FACTOR\n"
            "@grn.job\n"
            "def work(point): return times(point), type(point).__name__, os.getpid()\n"
            "@grn.job\n"
            "async def later(point): return point.x\n"
            "import asyncio\n"
            "total, name, pid = work(Point())\n"
            "print(total, name, pid != os.getpid(), asyncio.run(later(Point())))\n"
        )
        .stdout
    )
    assert out == "42 Point True 14\n"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: grn.job(lambda: None), "lambda has no name"),
        (lambda: grn.job(int), "not a function"),
        (lambda: grn.job("name"), r"@grn.job\(type='name'\)"),  # type: ignore[call-overload]
        (lambda: grn.job(_generator), "generator"),
        (lambda: grn.job(gpus=-1), "gpus=-1"),
        (lambda: grn.job(type="a", jobstr="b"), "the same"),
        (lambda: grn.job(type="t {batch}")(_generator.__class__.mro), "batch|not a function"),
        (lambda: grn.job(type="t {size}")(_sized_wrong), "no argument 'size'"),
        (lambda: grn.job(type="t {")(_sized_wrong), "stands for a brace"),
        (lambda: grn.job(isolate="no"), "isolate='no' is neither"),  # type: ignore[call-overload]
    ],
    ids=[
        "lambda",
        "class",
        "text",
        "generator",
        "gpus",
        "twice",
        "method",
        "field",
        "brace",
        "isolate",
    ],
)
def test_what_cannot_be_a_job_is_refused_when_it_is_decorated(
    make: Callable[[], object], says: str
) -> None:
    """The mistake is named where it is written."""
    with pytest.raises(UsageError, match=says):
        make()


def _generator() -> Any:
    yield 1


def _sized_wrong(batch: int) -> int:
    return batch


def test_a_lambda_with_a_type_is_a_job(here: Here) -> None:
    """Whoever names its type may decorate one."""
    here()
    assert grn.job(type="t")(lambda number: number + 1)(1) == 2


def test_the_older_names_still_work(here: Here) -> None:
    """`jobstr` and `resource_policy` are `type` and `policy`."""
    env = here()

    @grn.job(jobstr="old", resource_policy="pack", isolate=False)
    def work() -> None:
        grn.report_peak(500)

    work()
    assert profiles(env)["old"]["estimate_mib"] == 500
