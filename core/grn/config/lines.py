"""On which line of a configuration file a key or a table stands.

tomllib tells no lines. What is found here is for people only, so anything that leaves doubt (a name
that occurs twice, as within a text of several lines) has no line rather than a wrong one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["line_of_key", "line_of_table", "lines_of_entries", "place_of"]


def line_of_key(text: str, key: str, table: str = "") -> int | None:
    """Return the line of a key in `[table]`; without one, of a key that stands before all tables."""
    found, inside = [], not table
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            inside = bool(table) and _header(line) == f"[{table}]"
        elif inside and "=" in line and _bare(line.partition("=")[0]) == key:
            found.append(number)
    return found[0] if len(found) == 1 else None


def line_of_table(text: str, name: str) -> int | None:
    """Return the line of `[name]`; `name` has its parts joined by dots."""
    found = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if _header(line) == f"[{name}]" or _bare(line.partition("=")[0]) == name
    ]
    return found[0] if len(found) == 1 else None


def lines_of_entries(text: str, name: str, count: int) -> Sequence[int | None]:
    """Return the line of each `[[name]]`, of which there are `count`."""
    found = [
        number for number, line in enumerate(text.splitlines(), 1) if _header(line) == f"[[{name}]]"
    ]
    return found if len(found) == count else [None] * count


def place_of(path: str, text: str, name: str) -> str:
    """Write a file with the line of one of its names, a key or a table, if that is certain."""
    table, _, key = name.rpartition(".")
    line = line_of_key(text, key, table) or line_of_table(text, name)
    line = line or lines_of_entries(text, name, 1)[0]
    return f"{path}:{line}" if line else path


def _header(line: str) -> str:
    return _bare(line.partition("#")[0]) if line.lstrip().startswith("[") else ""


def _bare(text: str) -> str:
    return "".join(character for character in text if character not in " \t\"'")
