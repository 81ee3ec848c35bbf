"""What `grn run-notebook` is told about a notebook, and what it is called."""

from __future__ import annotations

import json
import os
import sys

from grn.cli.runargs import takes_value
from grn.errors import UsageError
from grn.rules.units import parse_duration_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["NotebookOptions", "job_type", "options_of", "require", "split"]

_SUFFIX = ".ipynb"
_NEEDED = ("nbclient", "nbformat")
_TAKE_ONE = {
    "-o": "output",
    "--output": "output",
    "--kernel": "kernel",
    "--cell-timeout": "cell_timeout",
    "--cwd": "cwd",
}


class NotebookOptions:
    """Which notebook, with what parameters, and where its outputs go."""

    def __init__(self) -> None:
        self.path = ""
        self.output: str | None = None
        self.kernel: str | None = None
        self.cell_timeout: str | None = None
        self.cwd: str | None = None
        self.inplace = False
        self.parameters: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}
        """The notebook's own, once it was checked."""

    @property
    def cell_timeout_s(self) -> float | None:
        """Seconds that one cell may take."""
        return (
            None
            if self.cell_timeout is None
            else parse_duration_s(self.cell_timeout, what="--cell-timeout")
        )

    @property
    def target(self) -> str:
        """Where the executed notebook is written: never the notebook itself, unless that is asked for."""
        if self.inplace:
            return self.path
        if self.output is not None:
            return self.output
        return f"{self.path.removesuffix(_SUFFIX)}.out{_SUFFIX}"

    def words(self) -> list[str]:
        """Say it in the words of the command line."""
        words = [self.path]
        for field in ("output", "kernel", "cell_timeout", "cwd"):
            value = getattr(self, field)
            if value is not None:
                words += [f"--{field.replace('_', '-')}", value]
        words += ["--inplace"] if self.inplace else []
        for name, value in self.parameters.items():
            words += ["-p", name, value]
        return words

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            UsageError: the file is not there, or no notebook; a parameter is no name; a time is none.
        """
        _ = self.cell_timeout_s
        if self.inplace and self.output is not None:
            raise UsageError("either --output or --inplace, not both")
        for name in self.parameters:
            if not name.isidentifier():
                raise UsageError(f"-p {name}: a parameter is named like a Python variable")
        try:
            with open(self.path, encoding="utf-8") as file:
                read = json.load(file)
        except OSError as error:
            raise UsageError(f"cannot read the notebook {self.path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path} is no notebook: it is not JSON ({error})") from error
        if not isinstance(read, dict) or not isinstance(read.get("cells"), list):
            raise UsageError(f"{self.path} is no notebook of format 4: it has no list of cells")
        if problem := _problem_of(read):
            raise UsageError(f"{self.path} is no notebook of format 4: {problem}")
        self.metadata = read.get("metadata", {})
        if self.parameters and self.language != "python":
            raise UsageError(
                f"-p: parameters are set in Python, and {self.path} is written in {self.language}"
            )

    @property
    def kernel_name(self) -> str:
        """The kernel that is asked for, or the notebook's own."""
        return self.kernel or str(self._of("kernelspec", "name") or "python3")

    @property
    def language(self) -> str:
        """What the notebook is written in."""
        named = self._of("kernelspec", "language") or self._of("language_info", "name")
        return str(named or "python").lower()

    def _of(self, table: str, key: str) -> object:
        found = self.metadata.get(table)
        return found.get(key) if isinstance(found, dict) else None


def _problem_of(read: Mapping[str, Any]) -> str:
    """Say what would keep nbformat from reading it, "" if nothing: before a device is asked for."""
    if type(read.get("nbformat")) is not int:
        return f"its nbformat is {read.get('nbformat')!r}, no number"
    if not isinstance(read.get("metadata", {}), dict):
        return "its metadata is no table"
    for number, cell in enumerate(read["cells"], 1):
        if not isinstance(cell, dict) or "cell_type" not in cell:
            return f"its cell {number} is no cell"
        source = cell.get("source", "")
        if not isinstance(source, str | list):
            return f"the source of its cell {number} is no text"
    return ""


def split(words: Sequence[str]) -> tuple[NotebookOptions, list[str], list[str]]:
    """Part the words into what is about the notebook, the notebooks themselves, and the rest.

    Raises:
        UsageError: an option has no value.
    """
    options = NotebookOptions()
    paths: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word == "-p":
            if len(left) < 2:  # noqa: PLR2004 - a name and a value
                raise UsageError("-p needs a name and a value: -p epochs 3")
            key = left.pop(0)
            options.parameters[key] = left.pop(0)
        elif name in _TAKE_ONE:
            if not equals and not left:
                raise UsageError(f"{name} needs a value")
            setattr(options, _TAKE_ONE[name], value if equals else left.pop(0))
        elif word == "--inplace":
            options.inplace = True
        elif word.endswith(_SUFFIX) and not word.startswith("-"):
            paths.append(word)
        else:
            rest.append(word)
            if takes_value(word) and left:
                rest.append(left.pop(0))
    return options, paths, rest


def options_of(words: Sequence[str]) -> NotebookOptions:
    """Read the words of one notebook's run.

    Raises:
        UsageError: they make no sense.
    """
    options, paths, rest = split(words)
    if len(paths) != 1 or rest:
        raise UsageError("one notebook is expected: NOTEBOOK.ipynb [-o OUT] [-p NAME VALUE] ...")
    options.path = paths[0]
    return options


def job_type(options: NotebookOptions) -> str:
    """Return the name under which the need of a notebook is learnt: its file and its parameters."""
    parameters = "".join(
        f" -p {name} {value}" for name, value in sorted(options.parameters.items())
    )
    return f"{os.path.realpath(options.path)}{parameters}"


def require() -> None:
    """Make sure that notebooks can be run with this Python.

    Raises:
        UsageError: the extra is not installed.
    """
    import importlib.util  # noqa: PLC0415 - only who has notebooks

    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"notebooks need {' and '.join(missing)}, which {sys.executable} does not have:"
            " pip install 'grn-plugins[notebook]'"
        )
