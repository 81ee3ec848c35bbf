"""`grn config`: every setting with its value and who said it, then flavors and rules with their files.

Promises: asks no broker and changes nothing; a broken file is a usage error that names file and line.
`grn config path` reads no file, so it also answers where one is broken.
Must not: know what a setting means; the settings' own table does.
"""

from __future__ import annotations

import argparse
import json
import os

from grn.cli.table import Table, print_tables
from grn.cli.wishes import rules_wanted
from grn.config import files, tables
from grn.config.stated import stated
from grn.rules.units import format_mib
from grn.settings import known_flags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.config.stated import Stated
    from grn.config.tables import Configured
    from grn.rules.flavors import Flavor, Rule

__all__ = ["main"]

SCHEMA = 1
_OF_A_SETTING = ("key", "value", "source", "flag", "variable")
_KEYS = {"memory_mib": "memory", "ram_mib": "ram"}
"""What keys of a request are called in a file, where that differs."""


def main(argv: Sequence[str]) -> int:
    """Print the configuration; return the exit status."""
    args = _parser().parse_args(argv)
    if args.action == "path":
        return _print_paths(as_json=args.json)
    settings = stated(vars(args), os.environ)
    configured = tables.load(None, os.environ)
    if args.json:
        print(json.dumps(_object(settings, configured)))
    else:
        print_tables(
            [_settings_table(settings), _flavors_table(configured), _rules_table(configured)],
            _notes(configured),
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn config",
        description="Show every setting that a broker started here would have and who said it, then"
        " the flavors and the rules for commands that `grn run` would use in this folder.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=("show", "path"),
        default="show",
        help="show (the default), or only the paths of the files: the user's, then the project's",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    for flag, metavar, text in known_flags():
        parser.add_argument(flag, metavar=metavar, help=text.replace("%", "%%"))
    return parser


def _print_paths(*, as_json: bool) -> int:
    user, found = files.user_path(os.environ), files.find_project(None, os.environ)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "files": _files(user, found.path)}))
        return 0
    print(user)
    if found.path is not None:
        print(found.path)
    return 0


def _files(user: str, project: str | None) -> dict[str, Any]:
    return {"user": {"path": user, "exists": os.path.exists(user)}, "project": project}


def _object(settings: Sequence[Stated], configured: Configured) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "files": _files(configured.user_path, configured.project_path),
        "passed_over": list(configured.passed_over),
        "settings": [
            {name: getattr(setting, name) for name in _OF_A_SETTING} for setting in settings
        ],
        "flavors": [_flavor_object(flavor) for flavor in configured.flavors.values()],
        "overridden": [_flavor_object(flavor) for flavor in configured.overridden],
        "rules": [
            {"match": list(rule.patterns), **rule.values, "file": rule.path, "line": rule.line}
            for rule in configured.rules
        ],
    }


def _flavor_object(flavor: Flavor) -> dict[str, Any]:
    return {"name": flavor.name, **flavor.values, "file": flavor.path, "line": flavor.line}


def _settings_table(settings: Sequence[Stated]) -> Table:
    rows = [(setting.key, setting.text, setting.source) for setting in settings]
    return Table("settings", ("key", "value", "from"), list(rows))


def _flavors_table(configured: Configured) -> Table:
    rows = [
        (flavor.name, _place(flavor), _said(flavor.values))
        for flavor in configured.flavors.values()
    ]
    return Table("flavors", ("name", "file", "gives"), list(rows))


def _rules_table(configured: Configured) -> Table:
    rows = [
        ("\n".join(rule.patterns), _place(rule), _said(rule.values)) for rule in configured.rules
    ]
    return Table("rules for commands, the first that matches counts", _RULE_COLUMNS, list(rows))


_RULE_COLUMNS = ("match", "file", "gives")


def _place(entry: Flavor | Rule) -> str:
    return f"{entry.path}:{entry.line}" if entry.line else entry.path


def _said(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{_KEYS.get(key, key)} {_value(key, value)}" for key, value in values.items())


def _value(key: str, value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    if key in _KEYS and isinstance(value, int):
        return format_mib(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _notes(configured: Configured) -> list[str]:
    there = "" if os.path.exists(configured.user_path) else " (there is none)"
    project = configured.project_path or "none from here upwards"
    notes = [f"user's file: {configured.user_path}{there}", f"project's file: {project}"]
    notes += [
        f"note: the project's flavor {flavor.name} replaces that of {_place(flavor)}"
        for flavor in configured.overridden
    ]
    notes += [f"note: passed over {text}" for text in configured.passed_over]
    if not rules_wanted(os.environ):
        notes.append("note: GRN_RULES switches the rules off")
    for rule in configured.rules:
        name = rule.values.get("flavor")
        if name is not None and name not in configured.flavors:
            notes.append(f"warning: {rule.where}: there is no flavor {name!r}")
    return notes
