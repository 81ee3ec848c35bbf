"""Random days of a broker on a simulated machine, judged by an oracle of their own.

See `tests/reliability/__main__.py` for a million of them by one command.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.env import ROOT
from tests.reliability import planted
from tests.reliability.oracle import BrokenPromise
from tests.reliability.shrink import shrunk
from tests.reliability.simulation import Day, numbers
from tests.reliability.sweep import EVENTS, replay_command, sweep_aside, why_it_fails

SEEDS = int(os.environ.get("GRN_TEST_SEEDS", "10000"))
PARTS = 40


@pytest.mark.busy
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken(part: int) -> None:
    """Whatever dies, tears, lies or comes late: nothing is given twice, lost, or left waiting."""
    size = SEEDS // PARTS
    result = sweep_aside(range(part * size, (part + 1) * size))
    said = [f"{why}\n  {replay_command(seed, EVENTS)}" for seed, why in result.failed.items()]
    assert not said, "\n".join(said[:5])
    assert result.grants > 5 * result.seeds
    assert result.deaths > result.seeds


@pytest.mark.parametrize("bug", planted.BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """Each of the bugs that are planted on purpose breaks a promise in one of the first days."""
    found = planted.caught(bug)
    assert found is not None
    assert why_it_fails(numbers(found[0], EVENTS)) is None, "it is found without the bug, too"


_CHECKSUMS = """
from tests.reliability.simulation import Day, numbers
for seed in range(6):
    day = Day(numbers(seed, 500))
    day.run()
    print(day.trace, day.oracle.grants, day.deaths)
"""


def test_a_seed_is_the_same_day_everywhere() -> None:
    """The order of sets, which differs between processes, decides nothing: a seed replays exactly."""
    said = [
        subprocess.run(
            [sys.executable, "-c", _CHECKSUMS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ROOT},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(set(said[0].splitlines())) == 6


def test_a_failing_day_shrinks_to_what_matters() -> None:
    """Of five hundred events those are left without which the promise would hold."""
    with planted.planted("acknowledge-before-write"):
        found = planted.caught("acknowledge-before-write")
        assert found is not None
        story = numbers(found[0], EVENTS)
        short = shrunk(story, lambda part: isinstance(why_it_fails(part), BrokenPromise))
        assert len(short) < 40
        assert isinstance(why_it_fails(short), BrokenPromise)
    assert why_it_fails(short) is None


def test_a_day_can_be_told() -> None:
    """Each event leaves a line, so that a failing day can be read."""
    lines: list[str] = []
    Day(numbers(1, 50), lines.append).run()
    assert len(lines) >= 50
