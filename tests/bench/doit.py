"""What an action of doit pays for its share: beside the same action without us, in turns in one run of doit."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, median

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["measure"]

_DODO = """
import os
from grn_plugins.doit import grn

DOIT_CONFIG = {"sort": "definition"}


def nothing():
    return True


def task_round():
    for number in range(int(os.environ["ROUNDS"])):
        for name, action in {"command": "true", "callable": nothing}.items():
            yield {"name": f"plain-{name}-{number}", "actions": [action]}
            yield {"name": f"grn-{name}-{number}", "actions": [grn(action, memory=100, job=name)]}
"""


def measure(*, quick: bool) -> list[Figure]:
    """Run doit once, with plain actions and ours in turns."""
    if importlib.util.find_spec("doit") is None:
        note = "doit is not installed"
        return [Figure("doit", "a command, more than in plain doit", None, "ms", 30, note=note)]
    with stage.broker() as broker, stage.private() as folder:
        with open(os.path.join(folder, "dodo.py"), "w", encoding="utf-8") as file:
            file.write(_DODO)
        times = _times(folder, {**broker.environ, "ROUNDS": "12" if quick else "60"})
    ms = {kind: 1000 * median(values[1:]) for kind, values in times.items()}
    return [_figure("command", ms, times, 30), _figure("callable", ms, times, 100)]


def _times(folder: str, environ: Mapping[str, str]) -> dict[str, list[float]]:
    words = [sys.executable, "-m", "doit", "run", "-r", "json", "-o", "report"]
    subprocess.run(words, cwd=folder, env=environ, check=True, stderr=subprocess.DEVNULL)
    with open(os.path.join(folder, "report"), encoding="utf-8") as file:
        report = json.load(file)
    times: dict[str, list[float]] = {}
    for task in report["tasks"]:
        kind = task["name"].removeprefix("round:").rpartition("-")[0]
        if kind:  # the group of them all has none
            times.setdefault(kind, []).append(task["elapsed"])
    return times


def _figure(
    name: str, ms: Mapping[str, float], times: Mapping[str, list[float]], limit: float
) -> Figure:
    plain, ours = ms[f"plain-{name}"], ms[f"grn-{name}"]
    return Figure(
        "doit",
        f"a {name}, more than in plain doit",
        ours - plain,
        "ms",
        limit,
        f"grn {ours:.1f} ms, plain {plain:.1f} ms",
        raw={kind: values for kind, values in times.items() if kind.endswith(name)},
    )
