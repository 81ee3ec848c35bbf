"""A lease's memory over its run, kept as ten points and the maximum, and drawn as a sparkline.

Pure. The points are what was held at equal steps of the run, in MiB; a point that is not known is
`None`, and is drawn as a blank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Curve", "parse_curve", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*%#"
_LEAST = 2  # a point, and the maximum


@dataclass(frozen=True, slots=True)
class Curve:
    """What was held at equal steps of a run, MiB, and the most that was held at any moment."""

    points: tuple[int | None, ...]
    maximum: int | None

    @property
    def least(self) -> int | None:
        """The least of the points that are known."""
        return min((point for point in self.points if point is not None), default=None)


def parse_curve(text: str | None) -> Curve | None:
    """Read a curve as the history keeps it: a JSON list, the maximum last; `None` for any other text."""
    if not text:
        return None
    try:
        values = json.loads(text)
    except ValueError:
        return None
    if not isinstance(values, list) or len(values) < _LEAST:
        return None
    *points, maximum = (_whole(value) for value in values)
    return Curve(tuple(points), maximum)


def sparkline(points: Sequence[float | None], top: float, *, ascii_only: bool = False) -> str:
    """Draw points as a row of blocks, of which the highest stands for `top` and the lowest for 0."""
    levels = _ASCII if ascii_only else _BLOCKS
    return "".join(" " if point is None else _level(point, top, levels) for point in points)


def _level(point: float, top: float, levels: str) -> str:
    if top <= 0:
        return levels[0]
    share = min(1.0, max(0.0, point / top))
    return levels[round(share * (len(levels) - 1))]


def _whole(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None
