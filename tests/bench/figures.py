"""A measured figure, its limit and its verdict; the table and the JSON made of them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Figure", "as_json", "as_table", "median", "percentile"]

_WIDEST = 56


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result.

    Attributes:
        measure: the name under which `--only` finds it.
        what: what was measured, in words.
        value: what is judged, in `unit`; `None` if it could not be measured, `note` says why.
        limit: what it is held to; `None` for a figure that is only told.
        baseline: what it was compared with, and how that did.
        least: the limit is the least that is wanted, not the most.
        raw: all numbers behind it, for the JSON.
    """

    measure: str
    what: str
    value: float | None
    unit: str
    limit: float | None = None
    baseline: str = ""
    least: bool = False
    note: str = ""
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the limit is kept; `None` where there is none, or nothing was measured."""
        if self.limit is None or self.value is None:
            return None
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        """The judgement in words."""
        if self.value is None:
            return "not measured"
        if self.met is None or self.limit is None:
            return "told only"
        return "met" if self.met else f"missed by {_shown(abs(self.value - self.limit), self.unit)}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)


def as_table(figures: Sequence[Figure]) -> str:
    """Return the table that a person reads."""
    rows = [("measure", "figure", "value", "limit", "verdict", "beside")]
    for figure in figures:
        sign = ">=" if figure.least else "<="
        limit = "" if figure.limit is None else f"{sign} {_shown(figure.limit, figure.unit)}"
        value = "-" if figure.value is None else _shown(figure.value, figure.unit)
        beside = "; ".join(part for part in (figure.baseline, figure.note) if part)
        rows.append((figure.measure, figure.what, value, limit, figure.verdict, beside))
    widths = [min(_WIDEST, max(len(row[i]) for row in rows)) for i in range(len(rows[0]) - 1)]
    lines = [
        "  ".join(
            [*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in [*widths, len("beside")]))
    return "\n".join(lines) + "\n"


def as_json(figures: Sequence[Figure], machine: dict[str, Any]) -> dict[str, Any]:
    """Return the same for programs."""
    told = [{**asdict(f), "met": f.met, "verdict": f.verdict} for f in figures]
    return {"schema": 1, "machine": machine, "figures": told}


def _shown(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()
