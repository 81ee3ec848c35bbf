"""Does anybody run out of memory while jobs still boot?

Eight jobs, of which one fits a device, on two devices; their memory appears a while after they
start. Whoever places by what devices show at the moment puts the next job on a device that only
looks empty: that is the baseline, the same jobs started without a broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.bench import stage
from tests.bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["measure"]

_JOBS = 8
_DEVICES = "sim:2x16GiB"
_DELAYS_S = (0.0, 0.5, 2.0, 5.0)
_HOLD_S = 0.5
_OOM = b"out of memory"


def measure(*, quick: bool) -> list[Figure]:
    """Sweep the time from start to memory."""
    return [_figure(delay) for delay in (_DELAYS_S[:2] if quick else _DELAYS_S)]


def _figure(delay_s: float) -> Figure:
    with stage.broker(_DEVICES) as broker:
        bare = _unbooked(delay_s, broker)
    with stage.broker(_DEVICES) as broker:
        jobs = _booked(delay_s, broker)
    bad = [job for job in jobs if job["outcome"] != "ok"]
    oom = [job for job in bad if job["outcome"].startswith("oom")]
    return Figure(
        "boot",
        f"out of memory of {_JOBS}, memory {delay_s:g} s after the start",
        len(bad),
        "",
        0,
        f"without a broker {bare}",
        raw={"oom": len(oom), "outcomes": [job["outcome"] for job in jobs], "unbooked": bare},
    )


def _job(delay_s: float) -> list[str]:
    plan = ["--memory", "9000MiB", "--seconds", str(_HOLD_S), "--start-delay", str(delay_s)]
    return [sys.executable, "-m", "grn.testing.job", *plan]


def _booked(delay_s: float, broker: stage.Stage) -> list[dict[str, Any]]:
    """Run all jobs at once, nothing declared; return what became of each."""
    words = [*stage.grn_command(), "run", "--json"]
    started = [_start([*words, "--", *_job(delay_s)], broker.environ) for _ in range(_JOBS)]
    said = [process.communicate()[0] for process in started]
    return [json.loads(text)["jobs"][0] for text in said]


def _unbooked(delay_s: float, broker: stage.Stage) -> int:
    """Start the same jobs by turns on both devices, without a broker; return how many died."""
    with broker.client() as client:
        grant = client.acquire("where", gpus=1, memory_mib=1).grant
    place = {**broker.environ, **grant["extra"]}
    started = [
        _start(_job(delay_s), {**place, "CUDA_VISIBLE_DEVICES": str(number % 2)})
        for number in range(_JOBS)
    ]
    return sum(_OOM in process.communicate()[1] for process in started)


def _start(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
