"""Tables: aligned, wrapped, complete, and safe to print."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.cli.table import Table, clean, format_seconds, print_tables

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Print tables 60 columns wide into a pipe; return the lines."""
    monkeypatch.setenv("COLUMNS", "60")

    def show(*tables: Table, notes: tuple[str, ...] = ()) -> list[str]:
        print_tables(tables, notes)
        return capsys.readouterr().out.splitlines()

    return show


def test_columns_are_aligned(shown: Callable[..., list[str]]) -> None:
    """Numbers stand under their heading at the right, words at the left."""
    lines = shown(Table("", (">size", "name"), [("1 GiB", "a"), ("100 MiB", "bc")]))
    assert lines == ["   size  name", "  1 GiB  a", "100 MiB  bc"]


def test_last_column_is_wrapped_and_complete(shown: Callable[..., list[str]]) -> None:
    """A long command is folded under its own column, and no word of it is lost."""
    command = "python train.py " + " ".join(f"--option-{n} {n}" for n in range(12))
    lines = shown(Table("", ("id", "type"), [("L1", command)]))
    assert max(map(len, lines)) <= 60
    assert " ".join(lines[1:]).split() == ["L1", *command.split()]


def test_empty_table_is_left_out(shown: Callable[..., list[str]]) -> None:
    """A table without rows shows neither title nor heading."""
    assert shown(Table("leases", ("id",)), Table("", ("id",), [("7",)])) == ["id", "7"]


def test_notes_are_wrapped(shown: Callable[..., list[str]]) -> None:
    """Notes are folded to the width and indented."""
    lines = shown(notes=("warning: " + "word " * 30,))
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60


def test_no_escape_sequence_of_a_job_gets_through(shown: Callable[..., list[str]]) -> None:
    """A job's name cannot colour, move or clear the reader's terminal."""
    lines = shown(Table("", ("id", "type"), [("L1", "evil \x1b[2J name")]))
    assert "\x1b" not in "".join(lines)
    assert "\\x1b[2J" in lines[1]


def test_clean_keeps_what_is_printable() -> None:
    """Letters of any script stay; undecodable bytes are shown escaped."""
    assert clean("größer 模型") == "größer 模型"
    assert clean("a\udcffb\t") == "a\\udcffb\\t"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.0, "59 s"), (120.0, "2 min"), (9000.0, "2.5 h")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """A duration is one number and a unit."""
    assert format_seconds(seconds) == text


def on_a_terminal(**variables: str) -> str:
    """Print a table on a pseudo-terminal; return what it shows."""
    code = (
        "from grn.cli.table import Table, print_tables\n"
        "print_tables([Table('leases', ('id', 'type'), [('L1', '[red]train[/red]')])])\n"
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60", **variables}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=theirs, env=env, timeout=60)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        return terminal.read1(65536).decode()


def test_a_job_name_is_not_markup() -> None:
    """Brackets in a job's name are shown, not obeyed."""
    assert "[red]train[/red]" in on_a_terminal(NO_COLOR="1")


def test_no_color_is_respected() -> None:
    """Under `NO_COLOR` a terminal gets no colour."""
    shown = on_a_terminal(NO_COLOR="1")
    assert not any(f"\x1b[{code}" in shown for code in (3, 4, 9))


def test_a_dumb_terminal_gets_plain_text() -> None:
    """With `TERM=dumb` there is no escape sequence and no line drawing."""
    shown = on_a_terminal(TERM="dumb")
    assert "\x1b" not in shown
    assert shown.isascii()
