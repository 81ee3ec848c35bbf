"""`grn events`: what happens, as lines for people and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.cli.events import line_of
from grn.rules.happenings import KEYS
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Grn = Callable[..., subprocess.CompletedProcess[str]]


def _a_lease(env: BrokerEnv) -> str:
    talker = env.talker()
    grant = talker.acquire("train.py", memory_mib=3000, label="night")
    talker.release(grant, exit_code=3)
    return str(grant["lease"])


@pytest.mark.usefixtures("broker")
def test_what_happened_so_far(env: BrokerEnv, grn: Grn):
    """Without --follow it ends, with a plain line for each event that is still known."""
    lease = _a_lease(env)
    done = grn("events")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["broker", "granted", "ended", "freed"]
    assert all(lease in line for line in lines[1:])
    assert "night (train.py), device 0, 3000 MiB booked" in lines[1]
    assert "failed (exit 3)" in lines[2]
    assert "\x1b" not in done.stdout


@pytest.mark.usefixtures("broker")
def test_as_json(env: BrokerEnv, grn: Grn):
    """One object a line; --since leaves out what is known already."""
    lease = _a_lease(env)
    done = grn("events", "--json", "--since", "2")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["ended", "freed"]
    assert [event["seq"] for event in events] == [3, 4]
    assert {event["lease"] for event in events} == {lease}
    done = grn("events", "--json", "--since", "4")
    assert (done.returncode, done.stdout) == (0, "")
    done = grn("events", "--json", "--since", "99")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["gap", "broker", "granted", "ended", "freed"]


def test_without_a_broker(env: BrokerEnv, grn: Grn):
    """It starts none, and says what would."""
    done = grn("events")
    assert done.returncode == 125
    assert "no broker at" in done.stderr
    assert not env.log()


def test_following_outlasts_the_broker(env: BrokerEnv):
    """Each line comes at once; after a broker's end the next one's events follow."""
    env.start()
    out = f"{env.folder}/events"
    with open(out, "wb") as file:
        argv = [sys.executable, "-m", "grn", "events", "--follow", "--json", "--since", "0"]
        follower = env.popen(argv, stdout=file, stderr=subprocess.PIPE)

    def events() -> list[dict[str, Any]]:
        with open(out, encoding="ascii") as lines:
            return [json.loads(line) for line in lines]

    eventually(lambda: [e["event"] for e in events()] == ["broker"], what="the start is told")
    first = _a_lease(env)
    eventually(lambda: events()[-1]["event"] == "freed", what="the lease is told of")
    env.stop()
    eventually(lambda: events()[-1].get("state") == "leaving", what="the end is told")
    env.start()
    eventually(lambda: events()[-1].get("state") == "started", what="the next one is told of")
    second = _a_lease(env)
    eventually(lambda: events()[-1].get("lease") == second, what="its lease is told of")
    follower.terminate()
    follower.wait(PATIENCE_S)
    assert first in {event.get("lease") for event in events()}


@pytest.mark.parametrize("name", KEYS)
def test_every_event_has_words(name: str):
    """With all that may be unknown left unknown, each is one line."""
    known: dict[str, Any] = {
        "type": "t", "label": "l", "devices": ["GPU-1"], "reason": "why", "message": "no",
        "waited_s": 1.0, "ran_s": 2.0, "pid": 7, "runs": 1, "state": "ok", "outcome": "failed",
        "index": 3, "device_model": "M", "uuid": "GPU-1",
    }  # fmt: skip
    event = {"event": name, "at": 0.0, **{key: known.get(key) for key in KEYS[name]}}
    line = line_of(event, {"GPU-1": "3"})
    assert line.split()[1] == name
    assert "\n" not in line
    assert "None" not in line


def test_an_event_of_a_newer_broker_is_shown_as_it_is():
    """Its name and its values, whatever they mean."""
    assert line_of({"event": "new", "at": 0.0, "seq": 3, "x": 1}, {}).endswith('{"x": 1}')
