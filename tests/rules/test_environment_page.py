"""`docs/environment.md` lists what the table decides by, row for row."""

from __future__ import annotations

import os

from grn.rules.environment import TABLE

PAGE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    "docs",
    "environment.md",
)
HEAD = ["| variable | read by | when | what a job finds | class |", "|---|---|---|---|---|"]


def table_lines() -> list[str]:
    """Write the table as the page has it."""
    return HEAD + [
        f"| `{row.name}` | {row.reader} | {row.when} | {row.says} | {row.kind} |" for row in TABLE
    ]


def test_the_page_has_every_row() -> None:
    """A variable that is added, dropped or changed is so on the page, in the same order.

    Where it is not, this shows the lines to put there.
    """
    with open(PAGE, encoding="utf-8") as file:
        shown = [line for line in file.read().splitlines() if line.startswith("|")]
    start = shown.index(HEAD[0])
    wanted = table_lines()
    assert shown[start : start + len(wanted)] == wanted, "\n".join(wanted)
