"""What the readings of a run show, and how few of them are kept."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.curve import (
    QUANTILES,
    has_cycles,
    is_preallocation,
    period_s,
    quantiles,
    remember,
    steps,
)

Curve = list[tuple[float, int]]


def _curve(*mib: int, every_s: float = 1.0) -> Curve:
    return [(at * every_s, amount) for at, amount in enumerate(mib)]


@pytest.mark.parametrize(
    ("curve", "cycles"),
    [
        (_curve(), False),
        (_curve(0, 0, 0), False),
        (_curve(100, 200, 300, 400), False),
        (_curve(1000, 1000, 1000, 1000), False),
        (_curve(1000, 500, 1000, 500), False),
        (_curve(1000, 500, 980, 500, 1000), True),
        (_curve(1000, 950, 1000, 960, 1000), False),
    ],
)
def test_cycles_are_three_rises_with_dips_between(curve: Curve, *, cycles: bool) -> None:
    """Memory that rose three times to about its maximum has shown its cycle."""
    assert has_cycles(curve) == cycles


def _read(rises_s: list[float], up_s: float, end_s: float, every_s: float = 0.1) -> Curve:
    """Read at an even pace what a program holds that takes memory at these times, for so long each."""
    moments = (number * every_s for number in range(int(end_s / every_s)))
    return [
        (at, 1000 if any(0 <= at - rise < up_s for rise in rises_s) else 300 * (at >= rises_s[0]))
        for at in moments
    ]


@given(
    epoch_s=st.floats(1.0, 8.0),
    up=st.floats(0.3, 0.7),
    boot_s=st.floats(0.0, 5.0),
    epochs=st.integers(3, 7),
)
def test_the_period_of_a_training_loop_is_found(
    epoch_s: float, up: float, boot_s: float, epochs: int
) -> None:
    """Whatever its length, how much of it holds memory, and how long the program took to begin."""
    rises = [boot_s + epoch * epoch_s for epoch in range(epochs)]
    curve = _read(rises, up * epoch_s, rises[-1] + epoch_s)
    found = period_s(curve)
    assert found is not None
    assert found == pytest.approx(epoch_s, abs=0.3, rel=0.1)
    assert has_cycles(curve)


@pytest.mark.parametrize(
    "rises_s", [[0, 1, 30], [0, 2, 9, 27, 30]], ids=["two and one much later", "ever other gaps"]
)
def test_rises_at_an_uneven_pace_are_no_cycle(rises_s: list[float]) -> None:
    """Three peaks of one height alone do not show what comes next."""
    curve = _read(rises_s, 0.5, 32.0)
    assert period_s(curve) is None
    assert not has_cycles(curve)


def test_growth_has_no_period() -> None:
    """What only grows is like itself a moment ago, and repeats nothing."""
    assert period_s(_curve(*range(100, 2000, 100))) is None
    assert period_s(_curve(500, 500, 500)) is None
    assert period_s(_curve(0, 0)) is None


@pytest.mark.parametrize(
    ("curve", "flat"),
    [
        (_curve(0, 7500, 7500, 7500), True),
        (_curve(0, 300, 7500, 7500, 7500), True),
        (_curve(7500, 7500), False),
        (_curve(300, 300, 300, 7500, 7500, 7500), False),
        (_curve(7500, 3000, 7500), False),
        (_curve(7500, 7500, 9000), False),
        (_curve(6900, 6900, 6900), False),
    ],
    ids=["at once", "after a context", "too short", "late", "dips", "grows on", "small"],
)
def test_most_of_the_device_from_the_start_looks_like_preallocation(
    curve: Curve, *, flat: bool
) -> None:
    """Seventy percent taken as soon as any memory, and no change after it, is flagged."""
    assert is_preallocation(curve, 10000) == flat


def test_a_device_of_unknown_size_flags_nothing() -> None:
    """Without a total there is no share of it."""
    assert not is_preallocation(_curve(5, 5, 5, 5), 0)


# -- quantiles --------------------------------------------------------------------------------------


def test_quantiles_weigh_by_time() -> None:
    """A level counts for as long as it lasted, however many readings there are of it."""
    curve = [(0.0, 100), (1.0, 500), (1.1, 500), (1.2, 500), (2.0, 300)]
    assert quantiles(curve, 10.0, top_mib=500) == [100, 100, *[300] * 8, 500]


def test_the_last_quantile_is_the_maximum() -> None:
    """A maximum of an instant is not lost, also where no reading of it was kept."""
    assert quantiles([(0.0, 10), (5.0, 90), (5.0, 10)], 10.0, top_mib=90)[-1] == 90
    assert quantiles([(0.0, 10)], 10.0, top_mib=70)[-1] == 70


def test_the_end_of_the_processes_is_no_part_of_the_run() -> None:
    """A last look that finds them gone does not make nothing the least that was held."""
    assert quantiles([(0.0, 400), (9.9, 0)], 10.0, top_mib=400) == [400] * 11
    assert quantiles([(0.0, 400), (5.0, 0)], 10.0, top_mib=400)[0] == 0


def test_no_reading_has_no_quantiles() -> None:
    """A run that was not followed shows none, rather than zeros."""
    assert quantiles([], 5.0, top_mib=300) == []


def test_readings_of_one_instant_still_have_quantiles() -> None:
    """A run too short for the clock counts each reading alike."""
    assert quantiles([(1.0, 100), (1.0, 200)], 1.0, top_mib=200) == [*[100] * 6, *[200] * 5]


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9000)), min_size=1, max_size=40),
    st.floats(0, 50),
)
def test_quantiles_rise_within_what_was_held(steps: Curve, more_s: float) -> None:
    """Eleven numbers, each at least the one before, from the least to the most that was held."""
    curve: Curve = []
    now = 0.0
    for pause, mib in steps:
        now += pause
        curve.append((now, mib))
    top = max(mib for _, mib in curve)
    found = quantiles(curve, now + more_s, top_mib=top)
    assert len(found) == len(QUANTILES)
    assert found == sorted(found)
    assert min(mib for _, mib in curve) <= found[0]
    assert found[-1] == top


# -- what is kept -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [120, 600])
def test_a_long_curve_stays_short_and_even(limit: int) -> None:
    """Days of readings fit the limit, cover the whole run, and keep its maximum."""
    curve: Curve = []
    for second in range(50_000):
        mib = 9000 if second == 123 else second % 5000
        remember(curve, float(second), mib, limit=limit, changes_only=False)
        assert len(curve) <= limit
    assert (123.0, 9000) in curve
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(curve)]
    assert max(gaps) <= 8 * 50_000 / limit
    assert (curve[0][0], curve[-1][0]) == (0.0, 49_999.0)


def test_readings_of_one_instant_are_thinned_too() -> None:
    """A clock that stands still does not let a curve grow for ever."""
    curve: Curve = []
    for n in range(10_000):
        remember(curve, 1.0, n, limit=100, changes_only=False)
    assert len(curve) <= 100
    assert (1.0, 9999) in curve


def test_a_steady_run_is_one_reading() -> None:
    """Where only changes are kept, memory that does not change costs none."""
    curve: Curve = []
    for second in range(10_000):
        remember(curve, float(second), 700, limit=100, changes_only=True)
    assert curve == [(0.0, 700)]
    assert quantiles(curve, 10_000.0, top_mib=700) == [700] * 11


def test_the_steps_of_a_run() -> None:
    """Each tenth of a run says the most that was held in it, then comes the maximum."""
    curve = [(0.0, 0), (10.0, 500), (55.0, 2000), (60.0, 700)]
    assert steps(curve, 0.0, 100.0, top_mib=2100) == [
        *(0, 500, 500, 500, 500, 2000, 700, 700, 700, 700),
        2100,
    ]
    assert steps([], 0.0, 100.0, top_mib=5) == []
    assert steps(curve, 0.0, 0.0, top_mib=5) == []


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 9000)), min_size=1, max_size=20),
    st.floats(0.01, 60),
)
def test_steps_leave_no_peak_out(readings: list[tuple[float, int]], after_s: float) -> None:
    """The maximum of the curve is in one of the steps, and none says more than it."""
    curve = sorted(readings)
    found = steps(curve, curve[0][0], curve[-1][0] + after_s, top_mib=0)
    assert len(found) == 11
    assert max(found[:-1]) == found[-1] == max(mib for _, mib in curve)
