"""`python -m grn.replay`: its table, JSON, CSV and picture, and what it says of mistakes."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from grn.replay.cli import main

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ["--synthetic", "--jobs", "120", "--devices", "2"]


def test_the_table_has_a_row_per_policy_and_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """All policies that can run the trace are compared unless some are named."""
    assert main([*SMALL, "--seeds", "1-2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[0] == "policy"
    assert {"fifo", "grn0", "best-fit", "fgd", "spread", "pack/run-time", "oracle"} <= set(names)
    assert names[-1] == "bounds:"


def test_json_and_csv_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Each run by policy and seed, in either form, in one process or in two."""
    words = [*SMALL, "--policies", "best-fit,spread", "--seeds", "3,4"]
    assert main([*words, "--json", "--processes", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main([*words, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert told["schema"] == 1
    assert [(run["policy"], run["seed"]) for run in told["runs"]] == [
        ("best-fit", 3), ("best-fit", 4), ("spread", 3), ("spread", 4),
    ]  # fmt: skip
    assert [float(row["wait_mean_s"]) for row in rows] == [
        run["wait_mean_s"] for run in told["runs"]
    ]


def test_the_picture_is_an_svg_with_a_bar_for_each(tmp_path: Path) -> None:
    """A documentation page can show it as it is."""
    path = tmp_path / "waits.svg"
    assert main([*SMALL, "--policies", "fifo,spread,oracle", "--plot", str(path)]) == 0
    texts = [each.text for each in ET.parse(path).iter() if each.text]  # noqa: S314 - our own file
    assert {"fifo", "spread", "oracle"} <= set(texts)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give the path of a trace, or --synthetic"),
        (["nowhere.csv"], "nowhere.csv"),
        ([*SMALL, "--policies", "best"], "no policy 'best'"),
    ],
)
def test_mistakes_end_with_2_and_a_word(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As all our commands."""
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--days", "5"], ["--seeds", "x"], ["--jitter", "2"], ["--ramp", "soon"]]
)
def test_options_are_checked(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A value that cannot be is refused with the option's name."""
    with pytest.raises(SystemExit) as ended:
        main([*SMALL, *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
