"""A chart of curves as SVG, with nothing but text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, EDGE = 640, 360, 48


def svg(curves: Mapping[str, Sequence[float]], *, best: str, title: str) -> str:
    """Draw one line for each curve, the best one in colour."""
    low = min(min(curve) for curve in curves.values())
    longest = max(len(curve) for curve in curves.values())

    def place(step: int, value: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * step / max(longest - 1, 1)
        y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (value - low) / max(1 - low, 1e-9)
        return f"{x:.1f},{y:.1f}"

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
            ' font-family="sans-serif" font-size="12">'
        ),
        f'<text x="{EDGE}" y="24" font-size="14">{title}</text>',
        f'<text x="4" y="{EDGE}">1.0</text>',
        f'<text x="4" y="{HEIGHT - EDGE}">{low:.2f}</text>',
        f'<text x="{WIDTH // 2}" y="{HEIGHT - 12}">epoch</text>',
    ]
    for name in sorted(curves, key=lambda name: name == best):  # the best one on top
        points = " ".join(place(step, value) for step, value in enumerate(curves[name]))
        look = 'stroke="#c2410c" stroke-width="3"' if name == best else 'stroke="#94a3b8"'
        lines.append(
            f'<polyline points="{points}" fill="none" {look}><title>{name}</title></polyline>'
        )
    return "\n".join([*lines, "</svg>", ""])
