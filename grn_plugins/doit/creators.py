"""Task creators whose tasks all run under leases: the decorator `@grn_task`, and what the loader shares.

    @grn_task(gpus=1)
    def task_train():
        for model in ("small", "large"):
            yield {"name": model, "actions": [f"python train.py {model}"]}

Every action of every task that the creator returns or yields is wrapped; `clean` and `teardown` are left
alone, and so are actions that were made by `grn(…)`. What a task says itself, in its meta `{"grn": {…}}`,
wins key by key; `{"grn": False}` leaves the task alone. `meta["grn"]` then holds the options, for `doit info`.

Promises: the decorated creator is a function with the name, text, place and attributes of its own, so that
`@create_after` and `@task_params` may stand above or below; a generator stays one, and creates no task
before doit asks for it.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from doit.exceptions import InvalidTask
from doit.task import Task

from grn_plugins.doit.options import Options
from grn_plugins.doit.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Unpack

    from grn_plugins.doit.options import Keywords

    Decide = Callable[[str, Any], Options | None]

    C = TypeVar("C", bound=Callable[..., Any])

__all__ = ["grn_task", "own_options", "wrap_creator"]

PREFIX = "task_"
KEY = "grn"


@overload
def grn_task(creator: C, /) -> C: ...


@overload
def grn_task(**options: Unpack[Keywords]) -> Callable[[C], C]: ...


def grn_task(creator: Any = None, /, **options: Any) -> Any:
    """Have all actions of a task creator's tasks wait for their share. With or without brackets.

    Args:
        creator: the function that is decorated.
        options: those of `grn`.

    Raises:
        InvalidTask: if an option makes no sense, or this is no task creator.
    """
    if creator is not None and options:
        raise InvalidTask("grn_task takes options by name alone: @grn_task(gpus=1)")
    if creator is None:
        common = Options.from_keywords(options, where="@grn_task")
        return functools.partial(_decorated, common=common)
    return _decorated(creator, common=Options.from_keywords({}, where="@grn_task"))


def _decorated(creator: Any, /, *, common: Options) -> Any:
    if not inspect.isfunction(creator):
        raise InvalidTask(
            f"@grn_task decorates a task creator, a function; {creator!r} is none."
            " A single action is wrapped with grn(…)"
        )

    def decide(name: str, own: Any) -> Options | None:
        given = own_options(name, own)
        if given is None:
            return None
        if not given:
            return common
        return Options.from_keywords({**common.given, **given}, where=f"task {name}")

    return wrap_creator(creator, creator.__name__.removeprefix(PREFIX), decide)


def own_options(name: str, own: Any) -> Mapping[str, Any] | None:
    """Return what a task's meta says itself; `None`: the task is to be left alone.

    Raises:
        InvalidTask: if it is neither a table nor a switch.
    """
    if own is False:
        return None
    if own is None or own is True:
        return {}
    if isinstance(own, dict):
        return own
    raise InvalidTask(
        f"task {name}: meta['{KEY}'] is {own!r}; give a dict of options, True, or False"
        " to leave the task alone"
    )


def wrap_creator(creator: Callable[..., Any], name: str, decide: Decide) -> Callable[..., Any]:
    """Make a creator of the same tasks, with their actions wrapped.

    Args:
        creator: a function or a bound method.
        name: the base name of its tasks, unless they say another.
        decide: told a task's full name and what its meta says, returns what its actions are wrapped with;
            `None`: not at all.
    """

    @functools.wraps(creator)
    def create(*args: Any, **kwargs: Any) -> Any:
        made = creator(*args, **kwargs)
        return (
            _each(made, name, decide)
            if isinstance(made, GeneratorType)
            else _changed(made, name, decide)
        )

    return create


def _each(items: Iterable[Any], name: str, decide: Decide) -> Iterator[Any]:
    """Be replaced by another generator's text, see `_like`."""
    for item in items:
        yield (
            _like(item, name, decide)
            if isinstance(item, GeneratorType)
            else _changed(item, name, decide)
        )


def _like(nested: GeneratorType[Any, Any, Any], name: str, decide: Decide) -> Iterator[Any]:
    # doit takes the text of a nested generator's tasks from the first constant of its code.
    constants = nested.gi_code.co_consts
    code = _each.__code__
    code = code.replace(co_consts=(constants[0] if constants else None, *code.co_consts[1:]))
    twin: Iterator[Any] = FunctionType(code, globals())(nested, name, decide)
    return twin


def _changed(made: Any, name: str, decide: Decide) -> Any:
    """Wrap the actions of one task; what is none is left for doit to complain of."""
    if isinstance(made, Task):
        _change_task(made, decide)
        return made
    if not isinstance(made, dict):
        return made
    actions, meta = made.get("actions"), made.get("meta")
    if not isinstance(actions, list | tuple) or not isinstance(meta, dict | None):
        return made
    options = decide(_full_name(made, name), (meta or {}).get(KEY))
    if options is None or not actions:
        return made
    wrapped = [wrap(action, options) for action in actions]
    return {**made, "actions": wrapped, "meta": {**(meta or {}), KEY: options.given}}


def _full_name(made: Mapping[str, Any], name: str) -> str:
    base = str(made.get("basename") or name)
    return f"{base}:{made['name']}" if "name" in made else base


def _change_task(task: Any, decide: Decide) -> None:
    # doit makes the instances of a task's actions when they are first needed; before, it has what was written.
    actions = task._action_instances or task._actions  # noqa: SLF001 - doit has no other way to change them
    meta = task.meta or {}
    options = decide(task.name, meta.get(KEY)) if actions else None
    if options is None:
        return
    task._actions = [wrap(action, options) for action in actions]  # noqa: SLF001 - the same
    task._action_instances = None  # noqa: SLF001 - the same
    task.meta = {**meta, KEY: options.given}
