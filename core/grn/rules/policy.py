"""Which devices to take among those that fit: `spread` (most room) or `pack` (least room).

A device fits or does not before this module sees it; an exact fit is a fit. Equal room goes to the
device that comes first in the broker's mask.
"""

from __future__ import annotations

from grn.rules.model import Policy

__all__ = ["choose"]


def choose(fitting: list[tuple[int, int]], count: int, policy: Policy) -> list[int] | None:
    """Pick `count` of the `(position, free MiB)` pairs; positions come back in mask order.

    Returns `None` when fewer than `count` fit: several devices are granted all or not at all.
    """
    if len(fitting) < count:
        return None
    sign = -1 if policy is Policy.SPREAD else 1
    if count == 1:
        return [_best(fitting, sign)]
    ranked = sorted(fitting, key=lambda pair: (sign * pair[1], pair[0]))
    return sorted(position for position, _ in ranked[:count])


def _best(fitting: list[tuple[int, int]], sign: int) -> int:
    best, least = -1, 0
    for position, free in fitting:
        rank = sign * free
        if best < 0 or rank < least or (rank == least and position < best):
            best, least = position, rank
    return best
