"""Colours of types: none looks like the red of an end for want of memory, to anybody; none like another.

Distances are in OKLab (https://bottosson.github.io/posts/oklab/), where 0.02 is about what can just be
told apart; how people see who lack one kind of cones is simulated by the matrices of Viénot, Brettel and
Mollon (1999).
"""

from __future__ import annotations

import re
from importlib import resources
from itertools import combinations

import pytest

RGB = tuple[float, float, float]
SEEN: dict[str, tuple[RGB, RGB, RGB] | None] = {
    "all cones": None,
    "without red cones": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "without green cones": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}  # fmt: skip


def _palette(scheme: str) -> dict[str, str]:
    style = (resources.files("grn.report") / "page" / "page.css").read_text()
    light, dark = re.findall(r":root[^{]*\{(.*?)\}", style, re.DOTALL)[:2]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else dark))


def _linear(colour: str) -> RGB:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return _curve(red), _curve(green), _curve(blue)


def _curve(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _times(matrix: tuple[RGB, RGB, RGB], value: RGB) -> RGB:
    first, second, third = (sum(a * b for a, b in zip(row, value, strict=True)) for row in matrix)
    return first, second, third


def _oklab(rgb: RGB) -> RGB:
    to_cones = (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    to_lab = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    first, second, third = (max(0.0, value) ** (1 / 3) for value in _times(to_cones, rgb))
    return _times(to_lab, (first, second, third))


def _distance(a: str, b: str, eyes: str = "all cones") -> float:
    matrix = SEEN[eyes]
    one, other = (_linear(colour) for colour in (a, b))
    if matrix is not None:
        one, other = _times(matrix, one), _times(matrix, other)
    pairs = zip(_oklab(one), _oklab(other), strict=True)
    return sum((x - y) ** 2 for x, y in pairs) ** 0.5


def _luminance(colour: str) -> float:
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), _linear(colour), strict=True))


def _types(palette: dict[str, str]) -> dict[str, str]:
    return {name: colour for name, colour in palette.items() if name.startswith("type-")}


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_type_looks_like_out_of_memory(scheme: str, eyes: str) -> None:
    """The red of out-of-memory is far from every type, whatever cones the reader has."""
    palette = _palette(scheme)
    assert len(_types(palette)) == 13
    least = 0.16 if eyes == "all cones" else 0.1
    near = {
        name: round(_distance(colour, palette["oom"], eyes), 3)
        for name, colour in _types(palette).items()
        if _distance(colour, palette["oom"], eyes) < least
    }
    assert near == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_types_differ(scheme: str) -> None:
    """Any two types can be told apart by colour by most; the letter is there for all."""
    types = _types(_palette(scheme))
    near = {
        (a, b): round(_distance(types[a], types[b]), 3)
        for a, b in combinations(types, 2)
        if _distance(types[a], types[b]) < 0.065
    }
    assert near == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str) -> None:
    """Ink, soft ink and the red on the paper have a contrast of at least 4.5 (WCAG AA)."""
    palette = _palette(scheme)
    paper = _luminance(palette["paper"])
    for name in ("ink", "soft", "oom", "good"):
        own = _luminance(palette[name])
        contrast = (max(own, paper) + 0.05) / (min(own, paper) + 0.05)
        assert contrast >= 4.5, (name, contrast)
