"""The curve of a run's memory: readings kept within a bound, and what they show.

A curve is a list of (seconds, MiB); a reading holds until the next one. So a run of days is kept in
as many readings as one of a minute, and what is said of it weighs by time, not by number.
"""

from __future__ import annotations

from math import ceil, log2

__all__ = [
    "LEAST_READINGS",
    "QUANTILES",
    "has_cycles",
    "is_large",
    "is_preallocation",
    "quantiles",
    "remember",
]

Curve = list[tuple[float, int]]

QUANTILES = tuple(range(0, 101, 10))
"""Percent of the time, from the least that was held to the most."""

_SIMILAR = 0.05
_DIP = 0.10
_CYCLES = 3
LEAST_READINGS = 3
"""Fewer do not tell what a curve looks like."""
_PREALLOCATED_SHARE = 0.70
_BOOT_S = 1.0
"""From the first memory (a context) to what a framework takes at once."""
_JUST_ENDED_S = 1.0
"""A fall to nothing this short before the end is the end of its processes."""


def remember(curve: Curve, now: float, mib: int, *, limit: int, changes_only: bool) -> None:
    """Add a reading. Beyond `limit` older ones are thinned out evenly; the maximum stays."""
    if changes_only and curve and curve[-1][1] == mib:
        return
    if len(curve) >= limit:
        curve[:] = _thinned(curve, limit // 2 - 2)
    curve.append((now, mib))


def _thinned(curve: Curve, slots: int) -> Curve:
    """Keep the first reading of each of so many equal spans of time, the maximum, and the last.

    The spans are a power of two, so that the next time finds them where they were: borders that
    wander would leave holes.
    """
    began, ended = curve[0][0], curve[-1][0]
    span = 2.0 ** ceil(log2((ended - began) / slots)) if ended > began else 0.0
    top = max(curve, key=lambda reading: reading[1])
    kept: Curve = []
    slot = -1
    for reading in curve:
        here = int((reading[0] - began) / span) if span else 0
        if here > slot or reading is top:
            kept.append(reading)
            slot = here
    if kept[-1] is not curve[-1]:
        kept.append(curve[-1])
    return kept


def quantiles(curve: Curve, ended_s: float, *, top_mib: int) -> list[int]:
    """Return what was held at most during 0, 10 ... 100 % of the time; `[]` for an empty curve.

    The last one is at least `top_mib`: the maximum is known also where readings were left out.
    """
    if not curve:
        return []
    if len(curve) == 1:
        mib = curve[0][1]
        return [*[mib] * (len(QUANTILES) - 1), max(top_mib, mib)]
    held = _weighed(curve, ended_s)
    total = sum(weight for _, weight in held)
    found: list[int] = []
    mib, passed, rest = 0, 0.0, iter(held)
    for percent in QUANTILES[:-1]:
        while passed <= 0 or passed < total * percent / 100:
            mib, weight = next(rest, (mib, total))  # nothing left: sums of floats are not exact
            passed += weight
        found.append(mib)
    return [*found, max(top_mib, held[-1][0])]


def _weighed(curve: Curve, ended_s: float) -> list[tuple[int, float]]:
    """Return what was held and for how long, least first, without the end of its processes."""
    if len(curve) > 1 and curve[-1][1] == 0 and ended_s - curve[-1][0] < _JUST_ENDED_S:
        ended_s = curve[-1][0]
        curve = curve[:-1]
    ends = [at for at, _ in curve[1:]] + [ended_s]
    spans = [(mib, end - at) for (at, mib), end in zip(curve, ends, strict=True)]
    lasted = [span for span in spans if span[1] > 0]
    return sorted(lasted or [(mib, 1.0) for mib, _ in spans])


def has_cycles(curve: Curve) -> bool:
    """Tell whether memory rose three times to about its maximum with dips between.

    A training loop that frees between epochs looks like this; its next cycle will look the same.
    """
    top = max((mib for _, mib in curve), default=0)
    if top == 0:
        return False
    cycles, risen = 0, False
    for _, mib in curve:
        if not risen and mib >= top * (1 - _SIMILAR):
            cycles, risen = cycles + 1, True
        elif risen and mib <= top * (1 - _DIP):
            risen = False
    return cycles >= _CYCLES


def is_large(mib: int, total_mib: int) -> bool:
    """Tell whether this is as much of a device as frameworks take that do not wait to be asked."""
    return 0 < total_mib * _PREALLOCATED_SHARE <= mib


def is_preallocation(curve: Curve, total_mib: int) -> bool:
    """Tell whether 70 % of the device were taken as soon as any, and nothing changed since.

    A context comes a moment before what a framework takes; what shrinks, grows on or comes later is
    a job's own need.
    """
    if len(curve) < LEAST_READINGS:
        return False
    held = [reading for reading in curve if reading[1] > 0]
    large = (i for i, (_, mib) in enumerate(held) if is_large(mib, total_mib))
    first = next(large, len(held))
    taken = [mib for _, mib in held[first:]]
    if len(taken) < LEAST_READINGS or held[first][0] - held[0][0] > _BOOT_S:
        return False
    return min(taken) >= taken[0] * (1 - _SIMILAR) and max(taken) <= taken[0] * (1 + _SIMILAR)
