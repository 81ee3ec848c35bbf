"""Many short jobs in one `grn run`: what each costs, and how long a freed device stays empty.

The peer is simple_gpu_scheduler, which hands whole GPUs to lines of standard input and books
nothing; it is fetched into a virtual environment of its own. Without it the limit is 2 ms a job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.command import wall_s
from tests.bench.figures import Figure, median
from tests.bench.upkeep import rss_mib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["measure"]

_PEER = "simple_gpu_scheduler==0.1.4"
_SLOTS = 4
_NAP_S = 0.25
_WAVES = 10
_CROWD = 100
_WITHIN_S = 60


def measure(*, quick: bool) -> list[Figure]:
    """Run ours and the peer in turns."""
    rounds, jobs = (2, 200) if quick else (5, 500)
    with stage.broker() as broker, stage.private() as folder, _peer(folder) as peer:
        many = _Jobs(folder, "true", jobs)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(rounds):
            ours.append(_ours(many, broker))
            if peer:
                theirs.append(_theirs(many, peer))
        gaps = [_empty_s(broker, folder) for _ in range(1 if quick else 3)]
        crowd = _crowd(broker, folder)
    return [
        *_per_job(jobs, ours, theirs),
        Figure(
            "dispatch",
            "a freed device stays empty",
            1000 * min(gaps),
            "ms",
            10,
            f"{_WAVES} waves of sleep {_NAP_S} on {_SLOTS} devices, less the first wave",
        ),
        *crowd,
    ]


class _Jobs:
    """The same command many times, in a file."""

    def __init__(self, folder: str, command: str, count: int) -> None:
        self.path = os.path.join(folder, f"jobs-{count}")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(f"{command}\n" * count)


def _words(jobs: _Jobs, memory: str = "16GiB") -> list[str]:
    return [*stage.grn_command(), "run", "--memory", memory, "--file", jobs.path]


def _ours(jobs: _Jobs, broker: stage.Stage) -> float:
    return wall_s(_words(jobs), broker.environ)


def _theirs(jobs: _Jobs, peer: Sequence[str]) -> float:
    with open(jobs.path, "rb") as file:
        began = time.perf_counter()
        subprocess.run(peer, stdin=file, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


@contextmanager
def _peer(folder: str) -> Iterator[list[str]]:
    """Install the peer; yield the words that call it, none if it cannot be had."""
    home = os.path.join(folder, "peer")
    try:
        for words in (
            [sys.executable, "-m", "venv", home],
            [f"{home}/bin/python", "-m", "pip", "install", "-q", _PEER],
        ):
            subprocess.run(words, check=True, capture_output=True, timeout=_WITHIN_S)
    except (OSError, subprocess.SubprocessError):
        yield []
    else:
        yield [f"{home}/bin/simple_gpu_scheduler", "--gpus", *map(str, range(_SLOTS))]


def _per_job(jobs: int, ours: list[float], theirs: list[float]) -> list[Figure]:
    own = 1000 * median(ours) / jobs
    raw = {"ours_s": ours, "theirs_s": theirs, "jobs": jobs}
    what = f"{jobs} x true on {_SLOTS} devices, a job"
    if not theirs:
        return [Figure("dispatch", what, own, "ms", 2, f"{_PEER} could not be had", raw=raw)]
    base = 1000 * median(theirs) / jobs
    beside = f"ours {own:.2f} ms, simple_gpu_scheduler {base:.2f} ms"
    return [Figure("dispatch", what, own / base, "x", 1.5, beside, raw=raw)]


def _empty_s(broker: stage.Stage, folder: str) -> float:
    """Return the seconds between the end of a job and the start of the next on its device.

    One wave alone shows what start and end of the command take; every further wave takes the nap
    and the gap.
    """
    nap = f"sleep {_NAP_S}"
    one = _ours(_Jobs(folder, nap, _SLOTS), broker)
    all_waves = _ours(_Jobs(folder, nap, _SLOTS * _WAVES), broker)
    return (all_waves - one) / (_WAVES - 1) - _NAP_S


def _crowd(broker: stage.Stage, folder: str) -> list[Figure]:
    """Count the processes beside a hundred jobs that run at once, and weigh them."""
    words = _words(_Jobs(folder, "exec sleep 3", _CROWD), memory="512MiB")
    what = f"processes beside {_CROWD} jobs at once"
    with subprocess.Popen(
        words, env=broker.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:  # fmt: skip
        end = time.monotonic() + _WITHIN_S
        while command.poll() is None and time.monotonic() < end:
            family = [command.pid, *_descendants(command.pid)]
            if sum(_name(pid) == "sleep" for pid in family) == _CROWD:
                beside = [pid for pid in family if _name(pid) != "sleep"]
                weight = sum(map(rss_mib, beside))
                command.terminate()
                return [
                    Figure("dispatch", what, len(beside), "", 1),
                    Figure("dispatch", "their resident memory", weight, "MiB", 40),
                ]
            time.sleep(0.02)
        command.terminate()
    return [Figure("dispatch", what, None, "", 1, note="they never ran all at once")]


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    queue = [pid]
    while queue:
        try:
            path = f"/proc/{queue[0]}/task/{queue.pop(0)}/children"
            with open(path, encoding="ascii") as file:
                fresh = [int(word) for word in file.read().split()]
        except OSError:
            continue
        found += fresh
        queue += fresh
    return found


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
