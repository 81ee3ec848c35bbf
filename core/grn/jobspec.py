"""A decorated function and what was wished for it: the type of each call, and what it asks for.

Must not: ask the broker, or run anything.
"""

from __future__ import annotations

import functools
import inspect
from string import Formatter
from typing import TYPE_CHECKING, Any

from grn.applied import mask_of_kept
from grn.errors import UsageError
from grn.sources import type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn.grants import Grant
    from grn.wishes import Wish

__all__ = ["JobSpec", "called", "is_async", "name_of"]


def called(function: Callable[..., Any]) -> Any:
    """Return what runs when this is called: of an object its `__call__`, of a partial what it calls."""
    while isinstance(function, functools.partial):
        function = function.func
    routine = inspect.isroutine(function) or not callable(function)
    return function if routine else type(function).__call__


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call has to be awaited."""
    return inspect.iscoroutinefunction(called(function))


def name_of(function: Callable[..., Any]) -> str:
    """Return what people call it."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)


def _fields(text: str) -> list[str]:
    """List the names in braces.

    Raises:
        UsageError: if the braces do not match.
    """
    try:
        found = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise UsageError(f"type={text!r}: {error}; {{{{ stands for a brace") from error
    return [field.partition(".")[0].partition("[")[0] for field in found]


class JobSpec:
    """A decorated function and what was wished for it. Travels with the function to its processes."""

    def __init__(
        self,
        function: Callable[..., Any],
        wish: Wish,
        *,
        name: str,
        isolate: bool | None,
    ) -> None:
        self.function = function
        self.wish = wish
        self.template = wish.type if wish.type and ("{" in wish.type or "}" in wish.type) else ""
        """A type in which arguments of the call stand, as `"{function} {batch}"`."""
        needs_name = not wish.type or "function" in _fields(self.template)
        self.function_type = type_of(function) if needs_name else ""
        self.type = wish.type or self.function_type
        self.name = name
        self.isolate = isolate
        self.lighter: Callable[..., Any] | None = None
        self.lighter_is_useless = False
        """It ran, and nothing could be learnt from it."""

    def register_profile(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Take a lighter function in, which is measured in place of the first run."""
        self.lighter = function
        return function

    def request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the message that asks for a lease, and the variables that the wish sets."""
        here = self.isolate is False
        message, explicit = self.wish.request(
            self.type, in_process=here, mask=mask_of_kept() if here else None
        )
        if self.template:
            message["type"] = self._type_of_call(args, kwargs)
        message["label"] = message["label"] or self.name
        return message, explicit

    def check_template(self) -> None:
        """See that each field of a type such as `"train {batch}"` is an argument of the function.

        Raises:
            UsageError: if one is not; it is named.
        """
        if not self.template:
            return
        known = {"function", *inspect.signature(self.function).parameters}
        for name in _fields(self.template):
            if name not in known:
                raise UsageError(
                    f"type={self.template!r}: {self.name} has no argument {name!r}; {{function}} stands"
                    " for the function, and {{ for a brace"
                )

    def _type_of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.apply_defaults()
        return self.template.format(**{"function": self.function_type, **bound.arguments})

    def wants_lighter(self, grant: Grant) -> bool:
        """Whether the lighter function is to run in this lease: nothing is known of the type."""
        unknown = bool(grant.message["probe"]) and not grant.nested
        return self.lighter is not None and unknown and not self.lighter_is_useless
