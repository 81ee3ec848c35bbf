"""The shell example, run as its README says, with a broker of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from grn.client import Client
from grn.errors import BrokerUnavailable
from grn.settings import load
from tests.browser import screens_in
from tests.examples.lookon import Browsing, Seen
from tests.examples.onlooker import Onlooker
from tests.installed import installed_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

installed_or_skip("sklearn", "examples")

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "examples", "shell")
SAMPLE_S = 0.05
GLANCE_EVERY = 10
TIME_LIMIT_S = 240


class Story(NamedTuple):
    """What one run of the example left: its output, what the books showed on the way, profiles."""

    exit_status: int
    output: str
    leases_seen: list[list[dict[str, Any]]]
    profiles: list[dict[str, Any]]
    seen: Seen
    terminal: Onlooker


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment with a broker and profiles of its own."""
    folder.chmod(0o700)
    left_out = ("GRN_", "CUDA_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return env | {
        "GRN_SOCKET": str(folder / "grn.sock"),
        "GRN_STATE_DIR": str(folder / "state"),
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]]),
    }


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Run the example once; look at the broker's books all the while."""
    folder = tmp_path_factory.mktemp("shell", numbered=True)
    env = _environment(folder)
    settings = load({}, env)
    with ExitStack() as stack:
        browsing = stack.enter_context(Browsing(env, screens_in(folder), "shell"))
        with open(folder / "output", "wb") as output:
            run = subprocess.Popen(
                ["sh", os.path.join(FOLDER, "run.sh")],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        stack.callback(_end, run, env)
        with Onlooker(env, settings) as terminal:
            leases_seen = list(_watch(run, settings, browsing))
        with Client(settings) as client:
            profiles = client.profiles("list")
        browsing.report(ended=12)
        output_text = (folder / "output").read_text()
        assert browsing.seen is not None
        seen = browsing.seen
    return Story(run.returncode, output_text, leases_seen, profiles, seen, terminal)


def _end(run: subprocess.Popen[bytes], env: dict[str, str]) -> None:
    run.kill()
    subprocess.run(["grn", "broker", "stop"], env=env, check=False, timeout=30)


def _watch(
    run: subprocess.Popen[bytes], settings: Any, browsing: Browsing
) -> Iterator[list[dict[str, Any]]]:
    """Yield the leases at short intervals until the example has ended."""
    for turn in range(int(TIME_LIMIT_S / SAMPLE_S)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(SAMPLE_S)
            return
        with contextlib.suppress(BrokerUnavailable), Client(settings, start=False) as client:
            yield client.status()["leases"]
        if turn % GLANCE_EVERY == 0:
            browsing.glance()
    pytest.fail(f"the example has not ended after {TIME_LIMIT_S} s")


def test_every_training_succeeds(story: Story) -> None:
    """All twelve trainings end with exit code 0 and print their accuracy."""
    assert story.exit_status == 0, story.output
    assert story.output.count("accuracy 0.9") == 12


def test_trainings_run_together(story: Story) -> None:
    """At some moment at least two trainings held a lease, on one device."""
    together = [
        leases
        for leases in story.leases_seen
        if len(leases) > len({uuid for lease in leases for uuid in lease["devices"]})
    ]
    assert together


def test_first_of_each_type_is_alone(story: Story) -> None:
    """A training whose need is unknown shares its device with nobody."""
    probed = set()
    for leases in story.leases_seen:
        holders = defaultdict(list)
        for lease in leases:
            for uuid in lease["devices"]:
                holders[uuid].append(lease)
        for probe in (lease for lease in leases if lease["state"] == "probe"):
            probed.add(probe["type"])
            assert all(holders[uuid] == [probe] for uuid in probe["devices"])
    assert len(probed) == 3


def test_each_type_is_learnt(story: Story) -> None:
    """Three types are known in the end, four runs each, and the kernel machine is the largest."""
    peaks = {profile["type"].split()[1]: profile["peak_mib"] for profile in story.profiles}
    assert set(peaks) == {"train_forest.py", "train_mlp.py", "train_svm.py"}
    assert [profile["runs"] for profile in story.profiles] == [4, 4, 4]
    assert peaks["train_forest.py"] < peaks["train_mlp.py"] < peaks["train_svm.py"]


def test_pages_show_what_ran(story: Story) -> None:
    """The live page and the report draw each lease, several at once, and the browser has no complaint."""
    seen = story.seen
    if seen.why_not:
        pytest.skip(seen.why_not)
    held = {lease["id"] for leases in story.leases_seen for lease in leases}
    assert len(seen.report_ids) == 12
    assert held <= seen.report_ids
    assert seen.live_ids == seen.report_ids
    assert seen.together >= 2
    assert seen.complaints == []


def test_top_showed_the_run(story: Story, screens: str) -> None:
    """Who watched it with `grn top` saw trainings share devices, and the others wait with reasons."""
    story.terminal.keep("top-shell", screens)
    text = story.terminal.text
    assert re.search(r"[2-9] leases", text)
    assert re.search(r"^[01] .*\w█.*free of 2G$", text, re.MULTILINE)
    assert "waiting" in text
    assert "wanted" in text
    assert "\n── ended" in text


def test_each_form_does_what_it_says(tmp_path: Path) -> None:
    """Jobs run, types are learnt once, a lighter run stands for its type, masks are narrowed."""
    env = _environment(tmp_path)
    script = os.path.join(FOLDER, "forms.sh")
    done = subprocess.run(
        ["sh", script], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    with contextlib.suppress(BrokerUnavailable), Client(load({}, env)) as client:
        runs = {profile["type"]: profile["runs"] for profile in client.profiles()}
        client.stop()
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert said.count("accuracy 0.") == 7
    assert 'mask 1\nmask ""\n' in said
    assert runs["forest"] == 2
    assert runs["python train_forest.py --trees 2 --rows 2000"] == 5
