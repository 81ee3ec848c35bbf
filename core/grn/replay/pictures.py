"""The pictures of docs/decisions.md, from made traces: `python -m grn.replay.pictures docs/decisions`."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from grn.replay.cli import Task, play
from grn.replay.plots import Series, lines, plot_waits
from grn.replay.policies import Run
from grn.replay.synthetic import Synthetic
from grn.replay.trace import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grn.replay.tables import Outcome

__all__ = ["main"]

_COMPARED = ("fifo", "best-fit", "fgd", "spread/declared", "spread", "pack", "spread/run-time",
             "oracle", "oracle/run-time")  # fmt: skip
_JITTERS = (0.03, 0.1, 0.2, 0.4)
_LOADS = (0.6, 0.7, 0.8, 0.9, 1.0)


def main(words: Sequence[str] | None = None) -> int:
    """Write the pictures into a folder; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grn.replay.pictures", description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--jobs", type=int, default=2000, help="of each trace; default: 2000")
    parser.add_argument("--seeds", type=int, default=3, help="how many; default: 3")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(words)
    os.makedirs(options.folder, exist_ok=True)
    with ProcessPoolExecutor(options.processes) as pool:
        pictures = _pictures(options.jobs, range(1, options.seeds + 1), pool)
        for name, picture in pictures.items():
            with open(os.path.join(options.folder, name), "w", encoding="utf-8") as file:
                file.write(picture)
    return 0


def _pictures(jobs: int, seeds: Sequence[int], pool: ProcessPoolExecutor) -> dict[str, str]:
    base = Task("", None, Synthetic(jobs=jobs), Reading(), Run())

    def outcomes(names: Sequence[str], **changes: float) -> list[Outcome]:
        made = replace(base.synthetic, load=changes.get("load", 0.8))
        tasks = [
            replace(
                base,
                policy=name,
                synthetic=made,
                reading=Reading(seed=seed, jitter=changes.get("jitter", 0.03)),
            )
            for name in names
            for seed in seeds
        ]
        return [outcome for outcome, _ in pool.map(play, tasks)]

    def curves(what: str, over: Sequence[float], names: Sequence[str], of: str) -> list[Series]:
        points = [(each, outcomes(names, **{what: each})) for each in over]
        return [
            Series(name, [(x, _mean(found, name, of)) for x, found in points]) for name in names
        ]

    shown = ("best-fit", "spread", "spread/run-time", "oracle")
    return {
        "waits.svg": plot_waits(outcomes(_COMPARED)),
        "loads.svg": lines(
            "Mean wait by load (seconds)",
            "load of the machine, counting whole devices",
            curves("load", _LOADS, shown, "wait_mean_s"),
        ),
        "oom.svg": lines(
            f"Out-of-memory ends of {jobs:,} jobs, by how much peaks vary",
            "by how much the peak of one run is off that of its type, at most",
            curves("jitter", _JITTERS, ("best-fit", "spread"), "ooms"),
        ),
    }


def _mean(outcomes: Sequence[Outcome], name: str, of: str) -> float:
    read: Callable[[Outcome], float] = lambda each: getattr(each[2], of)  # noqa: E731 - typed here
    return fmean(read(each) for each in outcomes if each[0] == name)


if __name__ == "__main__":
    sys.exit(main())
