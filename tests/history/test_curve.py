"""A lease's memory as ten points and a sparkline."""

from __future__ import annotations

import pytest

from grn.history.curve import Curve, parse_curve, sparkline


def test_the_last_value_is_the_maximum() -> None:
    """Ten points, then the most that was held between them too."""
    curve = parse_curve("[0, 10, 20, 30, 30, 30, 30, 20, 10, 5, 44]")
    assert curve == Curve((0, 10, 20, 30, 30, 30, 30, 20, 10, 5), 44)
    assert curve.least == 0


def test_an_unknown_point_stays_unknown() -> None:
    """Nothing is made of what nobody saw."""
    curve = parse_curve("[null, 512.0, null]")
    assert curve == Curve((None, 512), None)
    assert curve.least == 512


@pytest.mark.parametrize("text", [None, "", "nonsense", "{}", "[]", "[3]", "7"])
def test_what_is_no_curve_is_none(text: str | None) -> None:
    """A record without one, or with one of another form, has none."""
    assert parse_curve(text) is None


def test_sparkline_goes_from_nothing_to_the_top() -> None:
    """0 is the lowest block, the top the highest; what exceeds it stays in the row."""
    assert sparkline([0, 50, 100, 150], 100) == "▁▅██"
    assert sparkline([None, 100], 100) == " █"
    assert sparkline([0, 0], 0) == "▁▁"


def test_sparkline_in_ascii() -> None:
    """One character a point, all of them ASCII."""
    drawn = sparkline(range(8), 7, ascii_only=True)
    assert drawn.isascii()
    assert len(set(drawn)) == len(drawn) == 8
