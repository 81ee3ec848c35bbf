"""What doit is told of a failure: its own classes, and a hint where memory was the reason.

GRN's own failures (no broker, impossible, not in time, cancelled)   TaskError "GRN: ..."
the device's memory ran out                                          TaskFailed with a hint
everything else                                                      as doit itself has it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from doit.exceptions import TaskError, TaskFailed

from grn.rules.outcome import BUSY, OOM, OOM_SUSPECTED
from grn.rules.units import format_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from doit.exceptions import BaseFail

    from grn.errors import GrnError
    from grn.grants import Grant

__all__ = ["of_grn", "with_hint"]


def of_grn(error: GrnError) -> TaskError:
    """Tell doit of a failure of ours; without a traceback, which would show our own code."""
    return TaskError(f"GRN: {error}")


def with_hint(
    failure: BaseFail, grant: Grant | None, report: Mapping[str, Any] | None, said: str, tried: int
) -> BaseFail:
    """Add to a failure what is known of its reason.

    Args:
        failure: as doit has it.
        grant: what the action ran with.
        report: what the broker made of its end.
        said: what its last words tell, a name of `grn.rules.outcome`.
        tried: how often it has run.
    """
    outcome = report["outcome"] if report is not None else ""
    if outcome == OOM or (outcome == OOM_SUSPECTED and report is not None and report["remedy"]):
        hint = _memory(grant, report, tried)
        failed = TaskFailed(f"{failure.message}\n{hint}", None)
        failed.traceback = failure.traceback
        return failed
    if said == BUSY:
        failure.message += (
            "\nGRN: a device was busy or unavailable: no matter of memory, another may work"
        )
    return failure


def _memory(grant: Grant | None, report: Mapping[str, Any] | None, tried: int) -> str:
    booked = grant.message["memory_mib"] if grant is not None else None
    text = "GRN: the device's memory ran out"
    if booked:
        text += f"; {format_mib(booked)} were booked on each device"
    if tried > 1:
        text += f", {tried} tries"
    following = report["next_mib"] if report is not None else None
    if following:
        text += f"; the next run gets {format_mib(following)}"
    return f"{text}. Say memory='…' if you know the need, or retries_on_oom=2 to try again at once"
