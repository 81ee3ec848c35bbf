"""Warnings of the line that a person wrote, however deep in GRN they come up."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]

_NOT_A_PERSON = ("grn", "asyncio", "contextlib", "selectors")


def warn(text: str) -> None:
    """Warn of the innermost line outside of GRN that led here."""
    level, frame = 1, sys._getframe(0)  # noqa: SLF001 - inspect, which wraps it, is heavy
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_A_PERSON:
            break
        frame = frame.f_back
        level += 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)
