"""An exception, brought from one process to another as what it was.

Design note. Pickle rebuilds an exception by calling its class with `args`, which fails, or goes
wrong silently, for a class with a constructor of its own; and it forgets cause and context. So each
exception of the chain travels in the first of these ways that works: as pickle does it, tried out
at once; from its parts, without its constructor; as text. The traceback cannot travel: its text
becomes a note of the exception.

Promises: what arrives loads with built-in types alone, so that something can always be said.
"""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING, Any, TypedDict

from grn.isolate.errors import Unpicklable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Record", "record", "restore"]

_LONGEST_CHAIN = 50


class _Link(TypedDict):
    """One exception of a chain; `cause` and `context` are places in the chain."""

    type_name: str
    said: str
    pickled: bytes | None
    parts: bytes | None
    why_not: str
    cause: int | None
    context: int | None
    suppress: bool


class Record(TypedDict):
    """A chain of exceptions, the one that was raised first."""

    chain: list[_Link]
    text: str


def record(error: BaseException, dumps: Callable[[Any], bytes]) -> Record:
    """Take down an exception with what led to it."""
    chain: list[BaseException] = []
    _collect(error, chain)
    place = {id(one): number for number, one in enumerate(chain)}
    return {
        "chain": [_link(one, place, dumps) for one in chain],
        "text": "".join(traceback.format_exception(error)).rstrip(),
    }


def _collect(error: BaseException, chain: list[BaseException]) -> None:
    waiting = [error]
    while waiting and len(chain) < _LONGEST_CHAIN:
        one = waiting.pop(0)
        if not any(one is known for known in chain):
            chain.append(one)
            waiting += [link for link in (one.__cause__, one.__context__) if link is not None]


def _link(error: BaseException, place: dict[int, int], dumps: Callable[[Any], bytes]) -> _Link:
    pickled, parts, why_not = None, None, ""
    try:
        pickled = dumps(error)
        if not _is_like(pickle.loads(pickled), error):  # noqa: S301 - we made it just now
            pickled = None
    except Exception:  # noqa: BLE001 - the class's own code ran
        pickled = None
    if pickled is None:
        try:
            parts = dumps((type(error), error.args, error.__dict__))
        except Exception as problem:  # noqa: BLE001 - the class's own code ran
            why_not = f"{type(problem).__name__}: {problem}"
    return {
        "type_name": _name(error),
        "said": _said(error),
        "pickled": pickled,
        "parts": parts,
        "why_not": why_not,
        "cause": place.get(id(error.__cause__)),
        "context": place.get(id(error.__context__)),
        "suppress": error.__suppress_context__,
    }


def _is_like(copy: object, error: BaseException) -> bool:
    return (
        type(copy) is type(error)
        and str(copy) == str(error)
        and len(copy.args) == len(error.args)
        and getattr(copy, "code", None) == getattr(error, "code", None)
    )


def _name(error: BaseException) -> str:
    cls = type(error)
    hidden = cls.__module__ in {"builtins", "__main__"}
    return cls.__qualname__ if hidden else f"{cls.__module__}.{cls.__qualname__}"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the class's own code ran
        return "(it cannot say what happened)"


def restore(taken: Record, who: str) -> BaseException:
    """Rebuild an exception; one whose class cannot be rebuilt becomes an `Unpicklable`."""
    errors = [_rebuilt(link, taken["text"], who) for link in taken["chain"]]
    for error, link in zip(errors, taken["chain"], strict=True):
        if link["cause"] is not None:
            error.__cause__ = errors[link["cause"]]
        if link["context"] is not None:
            error.__context__ = errors[link["context"]]
        error.__suppress_context__ = link["suppress"]
    if not isinstance(errors[0], Unpicklable):
        errors[0].add_note(f"raised in {who}:\n{taken['text']}")
    return errors[0]


def _rebuilt(link: _Link, text: str, who: str) -> BaseException:
    why_not = link["why_not"]
    try:
        if link["pickled"] is not None:
            error = pickle.loads(link["pickled"])  # noqa: S301 - from our own process
            if isinstance(error, BaseException):
                return error
        if link["parts"] is not None:
            return _without_constructor(*pickle.loads(link["parts"]))  # noqa: S301 - the same
    except Exception as problem:  # noqa: BLE001 - the class's own code ran
        why_not = f"{type(problem).__name__}: {problem}"
    return Unpicklable(
        f"{who} raised {link['type_name']}: {link['said']}\n"
        f"(the exception itself could not be brought back: {why_not})\n{text}",
        what="exception",
        type_name=link["type_name"],
        traceback_text=text,
    )


def _without_constructor(
    cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    if isinstance(error, SystemExit):
        SystemExit.__init__(error, *args)  # the only one to set its code, which nothing else keeps
    error.__dict__.update(attributes)
    return error
