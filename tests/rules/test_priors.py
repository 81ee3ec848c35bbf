"""A type of which nothing is known goes by similar ones, where the settings allow it."""

from __future__ import annotations

import pytest

from grn.rules.model import End
from grn.rules.priors import stem
from tests.rules.acting import MODEL, Stage

KNOWN = "python train.py --lr 0.1"
NEW = "python train.py --lr 0.3"


def _stage(*, lends: bool = True) -> Stage:
    stage = Stage(16000)
    stage.profiles.lends = lends
    stage.know(KNOWN, 2000)
    return stage


@pytest.mark.parametrize(
    ("job_type", "common"),
    [
        ("python train.py --lr 0.1", "python train.py"),
        ("python train.py", "python train.py"),
        ("python -m pkg.train x", "python -m pkg.train"),
        ("python -m", None),
        ("/a/b.py::train batch=4", "/a/b.py::train"),
        ("/a/Snakefile::train n=2", "/a/Snakefile::train"),
        ("./program", None),
        ("./program --fast", None),
        ("", None),
    ],
)
def test_what_similar_types_have_in_common(job_type: str, common: str | None) -> None:
    """The program and its script, or the function, without what may differ."""
    assert stem(job_type) == common


def test_an_unknown_type_shares_by_what_its_program_needs() -> None:
    """Booked by the largest estimate of the others, and half of it on top; no probe."""
    stage = _stage()
    stage.know("python train.py --lr 0.2", 3000)
    stage.know("python other.py", 9000)
    first, second = stage.ask(NEW), stage.ask(NEW)
    assert [job.booked_mib for job in (first, second)] == [4500, 4500]
    assert first.at == second.at == (0,)
    stage.hold(first, 1000)
    stage.finish(first)
    assert stage.estimate(NEW) == 1000


def test_nothing_is_lent_unless_it_is_allowed() -> None:
    """By default the first run of each type is alone."""
    stage = _stage(lends=False)
    assert stage.ask(NEW).booked_mib == 16000


def test_a_run_that_failed_is_measured_alone_the_next_time() -> None:
    """A guess that was too small is not repeated."""
    stage = _stage()
    first = stage.ask(NEW)
    assert first.booked_mib == 3000
    stage.hold(first, 3000)
    stage.finish(first, End(exit_code=1, said_oom=True))
    assert stage.ask(NEW).booked_mib == 16000


def test_who_waits_for_a_probe_shares_as_soon_as_a_similar_type_is_known() -> None:
    """What one type has just taught counts for the others that wait."""
    stage = Stage(16000)
    stage.profiles.lends = True
    probe = stage.ask(KNOWN)
    waits = [stage.ask(f"python train.py --lr {n}") for n in range(2)]
    assert all(job.waits for job in waits)
    stage.hold(probe, 2000)
    stage.finish(probe)
    assert [job.booked_mib for job in waits] == [3000, 3000]


def test_what_would_fill_a_device_is_measured_alone() -> None:
    """A prior larger than the smallest device is no reason to wait for a larger one."""
    stage = Stage(4000)
    stage.profiles.lends = True
    stage.profiles.of(KNOWN, MODEL).succeeded(3000, 1.0, "sampled")
    assert stage.ask(NEW).booked_mib == 4000
