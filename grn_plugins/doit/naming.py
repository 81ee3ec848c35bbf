"""Under which name the need of an action is learnt.

The default is `FOLDER::BASE`: the folder in which doit works, and the task's base name, which all of
its sub-tasks share; for the second action of a task `FOLDER::BASE#2`, and so on. Where the broker
knows the sub-task's own full name (`FOLDER::BASE:NAME`, set or imported by somebody), that goes first.
Not the command line: each hyper-parameter would be a new type, measured alone.

`job=` overrides it. What stands in braces there is filled in: `{task}`, `{base}`, `{action}` (counted from
1) and the task's parameters.

Must not: fail a task because the broker cannot say what it knows.
"""

from __future__ import annotations

import os
from string import Formatter
from typing import TYPE_CHECKING, Any

from grn import hub
from grn.errors import GrnError, UsageError
from grn.rules.jobtype import LONGEST_TYPE

if TYPE_CHECKING:
    from doit.task import Task

    from grn_plugins.doit.action import GrnAction

__all__ = ["job_type", "of_task"]

_ANSWERS_WITHIN_S = 5.0
_ALONE = "action"
"""The base name of an action that belongs to no task."""


def job_type(action: GrnAction) -> str:
    """Name the type of an action; may ask the broker whether it knows the sub-task's own name.

    Raises:
        UsageError: `job` has something in braces that this task does not know.
    """
    task = action.task
    number = _number(action, task)
    job = action.options.job
    if job is not None:
        return _filled(job, task, number)
    own, base = of_task(task, number)
    return own if own != base and _is_known(own) else base


def of_task(task: Task | None, number: int = 1) -> tuple[str, str]:
    """Return the types of a task's action, counted from 1: by its own name, and by its base name."""
    own = _ALONE if task is None else str(task.name)
    suffix = f"#{number}" if number > 1 else ""
    return _placed(f"{own}{suffix}"), _placed(f"{_base(task)}{suffix}")


def _base(task: Task | None) -> str:
    return _ALONE if task is None else str(task.subtask_of or task.name)


def _number(action: GrnAction, task: Task | None) -> int:
    """Count an action among those of its task, from 1."""
    actions: list[Any] = [] if task is None else task.actions
    return next((place for place, each in enumerate(actions, 1) if each is action), 1)


def _placed(name: str) -> str:
    text = f"{os.path.realpath(os.curdir)}::{name}"
    if not text.isascii():  # bytes of a path that are not UTF-8 arrive as lone surrogates
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text[-LONGEST_TYPE:]


def _filled(job: str, task: Task | None, number: int) -> str:
    if "{" not in job and "}" not in job:
        return job
    known = dict((task.options if task is not None else None) or {})
    known |= {"task": _ALONE if task is None else task.name, "base": _base(task), "action": number}
    try:
        names = [name for _, name, _, _ in Formatter().parse(job) if name is not None]
        for name in names:
            if name.partition(".")[0].partition("[")[0] not in known:
                raise UsageError(
                    f"job={job!r}: there is no {{{name}}} here; there are {', '.join(sorted(known))}"
                )
        return job.format(**known)
    except (AttributeError, IndexError, KeyError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"job={job!r}: {error}; {{{{ stands for a brace") from error


def _is_known(name: str) -> bool:
    asked = {"op": "profiles", "action": "show", "type": name}
    try:
        answer = hub.call(asked, within_s=_ANSWERS_WITHIN_S)
    except GrnError:  # whoever asks for the lease next is told what is wrong
        return False
    return any(profile["estimate_mib"] for profile in answer["profiles"])
