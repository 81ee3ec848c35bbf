"""What kind of job a Python function is: the name under which its memory need is learnt.

`FILE::QUALNAME`, where FILE is the absolute path of the source file with its symlinks resolved, and
QUALNAME is the function's dotted name in it (`train`, `Trainer.fit`, `outer.<locals>.inner`).

Why the absolute path: the same function can be reached as `__main__`, by import, by a relative path
and from another working directory, and must be one type; functions of one name in two files must be
two. A path relative to the project's root would join the `train.py` of two projects, one relative to
the home directory those of two users of a machine-wide broker. A checkout that moves is measured
anew, once.

A cell of a notebook has no file of its own that lasts: its functions belong to the notebook, or, if
that is not known, to the folder in which it runs. Code that was made at run time belongs to the file of
its module. What comes from no file at all (`python -c`, the
prompt) is named `<string>` and told apart by its name only.

Must not: look at the disk. Whoever calls has resolved the paths.
"""

from __future__ import annotations

from grn.errors import UsageError
from grn.rules.jobtype import LONGEST_TYPE

__all__ = ["function_type", "is_cell", "is_file", "notebook_type", "source_type"]

_DIGEST_CHARACTERS = 32
_LAMBDA = "<lambda>"
_CELLS = ("<ipython-input-", "In [", "Cell In[")


def is_file(source: str) -> bool:
    """Tell whether a code object's file name names a file, and not `<stdin>` or a cell."""
    return bool(source) and not source.startswith("<") and not is_cell(source)


def is_cell(source: str) -> bool:
    """Tell whether a code object's file name is what a kernel gives to a notebook's cell."""
    return source.startswith(_CELLS) or "/ipykernel_" in source


def function_type(path: str, qualname: str) -> str:
    """Name the type of a function in the file at this absolute, resolved path.

    Raises:
        UsageError: if it is a lambda.
    """
    return _named(path, qualname)


def notebook_type(notebook: str | None, folder: str, qualname: str) -> str:
    """Name the type of a function of a notebook's cell.

    Args:
        notebook: path of the notebook, absolute or below `folder`; `None`: not known.
        folder: where it runs.
        qualname: the function's dotted name.

    Raises:
        UsageError: if it is a lambda.
    """
    if notebook is None:
        return _named(f"{folder.rstrip('/')}/<notebook>", qualname)
    path = notebook if notebook.startswith("/") else f"{folder.rstrip('/')}/{notebook}"
    return _named(path, qualname)


def source_type(qualname: str) -> str:
    """Name the type of a function that was typed in, or given with `python -c`.

    Raises:
        UsageError: if it is a lambda.
    """
    return _named("<string>", qualname)


def _named(path: str, qualname: str) -> str:
    if qualname.rpartition(".")[2] == _LAMBDA:
        raise UsageError(
            "a lambda has no name under which its need could be learnt: write it as a function"
            " with `def`, or name its type (type='...')"
        )
    return _bounded(f"{path}::{qualname}")


def _bounded(text: str) -> str:
    """Make text that the wire and the store can carry, still different for different functions."""
    if not text.isascii():  # bytes of a path that are not UTF-8 arrive as lone surrogates
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= LONGEST_TYPE:
        return text
    import hashlib  # noqa: PLC0415 - only endless paths need it, and it is heavy

    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{text[: LONGEST_TYPE - _DIGEST_CHARACTERS - 2]} #{digest}"
