"""Print when and where each training ran, from the metrics that they have written."""

from __future__ import annotations

import json

_WIDTH = 60


def show(dependencies: list[str]) -> None:
    """Print a bar for each file of metrics, in the order of their beginnings."""
    runs = []
    for path in dependencies:
        with open(path, encoding="utf-8") as file:
            runs.append(json.load(file))
    first, last = min(run["started"] for run in runs), max(run["ended"] for run in runs)
    scale = _WIDTH / max(last - first, 1e-9)
    print(f"training     device  0 s{f'{last - first:.0f} s':>{_WIDTH}}")
    for run in sorted(runs, key=lambda run: float(run["started"])):
        begin = round(scale * (run["started"] - first))
        length = max(1, round(scale * (run["ended"] - run["started"])))
        name = f"{run['framework']}:{run['seed']}"
        print(f"{name:<11}  {run['devices'] or '-':<6}  {' ' * begin}{'#' * length}")
