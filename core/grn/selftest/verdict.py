"""How a check ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAILED", "OK", "SKIPPED", "FailedError", "Result", "SkippedError"]

OK = "ok"
FAILED = "FAILED"
SKIPPED = "skipped"


class FailedError(Exception):
    """What GRN promises does not hold here; the text says what was seen instead."""


class SkippedError(Exception):
    """The check cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one check: `state` is ok, FAILED or skipped, `numbers` are for programs."""

    name: str
    title: str
    state: str
    text: str
    took_s: float
    numbers: dict[str, Any] = field(default_factory=dict)
