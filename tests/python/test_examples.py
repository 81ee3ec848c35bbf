"""The Python examples, each run as its README says, with a broker of its own."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

FOLDER = os.path.join(ROOT, "examples", "python")


@pytest.fixture
def example(scripts: Callable[..., Scripts]) -> Callable[..., str]:
    """Return a function that runs an example and returns what it printed."""
    made = scripts("sim:2x2GiB,meter=rss")

    def run(name: str, *words: str) -> str:
        out = made.python(os.path.join(FOLDER, f"{name}.py"), *words).stdout
        assert not made.env.status()["leases"]
        return out

    return run


def booked(out: str) -> list[int]:
    """Return the sizes that a program printed."""
    return [int(size) for size in re.findall(r"(\d+) MiB booked", out)]


def test_job(example: Callable[..., str]) -> None:
    """The first call has a device to itself, the others share two at what was learnt."""
    sizes = booked(example("job"))
    assert sizes[0] == 2048
    assert len(sizes) == 5
    assert all(200 < size < 1000 for size in sizes[1:])


def test_job_type(example: Callable[..., str]) -> None:
    """Each size is measured once; the second seed is booked at what was learnt of its size."""
    first, small, second, large = booked(example("job_type"))
    assert first == second == 2048
    assert 100 < small < large < 1000


def test_policy(example: Callable[..., str]) -> None:
    """Spread takes two devices, pack one."""
    assert example("policy").splitlines() == ["spread: 0 1", "pack: 0 0"]


def test_profiling(example: Callable[..., str]) -> None:
    """It is measured once, before the first training, which is then booked at what was learnt."""
    lines = example("profiling").splitlines()
    words = [line.split(",")[0].split(":")[0] for line in lines]
    assert words == ["measuring", "training", "rate 0.5", "training", "rate 0.6"]
    assert all(size < 1000 for size in booked("\n".join(lines)))


def test_devices(example: Callable[..., str]) -> None:
    """Masks are obeyed."""
    assert example("devices").splitlines() == [
        "with a mask of 1: 1",
        "with gpus=0: ''",
        "a lease of two: 0,1",
    ]


def test_study(example: Callable[..., str]) -> None:
    """All trials run, and those that fail are counted."""
    out = example("study", "--trials", "16")
    found = re.fullmatch(r"16 trials, (\d+) failed; best rate [\d.]+, loss 0\.01\d+\n", out)
    assert found, out
    assert 0 < int(found[1]) < 16


def test_the_readme_names_every_file() -> None:
    """What lies beside it is described in it."""
    with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    files = [name for name in os.listdir(FOLDER) if name.endswith((".py", ".sh"))]
    assert all(f"`{name}`" in readme for name in files)
