"""The Snakemake example, run as its README says, with a broker of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from tests.installed import installed_or_skip

if TYPE_CHECKING:
    from pathlib import Path

installed_or_skip("snakemake", "snakemake")
installed_or_skip("sklearn", "examples")

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "examples", "snakemake")
TIME_LIMIT_S = 280
DEVICE_MIB = 2048


class Story(NamedTuple):
    """What one run of the example left: its output, and what each training wrote down."""

    output: str
    runs: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Run the example once."""
    folder = tmp_path_factory.mktemp("example")
    left_out = ("GRN_", "CUDA_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]])
    run = subprocess.run(
        ["sh", os.path.join(FOLDER, "run.sh"), str(folder)],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    runs = []
    for kind in ("forest", "network"):
        runs += json.loads((folder / "results" / f"{kind}.json").read_text())
    return Story(run.stdout, runs, folder)


def test_all_models_are_trained_on_devices(story: Story) -> None:
    """Eight trainings, each on one of two devices, and all of them learnt something."""
    assert len(story.runs) == 8
    assert {run["device"] for run in story.runs} <= {"0", "1"}
    assert all(run["accuracy"] > 0.6 for run in story.runs), story.runs


def test_devices_are_shared(story: Story) -> None:
    """At some moment there are two on one device; never more than it has memory for."""
    most = 0
    for run in story.runs:
        beside = [
            other
            for other in story.runs
            if other["device"] == run["device"] and other["began"] <= run["began"] < other["ended"]
        ]
        most = max(most, len(beside))
        assert sum(other["booked_mib"] for other in beside) <= DEVICE_MIB
    assert most >= 2, story.output


def test_each_kind_was_measured_once(story: Story) -> None:
    """The first of a kind has a device to itself; what it took is known afterwards."""
    assert len(re.findall(r"grn: forest .* to be measured", story.output)) == 1
    assert len(re.findall(r"grn: network .* to be measured", story.output)) == 1
    for kind in ("forest", "network"):
        assert f"Snakefile::{kind}" in story.output


def test_the_figure_shows_them_all(story: Story) -> None:
    """It is an image with a bar for each accuracy and one for each training."""
    figure = ET.parse(story.folder / "results" / "digits.svg").getroot()  # noqa: S314 - our own
    bars = figure.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 2 * len(story.runs)
