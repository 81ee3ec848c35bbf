"""Whole numbers on a command line: of jobs, processes, devices, events."""

from __future__ import annotations

__all__ = ["LARGEST", "whole"]

LARGEST = (1 << 63) - 1
"""What databases, frames and the kernel can hold."""


def whole(text: str) -> int:
    """Read a whole number, as the `type=` of an option.

    Raises:
        argparse.ArgumentTypeError: it is none, or too large for anything that has a number.
    """
    import argparse  # noqa: PLC0415 - who calls this has it; who wants only the limit need not

    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if abs(number) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:30]} is too large a number")
    return number
