"""Tables: aligned, wrapped, complete, and safe to print."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.cli.table import Table, clean, format_seconds, print_tables, shortened

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


WIDE = Table(
    "a title that is longer than a narrow terminal is wide",
    ("id", ">total", ">free", ">booked", ">measured", "name"),
    [
        ("L1", "143771 MiB", "12345 MiB", "131426 MiB", "131000 MiB", "NVIDIA H200 somewhere"),
        ("L2", "80 GiB", "?", "0 MiB", "17.25 GiB", "train --all"),
    ],
)
NUMBERS = [cell for row in WIDE.rows for cell in row[1:-1]]


def test_names_give_way_first(shown: Callable[..., list[str]]) -> None:
    """Where names do not fit beside the numbers they stand below them; numbers stay aligned."""
    lines = shown(
        Table("", (">size", "c", ">free", "name"), [("1 GiB", "x" * 30, "9 MiB", "n " * 30)])
    )
    assert lines[:2] == [" size  c" + " " * 32 + "free", f"1 GiB  {'x' * 30}  9 MiB"]
    assert [line.strip() for line in lines[2:]] == ["n " * 27 + "n", "n n"]


@pytest.mark.parametrize("columns", [*range(40, 81, 8), 120])
def test_no_number_is_cropped(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However narrow it is, each number stands whole on one line, and no line is too long."""
    monkeypatch.setenv("COLUMNS", str(columns))
    print_tables([WIDE])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert all(any(number in line for line in lines) for number in NUMBERS)
    assert "".join("".join(lines).split()).count("NVIDIAH200somewhere") == 1


@pytest.mark.parametrize("columns", [40, 48, 56, 64, 72, 80, 120])
def test_no_number_is_cropped_on_a_terminal(columns: int) -> None:
    """The same with lines and colour."""
    shown = on_a_terminal(
        f"Table({WIDE.title!r}, {WIDE.columns!r}, {WIDE.rows!r})", COLUMNS=columns
    )
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert max(map(len, lines)) <= columns
    assert all(any(number in line for line in lines) for number in NUMBERS)
    assert "…" not in shown


def test_the_narrowest_form_names_each_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where columns do not fit, a row is a paragraph in which each cell has its column's name."""
    monkeypatch.setenv("COLUMNS", "40")
    print_tables([WIDE])
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("id L2") :] == [
        "id L2",
        "    total 80 GiB  free ?  booked 0 MiB",
        "    measured 17.25 GiB",
        "    train --all",
    ]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_name_that_may_be_shortened_takes_one_line(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its middle, and only as far as there is no room; what follows it in the cell is whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "begin " + "/long/path" * 20 + " end"
    print_tables([Table("", ("id", "job"), [("L1", f"{name}\nwhy it waits")], shorten=shortened)])
    _, line, why = capsys.readouterr().out.splitlines()
    assert len(line) == columns
    assert line.startswith("L1  begin")
    assert line.endswith(" end")
    assert line.count("...") == 1
    assert why.strip() == "why it waits"


def test_a_shortened_text_has_the_length_that_was_asked_for() -> None:
    """More is kept of its beginning; one that fits is left as it is."""
    assert shortened("abcdefghijklmnopqrst", 12) == "abcdef...rst"
    assert shortened("abc", 3) == "abc"


def test_without_names_there_is_no_heading(shown: Callable[..., list[str]]) -> None:
    """A list of facts has no heading above it."""
    assert shown(Table("", ("", ""), [("state", "settled")])) == ["state  settled"]


def test_a_title_is_wrapped_and_cleaned(shown: Callable[..., list[str]]) -> None:
    """A job's command may be a title: long, and with bytes that are not for a terminal."""
    lines = shown(Table("evil \x1b[2J " + "word " * 20, ("id",), [("7",)]))
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 60


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


JOB = "Table('[b]leases', ('id', 'type'), [('L1', '[red]train[/red]')])"


def on_a_terminal(table: str = JOB, **variables: object) -> str:
    """Print a table on a pseudo-terminal; return what it shows."""
    code = f"from grn.cli.table import Table, print_tables\nprint_tables([{table}])\n"
    ours, theirs = pty.openpty()
    said = {name: str(value) for name, value in variables.items()}
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60", **said}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=theirs, env=env, timeout=60)
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        return terminal.read1(65536).decode()


def test_a_job_name_is_not_markup() -> None:
    """Brackets in a job's name are shown, not obeyed."""
    shown = on_a_terminal(NO_COLOR="1")
    assert "[red]train[/red]" in shown
    assert "[b]leases" in shown


def test_no_color_is_respected() -> None:
    """Under `NO_COLOR` a terminal gets no colour."""
    shown = on_a_terminal(NO_COLOR="1")
    assert not any(f"\x1b[{code}" in shown for code in (3, 4, 9))


def test_a_dumb_terminal_gets_plain_text() -> None:
    """With `TERM=dumb` there is no escape sequence and no line drawing."""
    shown = on_a_terminal(TERM="dumb")
    assert "\x1b" not in shown
    assert shown.isascii()
