"""How an action of doit becomes one of ours: `grn(action, …)`, and `wrap` for all of a creator's.

Must not: ask the broker, or read what the action will do.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, cast

from doit.action import BaseAction, CmdAction, PythonAction
from doit.exceptions import InvalidTask

from grn_plugins.doit.action import GrnAction
from grn_plugins.doit.options import Options, command_keywords

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Unpack

    from grn_plugins.doit.options import Keywords

    class _AllKeywords(Keywords, total=False):
        """With what `CmdAction` takes most often; all that it takes may be given."""

        save_out: str | None
        shell: bool
        encoding: str
        buffering: int
        cwd: str | os.PathLike[str]
        executable: str


__all__ = ["grn", "wrap"]

_PACKAGE = __name__.rpartition(".")[0]
_CREATOR = "task_"
_MOST_PARTS = 3  # of a tuple: callable, args, kwargs


def grn(action: Any, *more: object, **options: Unpack[_AllKeywords]) -> GrnAction:
    """Have an action wait for its share of a device, and run with it.

    Args:
        action: what stands in a task's `actions`: a command as a string or a list, a callable, a tuple of
            callable, args and kwargs, or one of doit's own action objects.
        more: nothing; a task creator reads best with names.
        options: `gpus` (1), `memory` (learnt), `policy`, `cpus`, `ram`, `compute`, `processes`,
            `affinity`, `flavor`, `priority`, `label`, `env`, `job`, `wait`, `if_unavailable`,
            `leftovers`, `isolate`, `retries_on_oom`, `grace`, `cancel_waiting_on_failure`; for a
            command also the keywords of `doit.action.CmdAction`.

    Raises:
        InvalidTask: if an option does not exist or makes no sense, or this is no action.
    """
    where = _place()
    if more:
        raise InvalidTask(
            f"{where}: options are given by name, such as grn(…, memory='4GiB'); got {more[0]!r}"
        )
    given = cast("dict[str, Any]", options)
    names = command_keywords()
    of_command = {name: value for name, value in given.items() if name in names}
    ours = {name: value for name, value in given.items() if name not in names}
    if isinstance(action, GrnAction):
        raise InvalidTask(
            f"{where}: {action} is a GRN action already: give all options in one grn(…)"
        )
    checked = Options.from_keywords(ours, where=where)
    return GrnAction(_inner(action, of_command, where), checked)


def wrap(action: Any, options: Options) -> GrnAction:
    """Wrap an action with options that are checked already; one of ours is returned as it is.

    Raises:
        InvalidTask: if this is no action.
    """
    return (
        action if isinstance(action, GrnAction) else GrnAction(_inner(action, {}, "grn"), options)
    )


def _inner(action: Any, keywords: Mapping[str, Any], where: str) -> CmdAction | PythonAction:
    """Make doit's own action, as doit would, but for the task, which is not known yet."""
    if isinstance(action, str | list):
        return CmdAction(action, **{"shell": isinstance(action, str), **keywords})
    if keywords:
        raise InvalidTask(
            f"{where}: {', '.join(keywords)} is for commands given as a string or a list, and this is {action!r}"
        )
    if getattr(action, "__name__", "").startswith(_CREATOR):
        raise InvalidTask(
            f"{where}: grn(…) is for one action, and {action.__name__} makes tasks: decorate it with @grn_task"
        )
    if isinstance(action, CmdAction | PythonAction):
        _refuse_coroutine(getattr(action, "py_callable", None), where)
        return action
    if isinstance(action, BaseAction):
        raise InvalidTask(
            f"{where}: {action!r} is an action of its own kind, which GRN cannot start;"
            " derive it from CmdAction or PythonAction, or wrap the command that it runs"
        )
    parts = action if isinstance(action, tuple) else (action,)
    if not 0 < len(parts) <= _MOST_PARTS or not callable(parts[0]):
        raise InvalidTask(
            f"{where}: {action!r} is no action: give a command (string or list), a callable,"
            " or a tuple of callable, args and kwargs"
        )
    _refuse_coroutine(parts[0], where)
    try:
        return PythonAction(*parts)
    except InvalidTask as error:
        raise InvalidTask(f"{where}: {error}") from None


def _refuse_coroutine(function: Any, where: str) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__name__", function)
        raise InvalidTask(
            f"{where}: doit does not await {name}: give a plain function that calls asyncio.run({name}(…))"
        )


def _place() -> str:
    """Say where `grn` was called: the task, as far as its creator's name tells, file and line."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect, which wraps it, reads source files
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "grn"
    line = f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
    above: FrameType | None = frame
    while above is not None:
        name = above.f_code.co_name
        if name.startswith(_CREATOR):
            return f"task {name.removeprefix(_CREATOR)} ({line})"
        above = above.f_back
    return line
