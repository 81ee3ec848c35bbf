"""A run of many tasks under an engine, whose broker is killed again and again on the way.

Each task keeps a log of its own, in the form of `crowd.py`, whose checker judges them: `python -S
fire.py FOLDER NAME` is the task as a command, `work` is it as a function.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

__all__ = ["DEVICES", "MIB", "TASKS", "command", "judge", "kill_brokers", "work"]

TASKS = 200
DEVICES, _CAPACITY_MIB = "sim:2x10000MiB", 10000
MIB = 2400
"""What a task asks for; four of them have room on a device."""

_KILLED_AFTER = (50, 100, 150)


def work(folder: str, name: str) -> None:
    """Do what a task does: note what it holds, until it does no more."""
    log = os.open(os.path.join(folder, f"log{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(event: str, **more: object) -> None:
        os.write(log, json.dumps({"t": time.monotonic(), "is": event, **more}).encode() + b"\n")

    lease, uuids = os.environ["GRN_LEASE"], os.environ["GRN_DEVICES"].split(",")
    say("holds", lease=lease, uuids=uuids, mib=int(os.environ["GRN_MEM_MIB"]))
    time.sleep(0.02)  # the work
    say("gives", lease=lease)
    say("leaves")
    os.close(log)


def command(folder: object, name: str) -> str:
    """Return the task as a line for a shell."""
    return f"{sys.executable} -S {os.path.abspath(__file__)} {folder} {name}"


def kill_brokers(env: BrokerEnv, folder: str, goes_on: Callable[[], bool]) -> int:
    """Kill the broker and start another, three times on the way; return how often that was done."""
    from tests.env import PATIENCE_S, eventually

    kills = 0
    for count in _KILLED_AFTER:
        eventually(
            lambda count=count: len(os.listdir(folder)) >= count or not goes_on(), 8 * PATIENCE_S
        )
        if not goes_on():
            break
        env.restart()
        kills += 1
    return kills


def judge(env: BrokerEnv, folder: str, tasks: int = TASKS) -> None:
    """Judge a run that has ended: every task done once, no MiB given twice, nothing left booked."""
    from tests.env import eventually
    from tests.reliability.crowd import overlaps, read_logs

    logs = read_logs(folder)
    assert len(logs) == tasks
    assert {len(log.held) for log in logs} == {1}, "a task was done twice, or not to its end"
    assert all(log.left for log in logs)
    assert len({lease for log in logs for _, _, lease, _, _ in log.held}) == tasks
    assert overlaps(logs, _CAPACITY_MIB) == []
    eventually(lambda: env.status()["leases"] == [] and env.status()["waiters"] == [])


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2])
