"""Tasks that a task submits from inside its lease: they run in its process and share what it has.

To wait there for another lease could be to wait for oneself. So the lease serves them: what they
declare is added up inside it, one that cannot fit is told at once, and one that is started by such a
task is inside that one's part.
"""

from __future__ import annotations

import copy
import functools
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from grn import hub
from grn.endings import ending_of
from grn.turns import Turn
from grn_plugins.prefect.inside import is_body

if TYPE_CHECKING:
    from prefect.tasks import Task

    from grn_plugins.prefect.needs import Need

__all__ = ["applies", "wrapped"]

_LEASE = "GRN_LEASE"
_inside: ContextVar[bool] = ContextVar("grn_inside_nested", default=False)


def applies() -> bool:
    """Whether this process runs the body of a task under a lease."""
    return is_body() and bool(os.environ.get(_LEASE))


def wrapped(task: Task[Any, Any], need: Need) -> Task[Any, Any]:
    """Return a copy of the task that takes its part of the lease while it runs."""
    if _inside.get() or not need.asks:
        return task
    ours = copy.copy(task)
    ours.fn = _Function(task.fn, need, asynchronous=task.isasync)
    return ours


class _Function:
    """A task's function, run here within a part of this process's lease."""

    def __init__(self, function: Any, need: Need, *, asynchronous: bool) -> None:
        functools.update_wrapper(self, function)
        self.__code__ = getattr(function, "__code__", None)
        self._function = function
        self._need = need
        self._asynchronous = asynchronous

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._asynchronous:
            return self._run_async(args, kwargs)
        with self._part(args, kwargs):
            return self._function(*args, **kwargs)

    async def _run_async(self, args: Any, kwargs: Any) -> Any:
        with self._part(args, kwargs):
            return await self._function(*args, **kwargs)

    def _part(self, args: Any, kwargs: Any) -> _Part:
        message, _ = self._need.request(args, kwargs)
        return _Part(message, self._need.wish.wait_s)


class _Part:
    """A part of the lease, while a block runs."""

    def __init__(self, message: dict[str, Any], wait_s: float | None) -> None:
        self._turn = Turn(message, wait_s=wait_s)

    def __enter__(self) -> None:
        self._grant = self._turn.grant()
        self._token = _inside.set(True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        _inside.reset(self._token)
        hub.release(self._grant, **ending_of(error))
