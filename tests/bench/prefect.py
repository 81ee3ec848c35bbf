"""What a task of a Prefect flow costs under a lease, beside Prefect's own runners.

Whole flows in processes of their own, against one Prefect server; the best of several flows in one
process is judged, as others share the machine.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.bench import stage
from tests.bench.figures import Figure, median
from tests.prefect.serving import PrefectServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.stage import Stage

__all__ = ["measure"]

_WITHIN_S = 600


def measure(*, quick: bool) -> list[Figure]:
    """Measure tasks, starts of processes, and waiting."""
    if importlib.util.find_spec("prefect") is None:
        return [Figure("prefect", "Prefect", None, "", note="not installed")]
    with _server() as server, stage.broker("sim:2x16GiB") as broker:
        return [
            *_of_tasks(server, broker, rounds=3 if quick else 6),
            _of_start(server, broker, count=20 if quick else 100),
            *_of_waiting(server, broker),
        ]


@contextmanager
def _server() -> Iterator[PrefectServer]:
    with stage.private() as folder:
        server = PrefectServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _run(server: PrefectServer, broker: Stage, *words: object) -> dict[str, Any]:
    env = {**broker.environ, **server.environ, "PREFECT_LOGGING_TO_API_ENABLED": "false"}
    env["PREFECT_LOGGING_LEVEL"] = "CRITICAL"
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.prefectflow", *map(str, words)],
        env=env,
        cwd=stage.ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=_WITHIN_S,
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _of_tasks(server: PrefectServer, broker: Stage, *, rounds: int) -> list[Figure]:
    count = 100
    ours, own, threads = (
        _run(server, broker, "tasks", name, count, rounds) for name in ("grn", "process", "thread")
    )
    what = f"{count} trivial tasks in a flow"
    return [
        Figure(
            "prefect",
            what,
            ours["warm_ms"],
            "ms",
            30,
            baseline=f"each; ThreadPoolTaskRunner {threads['warm_ms']:.1f} ms",
            note=f"the first flow {ours['cold_ms']:.0f} ms",
            raw={"grn": ours, "process": own, "thread": threads},
        ),
        Figure(
            "prefect",
            f"{what}, beside ProcessPoolTaskRunner",
            ours["warm_ms"] / own["warm_ms"],
            "x",
            0.5,
            baseline=f"that takes {own['warm_ms']:.0f} ms",
        ),
    ]


def _of_start(server: PrefectServer, broker: Stage, *, count: int) -> Figure:
    times = _run(server, broker, "start", count)["ms"]
    return Figure(
        "prefect",
        "from the task's turn to its function in its process",
        median(times),
        "ms",
        15,
        note=f"best {min(times):.1f} ms",
        raw={"ms": times},
    )


def _of_waiting(server: PrefectServer, broker: Stage) -> list[Figure]:
    client = broker.client()
    held = [client.acquire("holder", whole=True) for _ in range(2)]
    try:
        ours = _run(server, broker, "waiting", "grn", 500, 5)
        threads = _run(server, broker, "waiting", "thread", 500, 5)
    finally:
        for lease in held:
            lease.release()
        client.close()
    more = ours["entered_s"] - threads["entered_s"]
    return [
        Figure(
            "prefect",
            "500 tasks wait: CPU, more than of 500 threads",
            max(0.0, more) + ours["waited_s"],
            "s",
            1,
            baseline=f"to begin {ours['entered_s']:.2f} s, in threads {threads['entered_s']:.2f} s",
            note=f"while they wait {ours['waited_s'] / 5 * 1000:.1f} ms a second",
            raw={"grn": ours, "thread": threads},
        )
    ]
