"""What the configuration files say about flavors and rules, checked and in the order in which it counts.

The project's file goes before the user's: a flavor of the project replaces the user's flavor of the
same name as a whole, and the project's rules are asked first.

Promises: all tables of a file are checked whenever one is needed, so a mistake is told by the next
request and not by the first that it would have hurt.
"""

from __future__ import annotations

import os

from grn.config import files
from grn.config.lines import line_of_table, lines_of_entries, place_of
from grn.errors import UsageError
from grn.policies import entry_point
from grn.rules.flavors import flavor_from, rule_from
from grn.rules.policyname import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.rules.flavors import Flavor, Rule

__all__ = ["Configured", "load"]

_FLAVORS, _RULES = "flavors", "job"
_ADAPTERS = ("doit",)
"""Adapters with rules of their own in a project's file, `[[NAME]]`. What is in them, they know."""


class _Policies:
    """Ours, and those of installed packages, which are only looked for under a name of theirs."""

    def __contains__(self, name: object) -> bool:
        return name in NAMES or entry_point(str(name)) is not None


_POLICIES = _Policies()


class Configured:
    """Flavors and rules in force, with the files that they are from."""

    __slots__ = (
        "adapters",
        "flavors",
        "overridden",
        "passed_over",
        "project_path",
        "rules",
        "user_path",
    )

    def __init__(self, user_path: str, found: files.Found) -> None:
        self.user_path = user_path
        self.project_path = found.path
        self.passed_over: Sequence[str] = found.passed_over
        self.flavors: dict[str, Flavor] = {}
        self.overridden: list[Flavor] = []
        """The user's flavors that the project has replaced."""
        self.rules: list[Rule] = []
        self.adapters: dict[str, list[tuple[str, Any]]] = {name: [] for name in _ADAPTERS}
        """Each adapter's rules, in their order: where a rule stands, and what is written there."""

    def flavor(self, name: str) -> Flavor:
        """Return the flavor of this name.

        Raises:
            UsageError: there is none; the message lists what there is and where.
        """
        if name in self.flavors:
            return self.flavors[name]
        raise UsageError(f"there is no flavor {name!r}; {self._known()}{self._notes()}")

    def _known(self) -> str:
        if not self.flavors:
            places = [self.user_path, self.project_path or f"a {files.OWN_NAME} here or above"]
            return f"none is defined: write [flavors.NAME] in {' or '.join(places)}"
        by_path: dict[str, list[str]] = {}
        for flavor in self.flavors.values():
            by_path.setdefault(flavor.path, []).append(flavor.name)
        return "; ".join(f"{path} has {', '.join(names)}" for path, names in by_path.items())

    def _notes(self) -> str:
        return "".join(f"; passed over {text}" for text in self.passed_over)


def load(start: str | None = None, environ: Mapping[str, str] = os.environ) -> Configured:
    """Read both files; the project's is looked for from `start` (default: the working folder).

    Raises:
        UsageError: a file cannot be read, or something in it is wrong.
    """
    configured = Configured(files.user_path(environ), files.find_project(start, environ))
    if configured.project_path is not None:
        project = _project(configured.project_path, configured.user_path)
        _take(configured, *project)
        _take_adapters(configured, *project)
    _take(configured, *files.read_user(environ), "")
    return configured


def _project(path: str, user_path: str) -> tuple[str, dict[str, Any], str, str]:
    """Read a project's file; return its path, our tables, its text, and what our tables are under."""
    tables, text = files.read(path)
    prefix = ""
    if os.path.basename(path) == files.SHARED_NAME:
        prefix, tables = "tool.grn.", tables["tool"]["grn"]
        if not isinstance(tables, dict):
            raise UsageError(f"{path}: tool.grn must be a table")
    for key in tables.keys() - {_FLAVORS, _RULES, *_ADAPTERS}:
        place = place_of(path, text, prefix + key)
        raise UsageError(f"{place}: {_not_for_a_project(prefix + key, user_path)}")
    return path, tables, text, prefix


def _not_for_a_project(key: str, user_path: str) -> str:
    from grn.settings import known_keys  # noqa: PLC0415 - only to explain a mistake

    if key.rpartition(".")[2] in known_keys():
        return (
            f"{key} is a setting of the broker, which serves all projects of this machine; it"
            f" belongs into {user_path}"
        )
    return f"unknown key {key!r}; a project's file has [flavors.NAME] and [[job]]"


def _take(
    configured: Configured, path: str, tables: Mapping[str, Any], text: str, prefix: str
) -> None:
    """Add the tables of one file to those of stronger files."""
    flavors = tables.get(_FLAVORS, {})
    if not isinstance(flavors, dict):
        raise UsageError(f"{path}: flavors must be tables: [{prefix}{_FLAVORS}.NAME]")
    for name, table in flavors.items():
        title = f"{prefix}{_FLAVORS}.{name}"
        line = line_of_table(text, title)
        flavor = flavor_from(
            name, table, path=path, line=line, title=f"[{title}]", policies=_POLICIES
        )
        if configured.flavors.setdefault(name, flavor) is not flavor:
            configured.overridden.append(flavor)
    title = f"[[{prefix}{_RULES}]]"
    for number, (table, line) in enumerate(_entries(path, tables, text, prefix, _RULES), 1):
        configured.rules.append(
            rule_from(number, table, path=path, line=line, title=title, policies=_POLICIES)
        )


def _take_adapters(
    configured: Configured, path: str, tables: Mapping[str, Any], text: str, prefix: str
) -> None:
    for name, rules in configured.adapters.items():
        for number, (table, line) in enumerate(_entries(path, tables, text, prefix, name), 1):
            place = f"{path}:{line}" if line else path
            rules.append((f"{place}, [[{prefix}{name}]] number {number}", table))


def _entries(
    path: str, tables: Mapping[str, Any], text: str, prefix: str, name: str
) -> list[tuple[Any, int | None]]:
    """Return what `[[name]]` has, each with its line."""
    rules = tables.get(name, [])
    if not isinstance(rules, list):
        raise UsageError(f"{path}: rules are written with two brackets: [[{prefix}{name}]]")
    return list(zip(rules, lines_of_entries(text, prefix + name, len(rules)), strict=True))
