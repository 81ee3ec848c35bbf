"""Where a Python function comes from: finds the facts by which `grn.rules.functype` names its type.

Promises: the same function is found at the same place whether its module is `__main__`, was imported,
was started by a relative path, is looked at from another working directory, or was sent to a worker by
value, as Dask and joblib do with functions of `__main__`: their code has lost its file's name then, and
their global names still have it.
Must not: import a module, or read a source file.
"""

from __future__ import annotations

import functools
import os
import sys

from grn.errors import UsageError
from grn.rules.functype import function_type, is_cell, is_file, notebook_type, source_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType
    from typing import Any

__all__ = ["caller_type", "type_of"]

_NOTEBOOK_VARIABLES = ("JPY_SESSION_NAME", "PAPERMILL_INPUT_PATH")
_IPYTHON = "get_ipython"
_NOTEBOOK_GLOBALS = ("__vsc_ipynb_file__", "__session__")


def type_of(function: Callable[..., Any]) -> str:
    """Name the job type of a function, method, partial or callable object.

    Raises:
        UsageError: if it has no name, as a lambda.
    """
    inner: Any = function
    while hasattr(inner, "__wrapped__") or isinstance(inner, functools.partial):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__wrapped__
    inner = getattr(inner, "__func__", inner)  # a bound method, a staticmethod
    code = getattr(inner, "__code__", None)
    if code is not None:
        return _type_of_code(code, inner.__qualname__, getattr(inner, "__globals__", {}))
    if not hasattr(inner, "__qualname__"):  # an object that can be called
        inner = type(inner)
    module = sys.modules.get(inner.__module__ or "")
    path = getattr(module, "__file__", None)
    if path is None:
        return source_type(f"{inner.__module__}.{inner.__qualname__}")
    return function_type(_resolved(path), inner.__qualname__)


def caller_type(depth: int) -> str:
    """Name the type of the function that called, `depth` frames above the caller of this one.

    Raises:
        UsageError: if that is a lambda.
    """
    frame = sys._getframe(depth + 1)  # noqa: SLF001 - inspect, which wraps it, is heavy
    return _type_of_code(frame.f_code, frame.f_code.co_qualname, frame.f_globals)


def _type_of_code(code: CodeType, qualname: str, names: Mapping[str, Any]) -> str:
    source = code.co_filename
    if is_file(source):
        return function_type(_resolved(source), qualname)
    path = names.get("__file__")
    if isinstance(path, str) and not is_cell(source):
        return function_type(_resolved(path), qualname)
    if is_cell(source) or _IPYTHON in names:  # what `%%time` runs has another name
        return notebook_type(_notebook(), _folder(), qualname)
    return source_type(qualname)


def _resolved(path: str) -> str:
    return os.path.realpath(path)


def _notebook() -> str | None:
    """Return the notebook's path, as far as Jupyter, papermill or an editor tell it to its kernel."""
    for name in _NOTEBOOK_VARIABLES:
        told = os.environ.get(name, "")
        if told.endswith(".ipynb"):
            return told
    main = sys.modules.get("__main__")
    for name in _NOTEBOOK_GLOBALS:
        path = getattr(main, name, None)
        if isinstance(path, str) and path.endswith(".ipynb"):
            return path
    return None


def _folder() -> str:
    try:
        return os.path.realpath(os.getcwd())
    except OSError as error:  # it was removed
        raise UsageError(f"the working directory is gone ({error}): name the type") from error
