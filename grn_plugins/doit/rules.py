"""Which tasks the loader wraps by their names: the rules in the project's file.

    [[tool.grn.doit]]            # in pyproject.toml; in grn.toml: [[doit]]
    match = ["train:*", "eval"]
    gpus = 1

`match` is a pattern, or several: `*` is anything, `?` one character, `[abc]` one of these. A pattern has to match
the task's full name, or the base name that its sub-tasks share, from beginning to end. The first rule that
matches counts, as for commands; every other key is an option of `grn`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from grn.config import tables
from grn.errors import UsageError
from grn_plugins.doit.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Rule", "load"]

_MATCH, _NONE = "match", "none"


class Rule:
    """What tasks of certain names are wrapped with."""

    def __init__(self, where: str, patterns: Sequence[str], options: Options) -> None:
        self.where = where
        self.patterns = patterns
        self.options = options

    def matches(self, name: str) -> bool:
        """Tell whether it is for a task of this full name."""
        names = (name, name.partition(":")[0])
        return any(fnmatchcase(each, pattern) for pattern in self.patterns for each in names)


def load() -> list[Rule]:
    """Read the rules of the project in the working folder.

    Raises:
        UsageError: if a file cannot be read, or a rule makes no sense.
    """
    return [_rule(where, table) for where, table in tables.load().adapters["doit"]]


def _rule(where: str, table: Any) -> Rule:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: a table is expected, not {table!r}")
    given = dict(table)
    patterns = given.pop(_MATCH, None)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if (
        not isinstance(patterns, list)
        or not patterns
        or not all(isinstance(each, str) for each in patterns)
    ):
        raise UsageError(f"{where}: write match = 'PATTERN', or a list of them, of task names")
    if given.get("gpus") == _NONE:
        given["gpus"] = None
    try:
        return Rule(where, patterns, Options(given))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
