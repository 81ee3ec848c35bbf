"""Peaks that jobs report themselves, to a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def run(env: BrokerEnv, code: str, *options: str) -> str:
    """Run a Python job under `grn run`; return what it printed."""
    argv = [sys.executable, "-m", "grn", "run", "--type", "t", *options, "--"]
    done = subprocess.run(
        [*argv, sys.executable, "-c", f"import grn\n{code}"],
        env=env.environ,
        check=False,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_reported_peak_is_learnt(new_env: NewEnv) -> None:
    """A job too short to be seen is known by what it says, and books that the next time."""
    env = new_env()
    assert "True" in run(env, "print(grn.report_peak(3000))")
    talker = env.talker()
    (profile,) = talker.profiles()
    assert (profile["estimate_mib"], profile["source"]) == (3000, "in-process")
    assert talker.acquire("t")["memory_mib"] == 3000


def test_the_largest_report_counts(new_env: NewEnv) -> None:
    """A job may report as often as it likes, in any order."""
    env = new_env()
    run(env, "print([grn.report_peak(mib) for mib in (1000, 4000, 2000)])")
    assert env.talker().profiles()[0]["estimate_mib"] == 4000


def test_a_child_of_the_job_may_report(new_env: NewEnv) -> None:
    """What a worker of the job took counts as the job's."""
    env = new_env()
    child = "import grn; print(grn.report_peak(bytes=2000 << 20))"
    run(
        env,
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)",
    )
    assert env.talker().profiles()[0]["estimate_mib"] == 2000


def test_bytes_given_as_mib_are_refused_and_end_nothing(new_env: NewEnv) -> None:
    """A figure beyond the device is a warning with both numbers; the job goes on, nothing is learnt."""
    env = new_env()
    told = run(env, "print(grn.report_peak(3000 << 20))", "--memory", "1GiB")
    assert "False" in told
    assert "10000 MiB" in told
    assert not any(profile["runs"] for profile in env.talker().profiles())


def test_a_report_for_a_lease_of_somebody_else_is_refused(new_env: NewEnv) -> None:
    """Only processes of a lease may say what it took, whatever their message claims."""
    env = new_env()
    holder = env.remote()
    grant = holder.acquire("t")
    stranger = (
        "import os, warnings; warnings.simplefilter('error')\n"
        f"os.environ['GRN_LEASE'] = {grant['lease']!r}\n"
        "import grn; grn.report_peak(9000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", stranger],
        env=env.environ,
        check=False,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "RuntimeWarning" in done.stderr
    (lease,) = env.status()["leases"]
    assert lease["peak_mib"] is None


@pytest.mark.parametrize("mib", [-1, "3000", None, 1.5, True], ids=repr)
def test_a_figure_that_makes_no_sense_is_an_error_reply(new_env: NewEnv, mib: object) -> None:
    """A bad report harms nothing but itself."""
    talker = new_env().talker()
    grant = talker.acquire("t")
    assert talker.call("peak", lease=grant["lease"], mib=mib)["op"] == "error"
    assert talker.status()["leases"][0]["peak_mib"] is None


def test_a_report_for_a_lease_that_is_over_is_an_error_reply(new_env: NewEnv) -> None:
    """What is ended has been learnt already."""
    talker = new_env().talker()
    grant = talker.acquire("t")
    talker.release(grant)
    answer = talker.call("peak", lease=grant["lease"], mib=100)
    assert (answer["op"], answer["code"]) == ("error", "lease")


def test_a_report_is_shown_while_the_job_runs(new_env: NewEnv) -> None:
    """`status` has the figure with its source at once."""
    talker = new_env().talker()
    grant = talker.acquire("t")
    answer = talker.call("peak", lease=grant["lease"], mib=3000)
    assert answer["op"] == "noted"
    (lease,) = talker.status()["leases"]
    assert (lease["peak_mib"], lease["peak_source"]) == (3000, "in-process")
    assert json.dumps(lease)
