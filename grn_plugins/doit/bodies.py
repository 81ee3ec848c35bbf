"""What runs in the process of a Python action: the callable, as doit would call it, and what came of it.

Promises: what goes back loads without the callable's own classes, unless the callable returned them: an
exception goes back as its traceback's text, and a value that doit would refuse as its description, so that
a tensor that was returned by mistake starts no device in doit's process.

Must not: know of leases, or of doit's process.
"""

from __future__ import annotations

import inspect
import os
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import doit.loader
from doit import doit_cmd
from doit.exceptions import TaskError, TaskFailed

from grn.endings import ending_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grn.grants import Ending

__all__ = ["Body", "Exited", "Raised", "Refused", "TaskView"]


class Refused(NamedTuple):
    """It has returned something that doit refuses: how that looks, and its class."""

    text: str
    module: str
    name: str


class Raised(NamedTuple):
    """It has raised: the error in one line, the traceback, and what it says of the device."""

    text: str
    trace: str
    ending: Ending


class Exited(NamedTuple):
    """It has called `sys.exit`, with this."""

    code: str


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a task is, for a callable that asks for `task` where the task itself cannot travel."""

    name: str
    doc: str
    targets: tuple[str, ...]
    file_dep: frozenset[str]
    task_dep: tuple[str, ...]
    dep_changed: tuple[str, ...]
    options: Mapping[str, Any]
    meta: Mapping[str, Any]

    @classmethod
    def of(cls, task: Any, can_travel: Callable[[Any], bool]) -> TaskView:
        """Look at a task; of its options and meta only what can travel is seen."""
        return cls(
            name=str(task.name),
            doc=task.doc,
            targets=tuple(task.targets),
            file_dep=frozenset(task.file_dep),
            task_dep=tuple(task.task_dep),
            dep_changed=tuple(task.dep_changed or ()),
            options={
                key: value for key, value in (task.options or {}).items() if can_travel(value)
            },
            meta={key: value for key, value in (task.meta or {}).items() if can_travel(value)},
        )


class _DoitState:
    """What doit keeps in its modules, for `get_var` and `get_initial_workdir`. In force once it is loaded."""

    def __init__(self, values: tuple[Any, Any]) -> None:
        self.values = values

    @classmethod
    def here(cls) -> _DoitState:
        """Take down that of this process."""
        return cls((doit_cmd._CMDLINE_VARS, doit.loader.initial_workdir))  # noqa: SLF001 - no other way

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_force, (self.values,)


def _in_force(values: tuple[Any, Any]) -> _DoitState:
    doit_cmd._CMDLINE_VARS, doit.loader.initial_workdir = values  # noqa: SLF001 - the same
    return _DoitState(values)


class Body:
    """A callable, ready to travel. What doit keeps for it is put in place before its module is imported."""

    def __init__(self, function: Callable[..., Any], state: _DoitState | None = None) -> None:
        self.state = state or _DoitState.here()
        self.__wrapped__ = function
        self.__module__ = getattr(function, "__module__", None) or type(function).__module__
        """So that it travels as a part of the callable's own module."""
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _body, (self.state, self.__wrapped__)  # in this order: the state is loaded first

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it as doit does; return what it returned, or one of the classes above."""
        me = os.getpid()
        try:
            return _described(self.__wrapped__(*args, **kwargs))
        except SystemExit as error:
            if os.getpid() != me:  # a copy that the callable has forked
                raise
            return Exited(repr(error.code) if error.code is not None else "")
        except Exception as error:  # as doit does
            if os.getpid() != me:
                raise
            return _taken_down(error)


def _body(state: _DoitState, function: Callable[..., Any]) -> Body:
    return Body(function, state)


def _described(value: Any) -> Any:
    if value is None or isinstance(value, bool | str | dict | TaskFailed | TaskError):
        return value
    if inspect.iscoroutine(value):
        value.close()
    kind = type(value)
    return Refused(_look_of(value), kind.__module__, kind.__qualname__)


def _look_of(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the value's own code ran
        return f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"


def _taken_down(error: Exception) -> Raised:
    here = error.__traceback__
    error.__traceback__ = here.tb_next if here is not None else None  # without our own frame
    text = "".join(traceback.format_exception_only(error)).strip()
    return Raised(text, "".join(traceback.format_exception(error)), ending_of(error))
