"""docs/configuration.md says what the program does: settings, keys, patterns and examples."""

from __future__ import annotations

import os
import re
import shlex
import tomllib

import pytest

from grn.config.stated import default_of
from grn.rules import flavors
from grn.rules.commands import first_match, names, split_line
from grn.rules.flavors import flavor_from, rule_from
from grn.settings import rows
from tests.env import ROOT

HEADING = "| key | flag and variable | values | default | meaning |"


def page() -> str:
    """Return the page."""
    with open(os.path.join(ROOT, "docs", "configuration.md"), encoding="utf-8") as file:
        return file.read()


def settings_table() -> str:
    """Return the table that the page must have, from the settings' own table."""
    lines = [HEADING, "|---|---|---|---|---|"]
    for row in rows():
        values = row.metavar.replace("|", r"\|")
        default = default_of(row)
        lines.append(
            f"| `{row.key}` | `{row.flag}`, `{row.variable}` | `{values}` | {default} | {row.help} |"
        )
    return "\n".join(lines)


def tables(text: str) -> list[list[str]]:
    """Return the rows of all tables as cells."""
    found = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in found]


def test_every_setting_is_in_the_reference() -> None:
    """The table of settings has all of them, with the defaults and help of the program."""
    assert settings_table() in page(), f"put this into docs/configuration.md:\n{settings_table()}"


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("## Flavors", set(flavors._SIZE_KEYS)),
        ("## Rules", set(flavors._RULE_KEYS) - set(flavors._SIZE_KEYS) - {"match"}),
    ],
)
def test_every_key_of_a_table_is_in_the_reference(heading: str, keys: set[str]) -> None:
    """What a flavor or a rule may say is listed, and nothing else is."""
    section = page().partition(heading)[2].partition("\n## ")[0].partition("\n### ")[0]
    listed = {key for row in tables(section) for key in re.findall(r"`(\w+)`", row[0])}
    assert listed == keys


def test_the_examples_can_be_used() -> None:
    """Each TOML example is one that the program takes."""
    examples = re.findall(r"```toml\n(.*?)```", page(), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        read = tomllib.loads(example)
        for name, table in read.get("flavors", {}).items():
            assert flavor_from(name, table, path="p", line=1, title="t").values
        for table in read.get("job", []):
            assert rule_from(1, table, path="p", line=1, title="t").values


def test_the_examples_of_patterns_match() -> None:
    """Each command of the page is matched by each pattern that stands beside it."""
    section = page().partition("### What a pattern matches")[2].partition("\n## ")[0]
    rows_of_commands = tables(section)[1:]
    assert len(rows_of_commands) == 5
    for command, patterns in rows_of_commands:
        bare = command.strip("`")
        commands = split_line(shlex.split(bare)[0]) if bare.startswith("'") else [bare.split()]
        for pattern in re.findall(r"`([^`]+)`", patterns):
            assert first_match([pattern], names(commands)) == pattern, (command, pattern)
