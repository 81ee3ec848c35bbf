"""What can be called is a job, whatever kind of thing it is; what would run after its lease is refused."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from typing import TYPE_CHECKING, Any

import pytest

import grn
from grn.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device


def power(base: int, exponent: int) -> tuple[int, int]:
    """Return a value, and where it was made."""
    return base**exponent, os.getpid()


class Adds:
    """Is called like a function."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, other: int) -> tuple[int, int]:
        """Return a value, and where it was made."""
        return self.number + other, os.getpid()


class AddsLater(Adds):
    """Has to be awaited."""

    async def __call__(self, other: int) -> tuple[int, int]:  # type: ignore[override]
        """Return a value, and where it was made."""
        await asyncio.sleep(0)
        return self.number + other, os.getpid()


class Counts:
    """Would run when its lease has ended."""

    def __call__(self) -> Iterator[int]:
        """Count."""
        yield 1


class CountsLater:
    """Would run when its lease has ended, too."""

    async def __call__(self) -> AsyncIterator[int]:
        """Count."""
        yield 1


def numbers(last: int) -> Iterator[int]:
    """Count to a number."""
    yield from range(last)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (functools.partial(power, 2), 8),
        (functools.partial(functools.partial(power, 2)), 8),
        (Adds(4), 7),
        (Adds(4).__call__, 7),
    ],
    ids=["partial", "partial of a partial", "object", "bound method"],
)
def test_what_can_be_called_is_a_job(
    here: Here, function: Callable[[int], tuple[int, int]], value: int
) -> None:
    """It runs in a process of its own, as a function does."""
    here()
    found, pid = grn.job(memory=100)(function)(3)
    assert found == value
    assert pid != os.getpid()


def test_an_object_whose_call_is_awaited_is_an_async_job(here: Here) -> None:
    """It looks like an async function, and runs as one."""
    here()
    job: Any = grn.job(memory=100)(AddsLater(4))
    assert inspect.iscoroutinefunction(job)
    value, pid = asyncio.run(job(3))
    assert value == 7
    assert pid != os.getpid()


@pytest.mark.parametrize(
    "function",
    [functools.partial(numbers, 3), Counts(), CountsLater()],
    ids=lambda x: type(x).__name__,
)
def test_generators_are_refused_however_they_are_made(function: Callable[[], object]) -> None:
    """They are named, and what to do instead."""
    with pytest.raises(UsageError, match=r"^(numbers|Counts|CountsLater) is a generator.*a list"):
        grn.job(function)
