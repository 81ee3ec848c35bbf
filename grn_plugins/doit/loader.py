"""Leases without a word in the dodo file: doit's own loader, whose task creators are wrapped.

    [tool.doit]
    loader = "grn"

    [[tool.grn.doit]]
    match = "train*"
    memory = "8GiB"

A task gets its actions wrapped if its meta has `{"grn": …}`, or if a rule matches its name, see `rules`.
Creators are wrapped, not tasks: those of `@create_after` make theirs when the run is under way.

Must not: touch a task that nobody has named.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from doit.cmd_base import DodoTaskLoader
from doit.exceptions import InvalidDodoFile
from doit.loader import task_params

from grn.errors import UsageError
from grn_plugins.doit.creators import PREFIX, own_options, wrap_creator
from grn_plugins.doit.options import Options
from grn_plugins.doit.rules import Rule, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn_plugins.doit.creators import Decide

__all__ = ["GrnLoader"]

_OF_OBJECTS = "create_doit_tasks"


class GrnLoader(DodoTaskLoader):  # type: ignore[misc] # doit has no types
    """doit's loader of dodo files, chosen as `loader = "grn"`."""

    def setup(self, opt_values: Any) -> None:
        """Load the dodo file, and wrap its task creators.

        Raises:
            InvalidDodoFile: if a rule makes no sense; file, line and key are named.
        """
        super().setup(opt_values)
        try:
            rules = load()
        except UsageError as error:
            raise InvalidDodoFile(str(error)) from None
        found: dict[str, Any] = self.namespace
        self.namespace: Any = _wrapped(found, _decide(rules))


def _decide(rules: Sequence[Rule]) -> Decide:
    def decide(name: str, own: Any) -> Options | None:
        given = own_options(name, own)
        rule = next((rule for rule in rules if rule.matches(name)), None)
        if given is None or (rule is None and own is None):
            return None
        if not given and rule is not None:
            return rule.options
        common = {} if rule is None else rule.options.given
        return Options.from_keywords({**common, **given}, where=f"task {name}")

    return decide


def _wrapped(namespace: Mapping[str, Any], decide: Decide) -> dict[str, Any]:
    """Wrap what doit would take for a task creator."""
    return {name: _creator(name, found, decide) for name, found in namespace.items()}


def _creator(name: str, found: Any, decide: Decide) -> Any:
    if found is task_params:
        return found
    if name.startswith(PREFIX) and _is_function(found):
        return wrap_creator(found, _base(name.removeprefix(PREFIX), found), decide)
    method: Any = getattr(found, _OF_OBJECTS, None)
    if _is_function(method):
        base = _base(getattr(method, "basename", name), method)
        return _Creator(wrap_creator(method, base, decide))
    return found


def _is_function(found: Any) -> bool:
    return inspect.isfunction(found) or inspect.ismethod(found)


def _base(name: str, creator: Any) -> str:
    """Return the base name of a creator's tasks; one that runs later may announce another."""
    creates = getattr(getattr(creator, "doit_create_after", None), "creates", None) or [name]
    return str(creates[0]) if len(creates) == 1 else name


class _Creator:
    """Stands for an object that creates tasks."""

    def __init__(self, create: Callable[..., Any]) -> None:
        self.create_doit_tasks = create
