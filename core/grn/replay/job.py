"""One job of a trace: what it asked for, what it really takes, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Job"]


@dataclass(slots=True, eq=False)
class Job:
    """A job. Memory is in MiB on each of its devices, times are seconds of the trace.

    The first part is given, `declared_mib` and `compute` being what was asked for and what it uses of a
    device; the second part is written by the world.
    """

    number: int
    arrival_s: float
    duration_s: float
    gpus: int
    type: str
    declared_mib: int
    peak_mib: int
    compute: float
    user: int = 0

    at: tuple[int, ...] = ()
    """Positions of the devices on which it runs now."""
    booked_mib: int = 0
    """What is set aside for it on each of them."""
    left_s: float = 0.0
    """How long it still has to run, at full speed."""
    speed: float = 1.0
    reckoned_s: float = 0.0
    """When `left_s` was right."""
    version: int = 0
    """Counts changes of when it ends: what was foretold before is void."""
    holds: bool = False
    """Its memory has appeared."""
    started_s: float = -1.0
    """When its last run began; -1: it never ran."""
    ended_s: float = -1.0
    ooms: int = 0
    lost_s: float = 0.0
    """How long the runs took that died of memory."""
    failed: bool = False
    """It was given up after too many of them."""
