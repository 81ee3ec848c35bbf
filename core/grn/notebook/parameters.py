"""Parameters of a notebook, by papermill's convention: a cell tagged `parameters` has the defaults.

What is given goes into a cell of its own right after that one, or first where there is none, tagged
`injected-parameters`; one that is there from an earlier run is replaced.
Source of the convention: https://papermill.readthedocs.io/en/latest/usage-parameterize.html
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from nbformat import v4

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["inject", "value_of"]

_DEFAULTS, _INJECTED = "parameters", "injected-parameters"


def value_of(text: str) -> Any:
    """Read a value as Python would: a number, True, None, a list; anything else is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def inject(notebook: Any, parameters: Mapping[str, str]) -> None:
    """Put a cell with the parameters into a notebook of Python."""
    if not parameters:
        return
    lines = [f"{name} = {value_of(text)!r}" for name, text in parameters.items()]
    make: Callable[..., Any] = v4.new_code_cell  # it has no types
    cell = make(source="# Parameters\n" + "\n".join(lines), metadata={"tags": [_INJECTED]})
    cells = [each for each in notebook.cells if _INJECTED not in _tags(each)]
    at = next((n + 1 for n, each in enumerate(cells) if _DEFAULTS in _tags(each)), 0)
    notebook.cells = [*cells[:at], cell, *cells[at:]]


def _tags(cell: Any) -> list[str]:
    tags: list[str] = cell.get("metadata", {}).get("tags", [])
    return tags
