"""What the documents say to type is what is run and tested."""

from __future__ import annotations

import os
import re

from tests.reliability import planted

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEST_COMMAND = (
    "python3 -m venv --upgrade-deps .venv && .venv/bin/pip install -q -e '.[test]'"
    " && .venv/bin/pytest -q"
)


def text_of(*path: str) -> str:
    """Return a file of the project."""
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def test_one_test_command_everywhere() -> None:
    """README, CONTRIBUTING and the checks name the same test command."""
    for path in (["README.md"], ["CONTRIBUTING.md"], [".ci", "run"]):
        assert TEST_COMMAND in text_of(*path).splitlines(), path


def test_readme_has_a_readable_length() -> None:
    """The README stays between 150 and 260 lines."""
    assert 150 <= len(text_of("README.md").splitlines()) <= 260


def test_readme_counts_what_the_tests_count() -> None:
    """The sizes of its table are those that the tests have unless told otherwise."""
    readme = text_of("README.md")
    for size, where, words in (
        (10000, ("reliability", "test_simulation.py"), "{:,} simulated days"),
        (500, ("reliability", "sweep.py"), "of {} events"),
        (100, ("reliability", "test_kills.py"), "{} brokers killed"),
        (50, ("reliability", "test_kills.py"), "under {} clients"),
        (200, ("reliability", "fire.py"), "{} tasks each of doit, Snakemake and Prefect"),
        (1000000, ("reliability", "test_wire_fuzz.py"), "{:,} malformed frames"),
        (500, ("reliability", "test_hostile_crowd.py"), "{} bad connections"),
    ):
        assert words.format(size) in readme
        assert re.search(rf"^[A-Z]+ = .*\b{size}\b", text_of("tests", *where), re.MULTILINE), where
    assert f"{len(planted.BUGS)} planted bugs" in readme


def test_example_readme_names_its_files() -> None:
    """The example's README names every file beside it."""
    readme = text_of("examples", "shell", "README.md")
    files = os.listdir(os.path.join(ROOT, "examples", "shell"))
    named = [f for f in files if f.endswith((".py", ".sh", ".txt"))]
    assert named
    assert all(f"`{name}`" in readme for name in named)
