"""What a job is called where there is little room: by its label and its type, without folders."""

from __future__ import annotations

from grn.cli.table import shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["fitted", "job_name"]

_LEAST_OF_A_TYPE = 24


def job_name(entry: Mapping[str, Any]) -> str:
    """Name a job by its label and its type; a label that is the type cut short says nothing more.

    Of the program that a type begins with, people know the name; the JSON has its folder as well.
    """
    label, kind = str(entry["label"]), _without_folder(str(entry["type"]))
    begins_as = _without_folder(label).removesuffix("..")
    return kind if kind.startswith(begins_as) else f"{label} ({kind})"


def fitted(name: str, room: int) -> str:
    """Make a job's name fit: its label goes before its type, of which a few letters tell nothing."""
    label, there, _ = name.partition(" (")
    if there and len(name) > room and room - len(label) < _LEAST_OF_A_TYPE:
        return shortened(label, room)
    return shortened(name, room)


def _without_folder(command: str) -> str:
    program, blank, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]}{blank}{rest}"
