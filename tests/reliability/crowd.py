"""Fifty client processes that ask, hold and give back, each keeping a log of its own.

`python -m tests.reliability.crowd CLIENTS FOLDER` runs until the file `FOLDER/stop` appears; the exit
status is the number of clients that did not end well. Times in the logs are of the machine's one
monotonic clock: a lease counts from its grant until just before it is given back, so what overlaps
in the logs overlapped in truth.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from grn.client import Client
from grn.settings import load

__all__ = ["Log", "overlaps", "read_logs"]

_SIZES_MIB = (1000, 2500, 4000, 5001, 9999, 10000)


def client(number: int, folder: str) -> None:
    """Ask and give back until it is time to stop; each step is in the log before the next."""
    rng = random.Random(number)  # noqa: S311 - sizes and pauses
    log = os.open(
        os.path.join(folder, f"log{number}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )

    def say(event: str, **more: Any) -> None:
        os.write(log, json.dumps({"t": time.monotonic(), "is": event, **more}).encode() + b"\n")

    with Client(load()) as own:
        while not os.path.exists(os.path.join(folder, "stop")):
            mib, gpus = rng.choice(_SIZES_MIB), rng.choice((1, 1, 1, 2))
            say("asks")
            lease = own.acquire("crowd", gpus=gpus, memory_mib=mib)
            uuids = [device["uuid"] for device in lease.devices]
            say("holds", lease=lease.id, uuids=uuids, mib=lease.memory_mib)
            time.sleep(rng.random() * 0.02)  # the work
            say("gives", lease=lease.id)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                lease.release()
            if said:
                say("unsure", lease=lease.id)
    say("leaves")


def main() -> int:
    """Be the parent of all clients; all that is imported is imported once."""
    count, folder = int(sys.argv[1]), sys.argv[2]
    children = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                client(number, folder)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a child of fork must never return
                traceback.print_exc()
                os._exit(1)
        children.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


@dataclass
class Log:
    """What one client says that happened."""

    held: list[tuple[float, float, str, tuple[str, ...], int]] = field(default_factory=list)
    """From, to, lease, devices, MiB on each."""
    asked: int = 0
    left: bool = False


def read_logs(folder: str) -> list[Log]:
    """Read what all clients wrote."""
    logs = []
    for name in sorted(x for x in os.listdir(folder) if x.startswith("log")):
        log, held = Log(), {}
        with open(os.path.join(folder, name), encoding="ascii") as file:
            for line in file:
                said = json.loads(line)
                if said["is"] == "holds":
                    held[said["lease"]] = said
                elif said["is"] == "gives":
                    was = held.pop(said["lease"])
                    uuids = tuple(was["uuids"])
                    log.held.append((was["t"], said["t"], was["lease"], uuids, was["mib"]))
                log.asked += said["is"] == "asks"
                log.left |= said["is"] == "leaves"
        assert not held, f"{name} ends while it holds {list(held)}"
        logs.append(log)
    return logs


def overlaps(logs: list[Log], capacity_mib: int) -> list[str]:
    """Say where clients held more than a device has, at any instant; a line swept over all grants."""
    edges: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for log in logs:
        for begin, end, lease, uuids, mib in log.held:
            for uuid in uuids:
                edges[uuid] += [(begin, mib, lease), (end, -mib, lease)]
    found = []
    for uuid, all_of_it in edges.items():
        held = 0
        for when, mib, lease in sorted(all_of_it):
            held += mib
            if held > capacity_mib:
                found.append(f"{held} MiB of {uuid} at {when:.6f}, when {lease} was granted")
    return found


if __name__ == "__main__":
    sys.exit(main())
