"""What a person waits for: `grn run -- true` beside `true`, with a broker and without one yet."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["measure", "wall_s"]

_MODULES = "import socket, msgpack, argparse, subprocess"


def measure(*, quick: bool) -> list[Figure]:
    """Run all commands in turns: on a running broker, then each time with a broker to be started."""
    rounds = 8 if quick else 40
    python = [sys.executable, "-c"]
    commands = {
        "true": ["true"],
        "grn run -- true": [*stage.grn_command(), "run", "--", "true"],
        "modules": [*python, _MODULES],
        "python": [*python, "pass"],
        "import grn": [*python, "import grn"],
        "import grn.client": [*python, "import grn.client"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    with stage.broker() as broker:
        for turn in range(rounds + 1):
            for name, words in commands.items():
                took = wall_s(words, broker.environ)
                times[name] += [took] if turn else []
    ms = {name: 1000 * median(values) for name, values in times.items()}
    cold = [_cold_s() for _ in range(3 if quick else 10)]
    cold_ms = 1000 * median(cold)
    own = ms["grn run -- true"]
    run = f"grn run {own:.1f} ms"
    return [
        _figure("grn run -- true, more than true", own - ms["true"], "ms", 60, f"{run}, true {ms['true']:.1f} ms"),
        _figure("grn run -- true, beside its modules", own / ms["modules"], "x", 1.5, f"{run}, python -c '{_MODULES}' {ms['modules']:.1f} ms"),
        _figure("grn run -- true, starts the broker", cold_ms, "ms", 250, "nothing in its folders before"),
        _figure("import grn, more than python", ms["import grn"] - ms["python"], "ms", 25, f"python {ms['python']:.1f} ms"),
        _figure("import grn.client, more than python", ms["import grn.client"] - ms["python"], "ms", 25, f"python {ms['python']:.1f} ms"),
    ]  # fmt: skip


def wall_s(words: Sequence[str], environ: Mapping[str, str]) -> float:
    """Return how long a command takes that must succeed."""
    began = time.perf_counter()
    subprocess.run(
        words,
        env=environ,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def _cold_s() -> float:
    with stage.private() as folder:
        environ = {**stage.environment_in(folder), "GRN_DEVICES": stage.DEVICES}
        took = wall_s([*stage.grn_command(), "run", "--", "true"], environ)
        wall_s([*stage.grn_command(), "broker", "stop"], environ)
    return took


def _figure(what: str, value: float, unit: str, limit: float, beside: str) -> Figure:
    return Figure("command", what, value, unit, limit, beside)
