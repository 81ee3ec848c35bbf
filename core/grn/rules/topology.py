"""How far devices are from each other, and which of them are nearest together.

Distances are what a driver tells of two devices: 0 over NVLink, else the level of what they have in
common (NVML's `nvmlGpuTopologyLevel_t`): 10 one board, 20 one PCIe switch, 30 several, 40 one host
bridge, 50 one NUMA node's or the whole system's interconnect.

What many devices do together is as slow as their slowest link, so the worst one decides, then the sum.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from grn.rules.model import Device

__all__ = ["NVLINK", "UNTOLD", "distances", "nearest"]

NVLINK = 0
UNTOLD = 60
"""The distance of two devices of which nothing is told: farther than any that is."""

_MOST_SETS = 2000
"""So many sets are looked at one by one; of more, only those that grow around each device."""

_Cost = tuple[int, int, int]


def distances(devices: Iterable[Device]) -> dict[tuple[str, str], int]:
    """Return what is told, by (UUID, UUID), each pair both ways round; empty if nothing is."""
    found: dict[tuple[str, str], int] = {}
    for device in devices:
        for other, distance in device.links:
            for pair in ((device.uuid, other), (other, device.uuid)):
                found[pair] = min(distance, found.get(pair, distance))
    return found


def nearest(
    uuids: Sequence[str], count: int, far: Mapping[tuple[str, str], int]
) -> tuple[int, ...]:
    """Return which `count` of the devices are nearest together, as places in `uuids`, ascending.

    Of sets that are equally near the one is taken whose devices come first: `uuids` are in the order
    in which they are preferred.
    """
    table = [[far.get((a, b), UNTOLD) for b in uuids] for a in uuids]
    if comb(len(uuids), count) <= _MOST_SETS:
        sets: Iterable[tuple[int, ...]] = combinations(range(len(uuids)), count)
    else:
        sets = (_grown(seed, count, table) for seed in range(len(uuids)))
    return min(sets, key=lambda places: (*_cost(places, table), places))


def _cost(places: Sequence[int], table: Sequence[Sequence[int]]) -> _Cost:
    links = [table[a][b] for a, b in combinations(places, 2)]
    return max(links), sum(links), sum(places)


def _grown(seed: int, count: int, table: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Add to a device the nearest one at a time."""
    places = [seed]
    others = [place for place in range(len(table)) if place != seed]
    while len(places) < count:
        best = min(
            others,
            key=lambda place: (
                max(table[place][taken] for taken in places),
                sum(table[place][taken] for taken in places),
                place,
            ),
        )
        others.remove(best)
        places.append(best)
    return tuple(sorted(places))
