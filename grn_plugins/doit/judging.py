"""What came of a Python action's process, as doit's own rules have it, and in the words of a release.

The rules (False fails, None, True, a text or a dict succeed, anything else is an error) stay doit's: a copy
of its action calls a stand-in that returns, or raises, what the callable did.

Must not: copy a rule of doit's.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from doit.exceptions import TaskError

from grn.endings import ending_of
from grn.errors import GrnError
from grn.rules.outcome import MEMORY, stderr_says
from grn_plugins.doit.bodies import Exited, Raised, Refused
from grn_plugins.doit.failures import of_grn
from grn_plugins.doit.outcome import Ran

if TYPE_CHECKING:
    from collections.abc import Callable

    from doit.action import PythonAction

    from grn.grants import Ending
    from grn.isolate import Outcome

__all__ = ["failed", "judged", "name_of", "not_begun"]

_TAIL_CHARACTERS = 4096
_NOT_CAPTURED = SimpleNamespace(io=SimpleNamespace(capture=False))
"""A task for the copy: doit replaces nobody's `sys.stdout` for it."""


class _BodyError(Exception):
    """What the callable raised, in one line."""


class _Called:
    """Stands for the callable: it looks like it, and does what it did."""

    def __init__(self, function: Callable[..., Any], came: Any) -> None:
        self._function = function
        self._came = came

    def __repr__(self) -> str:
        return str(self._function)

    def __call__(self) -> Any:
        if isinstance(self._came, Raised):
            raise _BodyError(self._came.text)
        return _looking_like(self._came) if isinstance(self._came, Refused) else self._came


def _looking_like(refused: Refused) -> Any:
    """Make something of which doit says what it would say of the value itself."""
    looks: dict[str, Any] = {
        "__module__": refused.module,
        "__qualname__": refused.name,
        "__repr__": lambda _: refused.text,
    }
    return type(refused.name, (), looks)()


def name_of(function: Any) -> str:
    """Name a callable for people."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def not_begun(problem: object) -> Ran:
    """Tell that the callable was not even called: nothing is learnt from that."""
    failure = of_grn(problem) if isinstance(problem, GrnError) else TaskError(str(problem))
    ending = _ending(failed=True)
    ending["stopped"] = True
    return Ran(failure, ending)


def failed(failure: object, trace: str = "") -> Ending:
    """Tell how an action ended that doit has judged; `trace` is what it said."""
    said = stderr_says(trace.encode("utf-8", "replace"))
    ending = _ending(failed=failure is not None)
    ending["said"], ending["said_oom"] = said, said == MEMORY
    return ending


def judged(inner: PythonAction, outcome: Outcome) -> Ran:
    """Have doit judge what came of a process; `inner.result` and `inner.values` are what it makes of it."""
    if outcome.kind != "returned":
        return _lost(inner, outcome)
    came = outcome.value
    if isinstance(came, Raised):
        failure = _judge(inner, came)
        if isinstance(failure, TaskError):
            failure.traceback = [came.trace]
        return Ran(failure, came.ending if failure is not None else _ending(failed=False))
    if isinstance(came, Exited):
        text = (
            f"{name_of(inner.py_callable)} called sys.exit({came.code}); an action succeeds by returning None,"
            " True, a text or a dict, and fails by returning False"
        )
        return Ran(TaskError(f"PythonAction Error: {text}"), _ending(failed=True))
    failure = _judge(inner, came)
    return Ran(failure, _ending(failed=failure is not None))


def _judge(inner: PythonAction, came: Any) -> Any:
    twin: Any = copy.copy(inner)
    twin.task = _NOT_CAPTURED
    twin.py_callable, twin.args, twin.kwargs = _Called(inner.py_callable, came), (), {}
    twin._prepare_kwargs = dict  # noqa: SLF001 - they are prepared
    twin.pm_pdb = False  # there is nothing to look at in this process
    failure = twin.execute(None, None)
    inner.result, inner.values = twin.result, twin.values
    return failure


def _lost(inner: PythonAction, outcome: Outcome) -> Ran:
    """Tell of a process that brought nothing back."""
    error = outcome.error or RuntimeError("nothing is known of its end")
    ending = ending_of(error)
    if outcome.kind == "died":  # its last words are all that it has left
        said = stderr_says((inner.err or "")[-_TAIL_CHARACTERS:].encode("utf-8", "replace"))
        ending["said"], ending["said_oom"] = said, said == MEMORY
    if outcome.kind == "not-started" or getattr(error, "what", "") == "arguments":
        ending["stopped"] = True
    text = f"{type(error).__name__}: {error}" if outcome.kind == "raised" else str(error)
    return Ran(TaskError(f"PythonAction Error: {text}"), ending)


def _ending(*, failed: bool) -> Ending:
    return ending_of(SystemExit(1) if failed else None)
