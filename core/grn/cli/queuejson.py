"""`grn queue add --json`: jobs as objects, each with a folder, variables and options of its own."""

from __future__ import annotations

import json
import os

from grn.cli.numbers import LARGEST
from grn.cli.queueadd import Wish, command_job, notebook_job, refuse
from grn.cli.runargs import parse
from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from grn.notebook.arguments import NotebookOptions
    from grn.queue.store import NewJob

__all__ = ["from_json"]

_KEYS = {
    "command", "notebook", "parameters", "output", "kernel", "cell_timeout", "options", "cwd", "env",
    "name", "after",
}  # fmt: skip


def from_json(wish: Wish) -> list[NewJob]:
    """Read jobs from JSON; all of them are checked before one is added.

    Raises:
        UsageError: it is no JSON, or one of them makes no sense; which one is said.
    """
    if wish.rest:
        raise UsageError("with --json the jobs are in the JSON; options go there, too")
    shown = "standard input" if wish.json == "-" else str(wish.json)
    try:
        with open(0 if wish.json == "-" else str(wish.json), encoding="utf-8") as file:
            read = json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read the jobs in {shown}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is no JSON that can be read: {error}") from error
    jobs = read if isinstance(read, list) else [read]
    if not jobs:
        raise UsageError(f"there are no jobs in {shown}")
    return [_job_from(wish, job, f"job {n} in {shown}") for n, job in enumerate(jobs, 1)]


def _job_from(wish: Wish, job: Any, where: str) -> NewJob:
    if not isinstance(job, dict):
        raise UsageError(f"{where} is not an object")
    unknown = sorted(set(job) - _KEYS)
    if unknown:
        raise UsageError(
            f"{where} has the key {unknown[0]!r}; known are: {', '.join(sorted(_KEYS))}"
        )
    options = _texts(job.get("options", []), f"options of {where}")
    command = job.get("command")
    one = Wish()
    one.after = [*wish.after, *_numbers(job.get("after", []), where)]
    one.name = None if job.get("name") is None else _text(job["name"], f"name of {where}")
    if (command is None) == (job.get("notebook") is None):
        raise UsageError(f"{where} needs either a command or a notebook")
    if command is None:
        path = _text(job["notebook"], f"notebook of {where}")
        made = notebook_job(one, options, path, _parameters(job, where), 0)
    elif isinstance(command, str):
        made = command_job(one, options, 0, line=_text(command, f"command of {where}"))
    else:
        made = command_job(one, options, 0, words=_texts(command, f"command of {where}"))
    try:
        parsed = parse(made.spec.arguments)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from error
    refuse(parsed)
    made.priority = parsed.priority
    made.spec.cwd = os.path.abspath(_text(job.get("cwd", made.spec.cwd), f"cwd of {where}"))
    made.spec.environ.update(_variables(job.get("env", {}), f"env of {where}"))
    return made


def _variables(value: Any, what: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UsageError(f"{what}: an object with the values of variables is expected")
    for name, text in value.items():
        if not name or "=" in _text(name, what):
            raise UsageError(f"{what}: {name!r} is no name of a variable")
        _text(text, f"{name} in {what}")
    return value


def _parameters(job: Any, where: str) -> NotebookOptions:
    from grn.notebook.arguments import NotebookOptions  # noqa: PLC0415 - only who has notebooks

    options = NotebookOptions()
    parameters = job.get("parameters", {})
    if not isinstance(parameters, dict):
        raise UsageError(f"parameters of {where}: an object is expected")
    # As Python writes them: a text that looks like a number stays a text.
    options.parameters = {name: repr(value) for name, value in parameters.items()}
    for key in ("output", "kernel", "cell_timeout"):
        if job.get(key) is not None:
            setattr(options, key, _text(job[key], f"{key} of {where}"))
    return options


def _text(value: Any, what: str) -> str:
    """Check that a text can be a word of a command, a path, the value of a variable."""
    if not isinstance(value, str):
        raise UsageError(f"{what}: a text is expected, not {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise UsageError(f"{what}: {value!r} has half a character") from None
    if "\0" in value:
        raise UsageError(f"{what}: {value!r} has a zero byte")
    return value


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list):
        raise UsageError(f"{what}: a list of texts is expected")
    return [_text(each, what) for each in value]


def _numbers(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or any(type(x) is not int or x > LARGEST for x in value):
        raise UsageError(f"after of {where}: a list of job numbers is expected")
    return value
