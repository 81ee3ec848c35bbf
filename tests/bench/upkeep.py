"""What the broker costs while it works for nobody, and while it watches one running job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["cpu_s", "measure", "rss_mib"]

_LEASES = 1000
_SETTLE_S = 2.5


def measure(*, quick: bool) -> list[Figure]:
    """Measure one broker after a thousand leases."""
    idle_s, watched_s = (2.0, 3.0) if quick else (5.0, 10.0)
    with stage.broker() as broker:
        client = broker.client()
        for number in range(_LEASES):
            client.acquire(f"type {number}", memory_mib=1024).release()
        figures = [_wakeups(broker, idle_s, "one client connected")]
        client.close()
        figures.append(_wakeups(broker, idle_s, "no client"))
        figures += [_watched(broker, watched_s), _resident(broker)]
    return figures


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pids: Iterable[int]) -> float:
    """Return the seconds that processes have run, to the nanosecond, all threads."""
    total = 0
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    return total / 1e9


def _resident(broker: stage.Stage) -> Figure:
    return Figure(
        "broker", f"resident after {_LEASES:,} leases", rss_mib(broker.process.pid), "MiB", 40
    )


def _wakeups(broker: stage.Stage, seconds: float, who: str) -> Figure:
    time.sleep(_SETTLE_S)  # what was learnt is kept a moment after the last lease
    before = _switches(broker.process.pid)
    time.sleep(seconds)
    woken = _switches(broker.process.pid) - before
    return Figure(
        "broker", f"wake-ups in {seconds:g} s, nothing leased, {who}", woken, "", 1, "0 is none"
    )


def _switches(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        line = next(line for line in file if line.startswith("voluntary_ctxt_switches"))
    return int(line.split()[1])


def _watched(broker: stage.Stage, seconds: float) -> Figure:
    """Let a job of a known type run, and count what broker and supervisor spend meanwhile."""
    with broker.client() as client:
        client.profiles("set", type="known", memory_mib=2048)
    job = [sys.executable, "-m", "grn.testing.job", "--memory", "2GiB"]
    words = [*stage.grn_command(), "run", "--type", "known", "--", *job]
    with subprocess.Popen(
        [*words, "--seconds", f"{seconds + 3 * _SETTLE_S + 2}"],
        env=broker.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as supervisor:
        time.sleep(3 * _SETTLE_S)
        pids = (broker.process.pid, supervisor.pid)
        if supervisor.poll() is not None:
            return Figure("broker", "watching a job", None, "%", 0.5, note="grn run ended at once")
        before = cpu_s(pids)
        time.sleep(seconds)
        spent = 100 * (cpu_s(pids) - before) / seconds
        supervisor.terminate()
    return Figure(
        "broker", "watching a running job, broker and supervisor", spent, "% of a core", 0.5
    )
