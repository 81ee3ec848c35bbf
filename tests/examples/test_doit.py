"""The doit example, run as its README says, with a broker of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from grn.client import Client
from grn.settings import load
from tests.browser import screens_in
from tests.examples.lookon import Browsing, Seen
from tests.examples.onlooker import Onlooker
from tests.installed import installed_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

installed_or_skip("doit", "doit")
installed_or_skip("sklearn", "examples")

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "examples", "doit")
TIME_LIMIT_S = 240
SEEDS = 3


class Story(NamedTuple):
    """What one run of the example left."""

    output: str
    metrics: list[dict[str, Any]]
    profiles: list[dict[str, Any]]
    onlooker: Onlooker
    seen: Seen

    @property
    def trainings(self) -> int:
        """How many there are: it depends on what is installed."""
        return len(self.metrics)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Run a copy of the example once."""
    folder = tmp_path_factory.mktemp("doit", numbered=True)
    folder.chmod(0o700)
    project = shutil.copytree(
        FOLDER, folder / "example", ignore=shutil.ignore_patterns("data", "runs", ".doit*")
    )
    left_out = ("GRN_", "CUDA_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | {
        "GRN_SOCKET": str(folder / "grn.sock"),
        "GRN_STATE_DIR": str(folder / "state"),
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
    }
    try:
        with Browsing(env, screens_in(folder), "doit") as browsing:
            with Onlooker(env, load({}, env)) as onlooker:
                status, output = browsing.run(["sh", str(project / "run.sh")], TIME_LIMIT_S)
            assert status == 0, output
            with Client(load({}, env)) as client:
                profiles = client.profiles("list")
            metrics = [_json(path) for path in sorted(project.glob("runs/*.json"))]
            browsing.report(ended=len(metrics))
        assert browsing.seen is not None
        yield Story(output, metrics, profiles, onlooker, browsing.seen)
    finally:
        subprocess.run(["grn", "broker", "stop"], env=env, check=False, timeout=30)


def _json(path: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_pages_show_what_ran(story: Story) -> None:
    """The live page and the report draw each training, and the browser has no complaint."""
    seen = story.seen
    if seen.why_not:
        pytest.skip(seen.why_not)
    assert len(seen.report_ids) >= story.trainings
    assert seen.live_ids == seen.report_ids
    assert seen.together >= 2
    assert seen.complaints == []


def test_every_training_succeeds(story: Story) -> None:
    """Three in each framework, nine at least, on one of two devices."""
    frameworks = [each["framework"] for each in story.metrics]
    assert {"numpy", "sklearn"} < set(frameworks)
    assert all(frameworks.count(name) == SEEDS for name in frameworks)
    assert story.trainings >= 9
    assert {each["devices"] for each in story.metrics} == {"0", "1"}
    assert all(each["accuracy"] > 0.8 for each in story.metrics), story.metrics


def test_first_of_each_framework_is_alone_and_then_they_share(story: Story) -> None:
    """No training overlaps the first one of its framework; later ones overlap on one device."""
    first: dict[str, dict[str, Any]] = {}
    for each in sorted(story.metrics, key=lambda each: float(each["started"])):
        probe = first.setdefault(each["framework"], each)
        assert each is probe or each["started"] >= probe["ended"]
    later = [each for each in story.metrics if each not in first.values()]
    shared = [
        (one, other)
        for one in later
        for other in later
        if one is not other
        and one["devices"] == other["devices"]
        and one["started"] <= other["started"] < one["ended"]
    ]
    assert shared


def test_the_second_run_does_nothing(story: Story) -> None:
    """All metrics are there, so each task is up to date."""
    second = story.output.partition("== everything is up to date\n")[2].partition("==")[0]
    assert len(re.findall(r"^-- train_", second, re.MULTILINE)) == story.trainings
    assert not re.search(r"^\.  ", second, re.MULTILINE)


def test_each_framework_is_a_type(story: Story) -> None:
    """One profile for each, of all its runs."""
    runs = {each["type"].rpartition("::")[2]: each["runs"] for each in story.profiles}
    assert runs == {f"train_{each['framework']}": SEEDS for each in story.metrics}


def test_top_showed_the_run(story: Story, screens: str) -> None:
    """Who watched it with `grn top` saw trainings share devices."""
    story.onlooker.keep("top-doit", screens)
    text = story.onlooker.text
    assert re.search(r"[2-9] leases", text)
    assert re.search(r"^[01] .*\w█.*free of 2G$", text, re.MULTILINE)
    assert "train_" in text


def test_readme_names_its_files() -> None:
    """Each file beside it is in its table."""
    with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    files = [name for name in os.listdir(FOLDER) if name.endswith((".py", ".sh"))]
    assert files
    assert all(f"`{name}`" in readme for name in files)
