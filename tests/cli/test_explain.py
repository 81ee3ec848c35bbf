"""`grn explain`: as text, as JSON, with and without a broker."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from grn.cli.whytext import lines
from grn.rules.expected import forecasts
from grn.rules.explaining import explain
from tests.rules.acting import MODEL, Stage

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A device with two jobs on it, one of them of a known type, and two that wait."""
    monkeypatch.setenv("COLUMNS", "80")
    stage = Stage(10000)
    for ran_s in (90, 100, 120):
        stage.profiles.of("python train.py", MODEL).succeeded(4000, ran_s, "sampled", at=1.0)
    stage.ask("python train.py", label="sweep")
    stage.ask("mystery", memory_mib=5000, label="odd\x1b[31m")
    stage.ask("python train.py", label="after", cpus=2, priority=3)
    stage.ask("python train.py", label="last")
    stage.now = 40.0
    return stage


def text(stage: Stage, subject: str, **more: Any) -> str:
    """Explain something, and see that it fits."""
    expected = forecasts(stage.machine, stage.now)
    told = lines(explain(stage.machine, subject, stage.now, expected=expected, **more))
    assert max(map(len, told)) <= 80
    return "\n".join(told)


KNOWN = """\
Known of type python train.py on Simulated (settled):
  next run books: 4000 MiB (the largest of the last 3 peaks (at most 20 count),
    4000 MiB, and a margin of 0 MiB)
  peaks: 4000 MiB
  largest peak: 4000 MiB, sampled: the most that was seen; it may have held more
    between two looks
  measured runs: 3
  took: 90 s to 2 min, median 2 min
  ends: 3 ok"""


def test_a_job_that_waits(stage: Stage) -> None:
    """All that matters to it, in words and numbers; nothing in a name reaches the terminal."""
    assert text(stage, "after") == (
        """\
Request 5 (after) waits, 40 s so far.
  why: 4000 MiB on 1 device wanted; device 0: 1000 MiB free of 10000, 2 leased
  asks for: 1 device, as much memory as was learnt, 2 CPUs, priority 3
  takes: 4000 MiB (the largest of the last 3 peaks (at most 20 count), 4000 MiB,
    and a margin of 0 MiB)
  it is the head of the queue: what becomes free is kept for it
  expected start: in about 60 s on device 0

Devices:
  device 0 (Simulated): 3000 MiB too little: 4000 MiB wanted, 1000 free of 10000
    5000 MiB by lease t-2 (odd\\x1b[31m), no known end
    4000 MiB by lease t-1 (sweep), ends in about 60 s

What would let it start:
  on device 0: lease t-1 (sweep) must end, in about 60 s

"""
        + KNOWN
    )


def test_a_job_behind_others(stage: Stage) -> None:
    """How many wait before it, and that nobody knows when, where nobody does."""
    told = text(stage, "last")
    assert "\n  1 job waits before it\n" in told
    assert "\n  expected start: in about 3 min on device 0\n" in told
    assert "  expected start: not known\n" in text(stage, str(stage.ask("new").request.ticket))


def test_a_job_that_runs(stage: Stage) -> None:
    """Where, with how much, how long it will go on, and who is beside it."""
    assert text(stage, "t-1") == (
        """\
Lease t-1 (sweep) runs.
  granted 40 s ago to process 10001
  expected to end in about 60 s, as runs of its type do
  on device 0: 4000 MiB booked, 0 MiB held now

Beside it:
  device 0: 1000 MiB free of 10000
    5000 MiB by lease t-2 (odd\\x1b[31m), no known end

"""
        + KNOWN
    )
    assert "when it will end is not known" in text(stage, "t-2")
    stage.now = 130.0
    assert "it has run longer than any run of its type did" in text(stage, "t-1")


def test_a_job_that_has_ended(stage: Stage) -> None:
    """How, after how long, and what it took."""
    ended = {
        "lease": "t-9",
        "label": "gone",
        "type": "python train.py",
        "outcome": "failed",
        "exit_code": 3,
        "signal": None,
        "waited_s": 2.5,
        "ran_s": 31.2,
        "devices": ["GPU-0000"],
        "booked_mib": 4000,
        "peak_mib": 3900,
        "source": "sampled",
    }
    assert text(stage, "t-9", ended=[ended]).startswith(
        """\
Lease t-9 (gone) has ended: failed, exit code 3.
  waited 2.5 s, ran 31 s
  4000 MiB booked, peak 3900 MiB (sampled)
"""
    )


def test_a_new_type(stage: Stage) -> None:
    """What would happen with it: it would be measured alone."""
    stage = Stage(10000)
    assert (
        text(stage, "new")
        == """\
Type new: 0 running, 0 waiting.
A job of it that is asked for now: it would start at once on device 0, alone, to
  be measured.
  takes: a device alone (no run is known, so the first one is measured alone on
    a device)

Devices:
  device 0 (Simulated): fits: nobody is on it, and all of its 10000 MiB would be
    the job's own

Nothing is known of type new.
  Its first run gets a device alone and is measured; others of it wait until
    that has ended, or its memory has settled, and then share devices by what it
    took."""
    )


def test_devices_of_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes on each is told apart."""
    monkeypatch.setenv("COLUMNS", "80")
    stage = Stage(10000, 10000, models=["fast", "slow"])
    stage.profiles.of("job", "fast").succeeded(1000, 1.0, "sampled")
    told = text(stage, "job")
    assert "  takes on fast: 1000 MiB (the one peak that was measured" in told
    assert "  takes on slow: 1100 MiB (1.1 times the estimate of another model (fast))" in told


def test_a_type_that_can_never_run(stage: Stage) -> None:
    """The refusal, at once."""
    told = text(stage, "new", gpus=3)
    assert "A job of it on 3 devices would be refused: 3 devices asked" in told


# -- the command ----------------------------------------------------------------------------------


def test_with_a_broker(env: BrokerEnv, broker: int, grn: Run) -> None:
    """By lease, ticket, label and type; `--json` is the broker's own object."""
    del broker
    talker = env.talker()
    talker.know("train", 8000)
    held = talker.acquire("train", label="one", gpus=2)
    talker.ask("train", label="two")
    assert "Lease " + held["lease"] in grn("explain", held["lease"]).stdout
    told = json.loads(grn("explain", "two", "--json").stdout)
    assert (told["schema"], told["kind"], told["type"]) == (1, "waiting", "train")
    assert told["reason"] == env.status()["waiters"][0]["reason"]
    by_ticket = grn("explain", str(told["ticket"])).stdout
    assert f"lease {held['lease']} (one) must end, nobody knows when" in by_ticket
    assert "as it was set by hand" in by_ticket
    assert "Type train: 1 running, 1 waiting." in grn("explain", "tra").stdout


def test_a_misspelt_type(env: BrokerEnv, broker: int, grn: Run) -> None:
    """What looks like it is named; a broker that was just started looks into its store."""
    del broker
    env.talker().know("python train.py", 8000)
    env.restart()
    said = " ".join(grn("explain", "python trian.py").stdout.split())
    assert "did you mean python train.py?" in said
    assert "Known of type python train.py" in grn("explain", "train").stdout
    assert "as a type it is new" in grn("explain", "zzz").stdout


def test_several_are_meant(env: BrokerEnv, broker: int, grn: Run) -> None:
    """It is a usage error, and says between what to choose; the broker lives on."""
    talker = env.talker()
    talker.acquire("a", label="same", memory_mib=10)
    talker.acquire("b", label="same", memory_mib=10)
    done = grn("explain", "same")
    assert done.returncode == 2
    assert "'same' is the name of 2 jobs (lease " in done.stderr
    assert grn("explain", "999").returncode == 2
    assert env.status()["broker"]["pid"] == broker


def test_without_a_broker(env: BrokerEnv, broker: int, grn: Run) -> None:
    """What was learnt is told, and none is started."""
    del broker
    env.talker().know("train", 8000)
    env.stop()
    told = grn("explain", "trai").stdout
    assert told.startswith("Type train: no broker runs, so nothing runs or waits.\n")
    assert "next run books: 8000 MiB (as it was set by hand" in told
    assert json.loads(grn("explain", "train", "--json").stdout)["broker"] is None
    assert grn("explain", "17").returncode == 2
    assert env.broker is None


def test_a_job_that_ended_lately(env: BrokerEnv, broker: int, grn: Run) -> None:
    """It is found by its id for a while."""
    del broker
    talker = env.talker()
    grant = talker.acquire("job", memory_mib=10)
    talker.release(grant, exit_code=3)
    told = grn("explain", grant["lease"]).stdout
    assert f"Lease {grant['lease']} (job) has ended: failed, exit code 3.\n" in told
    assert "failed in a row: 1\n" in told


def test_what_is_no_subject(env: BrokerEnv, broker: int) -> None:
    """The client's mistake is told to it, and its connection lives."""
    del broker
    talker = env.talker()
    for fields in ({}, {"subject": ""}, {"subject": 3}, {"subject": "x", "gpus": -1}):
        assert talker.call("explain", **fields)["op"] == "error"
    assert talker.call("explain", subject="x")["op"] == "explained"


def test_the_page_tells_of_each_key() -> None:
    """What `docs/explain.md` promises of the JSON is there."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(root, "docs", "explain.md"), encoding="utf-8") as file:
        page = file.read()
    promised = set(re.findall(r"`(\w+)`", page.partition("| key | what |")[2]))
    stage = Stage(10000)
    stage.profiles.of("job", MODEL).succeeded(8000, 5.0, "sampled")
    stage.ask("job")
    waits = str(stage.ask("job").request.ticket)
    ended = {"lease": "t-9", "label": "gone", "type": "job"}
    told = [
        explain(stage.machine, subject, 0.0, expected=forecasts(stage.machine, 0.0), ended=[ended])
        for subject in (waits, "t-1", "gone", "job")
    ]
    found: set[str] = set()
    for each in told:
        found |= set(each) | {each["kind"]}
        for device in each.get("devices", ()):
            found |= set(device)
            found |= {key for lease in device["held_by"] for key in lease}
        found |= {key for known in each["known"] for key in known}
    assert promised <= found
