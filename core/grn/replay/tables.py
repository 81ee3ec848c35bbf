"""Figures as a table for people, as JSON, and as CSV."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from io import StringIO
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from grn.replay.bounds import Bounds
    from grn.replay.figures import Figures

__all__ = ["Outcome", "as_csv", "as_json", "as_table"]

Outcome = tuple[str, int, "Figures"]
"""Policy, seed, figures."""

_COLUMNS = (
    ("wait", "wait_mean_s", "{:,.0f}"),
    ("p50", "wait_p50_s", "{:,.0f}"),
    ("p95", "wait_p95_s", "{:,.0f}"),
    ("longest", "wait_max_s", "{:,.0f}"),
    ("done in", "jct_mean_s", "{:,.0f}"),
    ("charged", "jct_charged_s", "{:,.0f}"),
    ("slowed p95", "slowdown_p95", "{:.1f}"),
    ("span h", "makespan_h", "{:.1f}"),
    ("oom", "ooms", "{:.1f}"),
    ("failed", "failed", "{:.1f}"),
    ("lost h", "lost_gpu_h", "{:.1f}"),
    ("busy", "busy", "{:.2f}"),
    ("memory", "memory_used", "{:.2f}"),
    ("compute", "compute_used", "{:.2f}"),
    ("fragm.", "fragmentation", "{:.2f}"),
    ("probes", "probes", "{:.4f}"),
    ("fair", "fairness", "{:.2f}"),
)


def as_table(outcomes: Sequence[Outcome], bounds: Bounds) -> str:
    """Return a table with a row per policy: the mean over the seeds."""
    by_policy: dict[str, list[Figures]] = {}
    for policy, _, figures in outcomes:
        by_policy.setdefault(policy, []).append(figures)
    rows = [["policy", *(title for title, _, _ in _COLUMNS)]]
    rows += [[policy, *_cells(figures)] for policy, figures in by_policy.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_pad(row, widths)).rstrip() for row in rows]
    lines.append(
        f"bounds: done in {bounds.jct_mean_s:,.0f} s on the average, span {bounds.makespan_h:.1f} h;"
        f" load {bounds.load_whole:.2f} of whole devices, {bounds.load_shares:.2f} of shares"
    )
    return "\n".join(lines) + "\n"


def _cells(figures: Iterable[Figures]) -> list[str]:
    rows = [each.as_dict() for each in figures]
    cells = []
    for _, name, form in _COLUMNS:
        values = [row[name] for row in rows if row[name] is not None]
        cells.append(form.format(fmean(values)) if values else "-")
    return cells


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]


def as_json(outcomes: Sequence[Outcome], bounds: Bounds, options: dict[str, Any]) -> str:
    """Return all runs as one JSON object."""
    runs = [{"seed": seed, **figures.as_dict()} for _, seed, figures in outcomes]
    whole = {"schema": 1, "options": options, "bounds": asdict(bounds), "runs": runs}
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """Return a line per run."""
    out = StringIO()
    writer: Any = None
    for _, seed, figures in outcomes:
        row = {"seed": seed, **figures.as_dict()}
        if writer is None:
            writer = csv.DictWriter(out, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return out.getvalue()
