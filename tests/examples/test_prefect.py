"""The Prefect example, run as its README says, with a broker of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT, BrokerEnv
from tests.installed import installed_or_skip
from tests.prefect.serving import PrefectServer, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

installed_or_skip("prefect", "prefect")
installed_or_skip("sklearn", "examples")

pytestmark = pytest.mark.xdist_group("prefect")

FOLDER = os.path.join(ROOT, "examples", "prefect")
TIME_LIMIT_S = 280


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """Return the Prefect server of this session."""
    with shared(lambda: str(tmp_path_factory.mktemp("prefect"))) as running:
        yield running


@pytest.fixture
def environ(new_env: Callable[..., BrokerEnv], server: PrefectServer) -> dict[str, str]:
    """Return the environment of a shell, with a broker and devices as the example has them."""
    env = new_env("sim:2x2GiB,meter=rss")
    path = os.pathsep.join([os.path.dirname(sys.executable), env.environ["PATH"]])
    return {**env.environ, **server.environ, "PATH": path}


def run(argv: list[str], environ: dict[str, str]) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(
        argv, env=environ, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_flow(environ: dict[str, str], tmp_path: Path) -> None:
    """Eight trainings share two devices; one is the best; the figure has them all; one type is learnt."""
    figure = str(tmp_path / "digits.svg")
    words = ["--rows", "3000", "--epochs", "3", "--figure", figure]
    said = run(["sh", os.path.join(FOLDER, "run.sh"), *words], environ)
    lines = re.findall(r"^(\d+ neurons, rate [\d.]+) +(0\.\d+)  on device (\d)", said, re.MULTILINE)
    assert len(lines) == 8
    assert {device for _, _, device in lines} == {"0", "1"}
    best = max(lines, key=lambda line: float(line[1]))
    assert float(best[1]) > 0.5
    assert re.search(r"^best: \d+ neurons", said, re.MULTILINE)
    assert re.search(r"MiB +8  settled  sampled  Simulated 2 GiB\n.*train\.py::fit", said)
    curves = list(ET.parse(figure).iter("{http://www.w3.org/2000/svg}polyline"))  # noqa: S314 - ours
    assert len(curves) == 8


@pytest.mark.parametrize("words", [[], ["--flow"]])
def test_several_hosts(environ: dict[str, str], words: list[str]) -> None:
    """Calls spread over the devices of both hosts, by plain futures and by a flow."""
    pytest.importorskip("distributed")
    if words:
        pytest.importorskip("prefect_dask")
    said = run([sys.executable, os.path.join(FOLDER, "hosts.py"), *words], environ)
    found = re.findall(r"^host (\d), device (\d): (\d)$", said, re.MULTILINE)
    assert {host for host, _, _ in found} == {"0", "1"}
    assert sum(int(count) for _, _, count in found) == 8


def test_the_readme_names_every_file() -> None:
    """What lies beside it is described in it."""
    with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    files = [name for name in os.listdir(FOLDER) if name.endswith((".py", ".sh"))]
    assert all(f"`{name}`" in readme for name in files)
