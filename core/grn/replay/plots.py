"""Pictures as SVG, written by hand: bars and lines need no library, and a diff shows what changed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.replay.tables import Outcome

__all__ = ["Series", "bars", "lines", "plot_waits"]

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 760, 24, 190, 90, 40
_HEIGHT = 300
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
_TEXT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]


def plot_waits(outcomes: Sequence[Outcome]) -> str:
    """Draw the mean wait of each policy, the mean over the seeds."""
    waits: dict[str, list[float]] = {}
    for policy, _, figures in outcomes:
        waits.setdefault(policy, []).append(figures.wait_mean_s)
    means = [(policy, fmean(values)) for policy, values in waits.items()]
    return bars("Mean wait (seconds; a job that was given up waits to the end)", means)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Draw a bar for each name, with its number."""
    most = max((value for _, value in values), default=0.0) or 1.0
    height = _TOP + _ROW * len(values) + 10
    parts = []
    for number, (name, value) in enumerate(values):
        top = _TOP + _ROW * number
        width = (_WIDTH - _LEFT - _RIGHT) * value / most
        middle = top + _ROW / 2 + 4
        parts += [
            f'<text x="{_LEFT - 8}" y="{middle:g}" text-anchor="end" {_TEXT}>{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{top + 3}" width="{width:.1f}" height="18" fill="{_colour(name)}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{middle:g}" {_TEXT}>{value:,.0f}</text>',
        ]
    return _svg(title, height, parts)


def _colour(name: str) -> str:
    if name.startswith("oracle"):
        return _COLOURS[2]
    return _COLOURS[0] if name.startswith(("spread", "pack")) else _COLOURS[6]


def lines(title: str, across: str, series: Sequence[Series]) -> str:
    """Draw lines over one axis; `across` says what that is."""
    points = [point for each in series for point in each.points]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    most = max(y for _, y in points) or 1.0
    inner_w, inner_h, axis_x = _WIDTH - 60 - 190, _HEIGHT - _TOP - 50, 60

    def place(x: float, y: float) -> tuple[float, float]:
        across_share = (x - left) / ((right - left) or 1.0)
        return axis_x + inner_w * across_share, _TOP + inner_h * (1 - y / most)

    base = _TOP + inner_h
    parts = [
        f'<path d="M{axis_x} {_TOP}V{base}H{axis_x + inner_w}" fill="none" stroke="#333"/>',
        f'<text x="{axis_x}" y="{_HEIGHT - 8}" {_TEXT}>{escape(across)}</text>',
        f'<text x="{axis_x - 6}" y="{_TOP + 4}" text-anchor="end" {_TEXT}>{most:,.4g}</text>',
        f'<text x="{axis_x - 6}" y="{base}" text-anchor="end" {_TEXT}>0</text>',
    ]
    for x in sorted({x for x, _ in points}):
        at, _ = place(x, 0)
        parts.append(
            f'<text x="{at:.1f}" y="{base + 16}" text-anchor="middle" {_TEXT}>{x:g}</text>'
        )
    for number, each in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = [place(x, y) for x, y in sorted(each.points)]
        drawn = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        row = _TOP + 18 * number + 10
        parts += [
            f'<path d="M{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed),
            f'<rect x="{_WIDTH - 175}" y="{row - 9}" width="10" height="10" fill="{colour}"/>',
            f'<text x="{_WIDTH - 160}" y="{row}" {_TEXT}>{escape(each.name)}</text>',
        ]
    return _svg(title, _HEIGHT, parts)


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="12" y="22" font-weight="bold" {_TEXT}>{escape(title)}</text>\n{body}\n</svg>\n'
    )
