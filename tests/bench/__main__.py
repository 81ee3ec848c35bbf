"""`python -m tests.bench [--only NAME …] [--json FILE] [--quick] [--strict]`: measure, print, judge."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from tests.bench import (
    boot,
    command,
    dispatch,
    doit,
    driver,
    expected,
    handover,
    history,
    hostile,
    lease,
    prefect,
    queue,
    report,
    snakemake,
    stage,
    throughput,
    upkeep,
    watching,
)
from tests.bench.figures import Figure, as_json, as_table
from tests.bench.quiet import BUSY, wait_until_quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


class Measure(Protocol):
    """Runs one measure; `quick` is for a look, not for a verdict."""

    def __call__(self, *, quick: bool) -> list[Figure]: ...


MEASURES: dict[str, Measure] = {
    "lease": lease.measure,
    "handover": handover.measure,
    "throughput": throughput.measure,
    "command": command.measure,
    "dispatch": dispatch.measure,
    "broker": upkeep.measure,
    "watching": watching.measure,
    "expected": expected.measure,
    "boot": boot.measure,
    "driver": driver.measure,
    "hostile": hostile.measure,
    "snakemake": snakemake.measure,
    "queue": queue.measure,
    "history": history.measure,
    "report": report.measure,
    "doit": doit.measure,
    "prefect": prefect.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; with `--strict` return 1 if a limit is missed."""
    args = _parser().parse_args(argv)
    stage.clean_environment()
    figures: list[Figure] = []
    busy: dict[str, float] = {}
    for name in args.only or MEASURES:
        busy[name] = wait_until_quiet(args.patience)
        began = time.monotonic()
        figures += MEASURES[name](quick=args.quick)
        sys.stderr.write(f"{name}: measured in {time.monotonic() - began:.0f} s\n")
    missed = sum(figure.met is False for figure in figures)
    judged = sum(figure.met is not None for figure in figures)
    sys.stdout.write(as_table(figures) + f"{judged - missed} of {judged} limits met\n")
    loud = ", ".join(f"{share:.0%} before {name}" for name, share in busy.items() if share > BUSY)
    if loud:
        sys.stdout.write(f"doubtful: others used the machine ({loud})\n")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(as_json(figures, {**_machine(), "busy": busy}), file, indent=1)
    return int(args.strict and missed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(MEASURES), metavar="NAME")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: for a look only")
    parser.add_argument(
        "--patience",
        type=float,
        default=10,
        metavar="S",
        help="how long to wait for a quiet machine",
    )
    parser.add_argument("--strict", action="store_true", help="end with status 1 if one is missed")
    return parser


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }


if __name__ == "__main__":
    sys.exit(main())
