"""The history of a broker: one record for each lease, whatever becomes of the broker or its disk."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def path_of(env: BrokerEnv) -> str:
    """Where the history of an environment is."""
    return os.path.join(env.environ["GRN_STATE_DIR"], "history.sqlite")


def rows(env: BrokerEnv, query: str = "SELECT * FROM lease ORDER BY seq") -> list[dict[str, Any]]:
    """Read rows, as anybody may while the broker writes; none, while there is no file."""
    if not os.path.exists(path_of(env)):
        return []
    db = sqlite3.connect(f"file:{path_of(env)}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in db.execute(query)]
    except sqlite3.DatabaseError:  # it has no tables yet, or is none
        return []
    finally:
        db.close()


def record(env: BrokerEnv, lease: str, column: str = "freed_at") -> dict[str, Any]:
    """Wait until a lease's record tells this."""

    def found() -> list[dict[str, Any]]:
        return [row for row in rows(env) if row["id"] == lease and row[column] is not None]

    return eventually(found, what=f"{column} of {lease}: {rows(env)}")[0]


def test_a_lease_is_recorded_whole(new_env: NewEnv):
    """Who asked for what, where it ran, what it took, how it ended, and its curve."""
    env = new_env("sim:2x10000MiB")
    talker = env.talker()
    grant = talker.acquire("train", label="mine", engine="doit", priority=3, policy="pack")
    job = env.job(talker, grant, "--plan", "0:500MiB 1:2000MiB")
    job.wait_holding()
    eventually(lambda: talker.status()["leases"][0]["measured_mib"] == 2000, what="its peak")
    job.finish()
    talker.release(grant, exit_code=0, cpu_s=2.5, rss_mib=99)
    row = record(env, grant["lease"])
    assert (row["type"], row["label"], row["engine"]) == ("train", "mine", "doit")
    assert (row["policy"], row["priority"], row["gpus"]) == ("pack", 3, 1)
    assert row["devices"] == grant["devices"][0]["uuid"]
    assert (row["booked_mib"], row["probe"]) == (10000, 1)
    assert (row["pid"], row["uid"]) == (job.pid, os.getuid())
    assert (row["outcome"], row["exit_code"], row["signal"]) == ("ok", 0, None)
    assert (row["peak_mib"], row["source"]) == (2000, "sampled")
    assert (row["cpu_s"], row["rss_mib"]) == (2.5, 99)
    assert row["asked_at"] <= row["granted_at"] <= row["ended_at"] <= row["freed_at"]
    curve = json.loads(row["curve"])
    assert len(curve) == 11
    assert curve[-1] == 2000
    assert 500 in curve


def listed(env: BrokerEnv) -> list[dict[str, Any]]:
    """Return what `grn history` shows, the oldest first."""
    words = [sys.executable, "-m", "grn", "history", "--json"]
    done = subprocess.run(words, env=env.environ, capture_output=True, text=True, check=True)
    leases: list[dict[str, Any]] = json.loads(done.stdout)["leases"]
    return leases[::-1]


def test_what_has_just_happened_is_shown(new_env: NewEnv):
    """Nobody waits for the next time that the broker writes: it does so when it is asked."""
    env = new_env()
    talker = env.talker()
    for number in range(3):
        grant = talker.acquire(f"t{number}", memory_mib=100)
        assert [lease["type"] for lease in listed(env)][-1] == f"t{number}"
        assert listed(env)[-1]["outcome"] is None, "it runs"
        talker.release(grant)
        assert listed(env)[-1]["outcome"] == "ok"
    assert [lease["type"] for lease in listed(env)] == ["t0", "t1", "t2"]
    talkers = [env.talker() for _ in range(5)]
    held = talker.acquire("t3", memory_mib=100)
    for number, each in enumerate(talkers, 500):
        each.tell("record", id=number)
    talker.release(held)
    assert talker.call("record")["op"] == "recorded"
    assert [each.next(number)["op"] for number, each in enumerate(talkers, 500)] == ["recorded"] * 5
    assert [(row["type"], row["outcome"]) for row in rows(env)][-1] == ("t3", "ok")


def test_of_a_broker_that_hangs_what_it_wrote_is_shown(new_env: NewEnv):
    """It is not waited for, and the history is there all the same."""
    env = new_env()
    talker = env.talker()
    talker.release(talker.acquire("before", memory_mib=100))
    assert [lease["type"] for lease in listed(env)] == ["before"]
    os.kill(env.pid, signal.SIGSTOP)
    try:
        assert [lease["type"] for lease in listed(env)] == ["before"]
    finally:
        os.kill(env.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"exit_code": 3}, ("failed", 3, None)),
        ({"exit_code": None, "signal": 9}, ("killed", None, 9)),
        ({"exit_code": 1, "said_oom": True, "said": "memory"}, ("oom", 1, None)),
        ({"exit_code": None, "stopped": True}, ("cancelled", None, None)),
    ],
)
def test_ends_are_recorded(new_env: NewEnv, end: dict[str, Any], expected: tuple[Any, ...]):
    """The outcome as the broker found it, the exit code or the signal as the client told it."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire(memory_mib=100)
    talker.release(grant, **end)
    row = record(env, grant["lease"])
    assert (row["outcome"], row["exit_code"], row["signal"]) == expected
    assert row["curve"] is row["peak_mib"] is row["cpu_s"] is None


def test_an_end_that_nobody_saw(new_env: NewEnv):
    """A client that is killed leaves a record that is lost, not one that runs for ever."""
    env = new_env()
    client = env.remote()
    grant = client.acquire(memory_mib=100)
    client.kill()
    assert record(env, grant["lease"])["outcome"] == "lost"


def test_what_a_peak_is_known_from(new_env: NewEnv):
    """A peak that the job reported itself is recorded as such."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire(memory_mib=4000)
    assert talker.call("peak", lease=grant["lease"], mib=3333)["op"] == "noted"
    talker.release(grant)
    row = record(env, grant["lease"])
    assert (row["peak_mib"], row["source"]) == (3333, "in-process")


def test_a_lease_that_drains_is_freed_later(new_env: NewEnv):
    """Its end and the end of its booking are two times."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire(memory_mib=2000)
    job = env.job(talker, grant, "--memory", "1000MiB")
    job.wait_holding()
    talker.release(grant)
    row = record(env, grant["lease"], "ended_at")
    assert (row["outcome"], row["freed_at"]) == ("ok", None)
    job.finish()
    row = record(env, grant["lease"])
    assert row["freed_at"] > row["ended_at"]


def test_nothing_waits_to_be_written_when_the_broker_leaves(new_env: NewEnv):
    """What ended a moment before is recorded."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire(memory_mib=100)
    talker.release(grant)
    env.stop()
    (row,) = rows(env)
    assert (row["id"], row["outcome"]) == (grant["lease"], "ok")


def test_a_killed_broker_loses_no_record(new_env: NewEnv):
    """What it had no time to write, its successor writes from the journal: ends, and what runs on."""
    env = new_env("sim:2x10000MiB")
    talker = env.talker()
    over = talker.acquire("over", memory_mib=100)
    talker.release(over, exit_code=3)
    held = talker.acquire("held", memory_mib=100, label="mine", engine="run")
    env.restart()
    again = env.talker()
    assert again.call("adopt", leases=[held["lease"]])["leases"] == [held["lease"]]
    row = record(env, over["lease"], "outcome")
    assert (row["type"], row["outcome"], row["exit_code"]) == ("over", "failed", 3)
    assert abs(row["granted_at"] - time.time()) < 3600
    again.release(held)
    row = record(env, held["lease"])
    assert (row["type"], row["label"], row["engine"]) == ("held", "mine", "run")
    assert row["outcome"] == "ok"
    assert row["granted_at"] < row["ended_at"]
    assert len(rows(env)) == 2


def test_a_record_outlives_several_brokers(new_env: NewEnv):
    """Each completes what the one before had written, and overwrites nothing of it."""
    env = new_env("sim:1x10000MiB")
    client = env.remote()
    grant = client.acquire("held", memory_mib=4000)
    first = record(env, grant["lease"], "granted_at")
    for _ in range(2):
        env.restart()
    client.kill()
    row = record(env, grant["lease"])
    assert row["outcome"] == "lost"
    for column in ("asked_at", "granted_at", "waited_s", "booked_mib", "probe", "devices"):
        assert row[column] == first[column]


def test_a_damaged_history_stops_nobody(new_env: NewEnv):
    """A new one is begun, the old one set aside, and the status says so."""
    env = new_env(start=False)
    os.makedirs(os.path.dirname(path_of(env)), mode=0o700)
    with open(path_of(env), "wb") as file:
        file.write(b"no database at all, and longer than a header of one would be" * 20)
    env.start()
    talker = env.talker()
    grant = talker.acquire(memory_mib=100)
    talker.release(grant)
    record(env, grant["lease"])
    assert os.path.exists(f"{path_of(env)}.corrupt-1")
    assert any("was damaged" in warning for warning in talker.status()["warnings"])


def test_a_history_that_cannot_be_written_stops_nobody(new_env: NewEnv):
    """Grants go on, the status says what is wrong; when it heals, what happened meanwhile is there."""
    env = new_env(start=False)
    folder = env.environ["GRN_STATE_DIR"]
    os.makedirs(path_of(env), mode=0o700)  # a folder in the file's place
    env.start()
    talker = env.talker()

    def told() -> bool:
        talker.release(talker.acquire(memory_mib=100))
        return any("history" in warning for warning in talker.status()["warnings"])

    eventually(told, what="a warning")
    grant = talker.acquire(memory_mib=100)
    talker.release(grant)
    os.rmdir(path_of(env))
    assert record(env, grant["lease"])["outcome"] == "ok"
    eventually(lambda: not talker.status()["warnings"], what="it has healed")
    assert os.listdir(folder)
    assert len(env.log_lines("history-failed")) == 1
    assert len(env.log_lines("history-healed")) == 1


def test_no_history_is_kept_where_none_is_wanted(new_env: NewEnv):
    """With 0 days or 0 MiB there is no file."""
    env = new_env(history_days=0)
    talker = env.talker()
    talker.release(talker.acquire(memory_mib=100))
    env.stop()
    assert not os.path.exists(path_of(env))


def test_what_is_no_lease_is_recorded_too(new_env: NewEnv):
    """Refusals, devices, the broker's own start and end, and which devices there are."""
    env = new_env("sim:2x10000MiB")
    talker = env.talker()
    talker.final(talker.ask(memory_mib=20000))
    talker.acquire(memory_mib=100)
    env.lose(1)
    eventually(lambda: talker.status()["devices"][1]["state"] == "lost", what="it is lost")
    env.stop()
    events = [json.loads(row["data"]) for row in rows(env, "SELECT data FROM event ORDER BY seq")]
    assert [e["event"] for e in events] == ["broker", "refused", "device", "broker"]
    assert events[1]["code"] == "impossible"
    devices = rows(env, "SELECT * FROM device ORDER BY idx")
    assert [(d["idx"], d["total_mib"]) for d in devices] == [(0, 10000), (1, 10000)]


def test_minutes_of_use_and_of_loss_are_recorded(new_env: NewEnv):
    """What a probe's device held, and what of it others waited for."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("unknown")
    job = env.job(talker, grant, "--memory", "1000MiB")
    job.wait_holding()
    talker.next(talker.ask("next", memory_mib=100))
    eventually(lambda: talker.status()["leases"][0]["measured_mib"] == 1000, what="its memory")
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 1.0, what="it lasts a while")
    job.finish()
    env.stop()
    usage = rows(env, "SELECT * FROM usage")
    assert {row["uuid"] for row in usage} == {grant["devices"][0]["uuid"]}
    assert all(0 < row["booked_mib"] <= 10000 for row in usage)
    assert max(row["measured_mib"] for row in usage) > 0
    lost = rows(env, "SELECT * FROM lost")
    assert {row["cause"] for row in lost} == {"probe"}
    assert sum(row["mib_s"] for row in lost) > 9000 * 0.5


def test_commands_and_functions_tell_what_they_took(new_env: NewEnv):
    """`grn run` and a function in a process of its own tell processor time and resident memory."""
    env = new_env()
    burn = "x = bytearray(30 << 20)\nfor n in range(10 ** 6): n * n\n"
    run = env.popen(
        [sys.executable, "-m", "grn", "run", "--", sys.executable, "-c", burn],
        stdin=subprocess.DEVNULL, cwd=env.folder,
    )  # fmt: skip
    assert run.wait(2 * PATIENCE_S) == 0
    script = os.path.join(env.folder, "script.py")
    body = "".join(f"    {line}\n" for line in burn.splitlines())
    with open(script, "w", encoding="ascii") as file:
        file.write(f"import grn\n\n\n@grn.job\ndef burn():\n{body}\n\nburn()\n")
    assert env.popen([sys.executable, script], cwd=env.folder).wait(2 * PATIENCE_S) == 0
    env.stop()
    by_engine = {row["engine"]: row for row in rows(env)}
    assert set(by_engine) == {"run", "python"}
    for row in by_engine.values():
        assert row["cpu_s"] > 0
        assert row["rss_mib"] >= 30


def test_a_busy_broker_records_all(new_env: NewEnv):
    """Hundreds of short leases: each has its record, once, in the order of the grants."""
    env = new_env(debug="no")
    talker = env.talker()
    granted = []
    for _ in range(300):
        grant = talker.acquire(memory_mib=10)
        granted.append(grant["lease"])
        talker.release(grant)
    env.stop()
    found = rows(env)
    assert [row["id"] for row in found] == granted
    assert all(row["outcome"] == "ok" and row["freed_at"] for row in found)
