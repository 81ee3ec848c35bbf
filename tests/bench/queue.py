"""What the queue costs: adding a job, looking at a long list, and ten thousand jobs of `true`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from grn.queue.entry import Spec
from grn.queue.lock import owner_of
from grn.queue.places import Places
from grn.queue.store import NewJob, Store
from tests.bench import stage
from tests.bench.figures import Figure, median

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["measure"]

_ADD_LIMIT_MS, _LS_LIMIT_MS, _GROWTH_LIMIT_MIB = 20, 200, 50
_LOOK_S = 0.5


def measure(*, quick: bool) -> list[Figure]:
    """Fill a queue, look at it, work it off."""
    jobs = 200 if quick else 10_000
    with stage.broker() as broker:
        places = Places(broker.folder)
        added = _added(broker, 5 if quick else 30)
        _fill(places, broker, jobs)
        looked = _looked(broker, 3 if quick else 10)
        took_s, growth_mib, once = _worked_off(places, broker)
    rate = jobs / took_s
    return [
        Figure("queue", "grn queue add, beyond Python's start", added, "ms", _ADD_LIMIT_MS),
        Figure("queue", f"grn queue ls, {jobs} jobs", looked, "ms", _LS_LIMIT_MS),
        Figure(
            "queue", "growth of the owner", growth_mib, "MiB", _GROWTH_LIMIT_MIB,
            note=f"{jobs} jobs of true in {took_s:.0f} s, {rate:.0f} a second",
        ),
        Figure("queue", "jobs that did not run exactly once", jobs - once, "jobs", 0),
    ]  # fmt: skip


def _timed_ms(words: Sequence[str], broker: stage.Stage) -> float:
    began = time.perf_counter()
    subprocess.run(words, env=broker.environ, stdout=-3, stderr=-3, stdin=-3, check=True)
    return (time.perf_counter() - began) * 1e3


def _added(broker: stage.Stage, rounds: int) -> float:
    """Median of pairs, in turns: the command up to the job's number, a Python that prints one."""
    add = [*stage.grn_command(), "queue", "add", "--gpus", "0", "--", "true"]
    bare = [sys.executable, "-c", "print(1)"]
    return median([_answered_ms(add, broker) - _answered_ms(bare, broker) for _ in range(rounds)])


def _answered_ms(words: Sequence[str], broker: stage.Stage) -> float:
    began = time.perf_counter()
    with subprocess.Popen(words, env=broker.environ, stdout=-1, stderr=-3, stdin=-3) as process:
        assert process.stdout is not None
        answer = process.stdout.readline()
        took_ms = (time.perf_counter() - began) * 1e3
    if not answer.strip().isdigit() or process.returncode:
        raise RuntimeError(f"{words} answered {answer!r} and ended with {process.returncode}")
    return took_ms


def _fill(places: Places, broker: stage.Stage, jobs: int) -> None:
    ran = os.path.join(broker.folder, "ran")
    environ = {"PATH": os.environ["PATH"], "GRN_SOCKET": broker.socket}
    with Store(places) as store:
        queued = store.numbers(["queued"])
        store.cancel(queued, "measured")
        store.forget(queued)
        for number in range(jobs):
            line = f"echo {number} >> {ran}"
            spec = Spec(line=line, options=["--gpus", "0"], cwd=broker.folder, environ=environ)
            store.add([NewJob("true", spec)])


def _looked(broker: stage.Stage, rounds: int) -> float:
    return median([_timed_ms([*stage.grn_command(), "queue", "ls"], broker) for _ in range(rounds)])


def _worked_off(places: Places, broker: stage.Stage) -> tuple[float, float, int]:
    start = [*stage.grn_command(), "queue", "start", "--drain"]
    began = time.perf_counter()
    subprocess.run(start, env=broker.environ, stdout=-3, stderr=-3, check=True)
    owner = owner_of(places)
    first = most = _rss_mib(owner)
    while owner_of(places) is not None:
        time.sleep(_LOOK_S)  # a look, not a wait: what is measured is between looks as well
        most = max(most, _rss_mib(owner))
    took_s = time.perf_counter() - began
    with open(os.path.join(broker.folder, "ran"), encoding="ascii") as file:
        numbers = file.read().split()
    return took_s, most - first, len(set(numbers)) if len(set(numbers)) == len(numbers) else 0


def _rss_mib(pid: int | None) -> float:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
