"""How a run ended: a table for people, JSON for programs.

Promises: each command is named with its own status; the JSON's keys stay (more may come).
Must not import anything heavy: it also ends the shortest run.
"""

from __future__ import annotations

import os

from grn.cli.reports import placed
from grn.cli.runjobs import shortened
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from grn.supervise.job import Job

__all__ = ["advice", "job_object", "run_object", "table", "write_all"]

_COMMAND_LENGTH = 48
_TYPE_LENGTH = 24
_ENOUGH_TO_ADVISE = 4


def job_object(job: Job) -> dict[str, Any]:
    """Describe one job for programs. `exit_code` is as a shell shows it: 128 + n for a signal."""
    return {
        "number": job.number,
        "command": job.command,
        "label": job.label,
        "type": job.type,
        "exit_code": job.status,
        "signal": job.signal,
        "outcome": job.outcome,
        "problem": job.problem or None,
        "devices": [device["uuid"] for device in job.devices],
        "peak_mib": job.peak_mib,
        "waited_s": round(job.waited_s, 3),
        "ran_s": round(job.ran_s, 3),
        "tries": job.tries,
        "attempts": job.attempts,
        "note": job.note or None,
    }


def run_object(jobs: Sequence[Job]) -> dict[str, Any]:
    """Describe a whole run for programs."""
    return {"schema": 1, "jobs": [job_object(job) for job in jobs]}


def table(jobs: Sequence[Job], took_s: float, *, shows_type: bool) -> str:
    """Lay out how all jobs ended, and how many did well."""
    head = ["#", "command", *(["type"] if shows_type else [])]
    rows = [[*head, "device", "waited", "ran", "peak", "result"]]
    rows += [_row(job, shows_type=shows_type) for job in jobs]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)).rstrip()
        for row in rows
    ]
    good = sum(job.status == 0 for job in jobs)
    bad = len(jobs) - good
    failed = f", {bad} not" if bad else ""
    return "\n".join([*lines, f"{good} of {len(jobs)} ok{failed}, in {took_s:.1f} s", ""])


def _row(job: Job, *, shows_type: bool) -> list[str]:
    numbers = placed(job).partition(" ")[2]
    return [
        str(job.number),
        shortened(job.command, _COMMAND_LENGTH),
        *([shortened(job.type, _TYPE_LENGTH)] if shows_type else []),
        numbers or "-",
        f"{job.waited_s:.1f} s",
        f"{job.ran_s:.1f} s" if job.tries else "-",
        "-" if job.peak_mib is None else format_mib(job.peak_mib),
        job.result,
    ]


def advice(jobs: Sequence[Job]) -> str:
    """Say how to make jobs share, if each of many was the first of its type; else nothing."""
    if len(jobs) < _ENOUGH_TO_ADVISE or len({job.type for job in jobs}) < len(jobs):
        return ""
    import shlex  # noqa: PLC0415 - only to advise

    from grn.rules.jobtype import varying_args  # noqa: PLC0415

    try:
        names = varying_args([shlex.split(job.command) for job in jobs])
    except ValueError:  # an open quote
        return ""
    if not names:
        return ""
    flags = " ".join(f"--ignore-arg {name}" for name in names)
    return (
        f"grn run: all {len(jobs)} commands are of different types, so nothing learnt from one helps"
        f" another; if these do not change the memory, add: {flags}\n"
    )


def write_all(fd: int, text: str) -> None:
    """Write text to a descriptor, all of it, in UTF-8."""
    rest = memoryview(text.encode("utf-8", "surrogateescape"))
    while rest:
        rest = rest[os.write(fd, rest) :]
