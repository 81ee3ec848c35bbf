"""Every setting for people: its names, its value, its default, and who said it."""

from __future__ import annotations

import os

from grn.config import files
from grn.config.lines import line_of_key
from grn.settings import rows, sourced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["DEFAULT", "Stated", "default_of", "stated"]

DEFAULT = "default"
_UNITS = {"_s": " s", "_mib": " MiB"}


class Stated:
    """One setting. `value` is for programs (seconds, MiB, None: found by itself), `text` for people."""

    __slots__ = ("flag", "key", "source", "text", "value", "variable")

    def __init__(self, row: Any, value: object, source: str) -> None:
        self.key: str = row.key
        self.flag: str = row.flag
        self.variable: str = row.variable
        self.value = value
        self.text = _shown(row, value)
        self.source = source


def stated(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ
) -> list[Stated]:
    """Tell of every setting what it is and where that was said: flag, variable, file or default.

    Raises:
        UsageError: a value is malformed, or the configuration file is, or has an unknown key.
    """
    settings, sources = sourced(flags, environ)
    path, config, text = files.read_user(environ)
    found: list[Stated] = []
    for row in rows():
        source = sources.get(row.key, DEFAULT)
        if row.key in config and source.startswith(path):
            line = line_of_key(text, row.key)
            source = f"{path}:{line}" if line else path
        found.append(Stated(row, getattr(settings, row.attribute), source))
    return found


def default_of(row: Any) -> str:
    """Return the default of a row of the settings' table."""
    return _shown(row, row.default) or str(row.unset)


def _shown(row: Any, value: object) -> str:
    if value is None:
        return str(row.unset)
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text + _UNITS.get(row.attribute[len(row.key) :], "")
