"""Arguments that lose their meaning as a copy, which is what a process of its own gets.

A trial of an Optuna study that lives in the memory of the caller's process: what the copy is asked to
suggest or to report changes a copy of the study, and the study itself never hears of it.

Must not: import a framework.
"""

from __future__ import annotations

import sys

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["refuse_lost_copies"]

_IN_MEMORY = "InMemoryStorage"


def refuse_lost_copies(name: str, values: Iterable[object]) -> None:
    """See that what a job does with its arguments is not lost with its process.

    Raises:
        UsageError: it would be; with the ways out.
    """
    trial: Any = getattr(sys.modules.get("optuna"), "Trial", None)
    if trial is None:
        return
    given: list[Any] = list(values)
    for value in given:
        if isinstance(value, trial) and type(value.storage).__name__ == _IN_MEMORY:
            raise UsageError(
                f"{name} would get a copy of trial {value.number}, of a study that is in the memory of"
                " this process: what is suggested and reported there is lost. Suggest in the objective,"
                " and call a job with the values; or give the study a storage"
                " (optuna.create_study(storage='sqlite:///study.db'))"
            )
