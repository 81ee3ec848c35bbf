"""Several devices for one job are taken near to each other, where their driver tells how far they are."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.model import Device
from grn.rules.policy import BUILT_IN, Room, choose
from grn.rules.topology import NVLINK, UNTOLD, distances, nearest


class Fitting(NamedTuple):
    """A device with room, as far as the two policies look at it."""

    position: int
    free_mib: int
    device: Device


def _device(index: int, links: tuple[tuple[str, int], ...] = ()) -> Device:
    return Device(f"GPU-{index}", index, "Toy", 16384, links=links)


def _machine(pairs: dict[tuple[int, int], int], count: int) -> list[Device]:
    return [
        _device(n, tuple((f"GPU-{b}", far) for (a, b), far in pairs.items() if a == n))
        for n in range(count)
    ]


def _chosen(
    free: list[int], pairs: dict[tuple[int, int], int], count: int, policy: str
) -> list[int]:
    devices = _machine(pairs, len(free))
    rooms = [
        Fitting(n, mib, device) for n, (mib, device) in enumerate(zip(free, devices, strict=True))
    ]
    chosen = choose(cast("list[Room]", rooms), count, BUILT_IN[policy], distances(devices))
    assert chosen is not None
    return chosen


@pytest.mark.parametrize("policy", list(BUILT_IN))
def test_a_pair_over_nvlink_is_taken_by_either_policy(policy: str) -> None:
    """Bandwidth between them is worth more than where room is left."""
    far = dict.fromkeys(combinations(range(4), 2), 40) | {(1, 3): NVLINK}
    assert _chosen([9000, 5000, 8000, 4000], far, 2, policy) == [1, 3]


@pytest.mark.parametrize(("policy", "expected"), [("spread", [2, 3]), ("pack", [0, 1])])
def test_of_equally_near_ones_the_policy_chooses(policy: str, expected: list[int]) -> None:
    """Two NVLink pairs: the emptier or the fuller one."""
    far = dict.fromkeys(combinations(range(4), 2), 50) | {(0, 1): NVLINK, (2, 3): NVLINK}
    assert _chosen([4000, 4000, 9000, 9000], far, 2, policy) == expected


def test_the_slowest_link_decides_before_the_sum() -> None:
    """One pair across the system slows all of them down, however near the others are."""
    far = {
        **dict.fromkeys(combinations(range(5), 2), 50),
        (0, 1): NVLINK,
        (0, 2): NVLINK,
        (1, 2): 50,
        **dict.fromkeys(combinations((2, 3, 4), 2), 20),
    }
    assert _chosen([8000] * 5, far, 3, "spread") == [2, 3, 4]


def test_a_pair_of_which_nothing_is_told_is_the_farthest() -> None:
    """A driver that is silent on one pair does not make it near."""
    assert _chosen([8000] * 3, {(1, 2): 50}, 2, "spread") == [1, 2]
    assert UNTOLD > 50


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        ([9, 8, 1, 8, 8], 3, [0, 1, 3]),  # the emptiest, and those next to it
        ([8, 1, 8, 8], 2, [2, 3]),
        ([8, 8, 1, 8], 2, [0, 1]),
        ([9, 1, 9, 1, 9], 2, [0, 2]),
    ],
)
def test_without_distances_equal_devices_are_taken_in_a_row(
    free: list[int], count: int, expected: list[int]
) -> None:
    """Cards that are numbered in a row mostly share a switch; room comes first all the same."""
    assert _chosen(free, {}, count, "spread") == expected


@given(
    count=st.integers(2, 4),
    levels=st.lists(st.sampled_from((0, 10, 20, 30, 40, 50, 60)), min_size=15, max_size=15),
)
def test_no_other_set_is_nearer(count: int, levels: list[int]) -> None:
    """What is found has the best worst link, and of those the least sum."""
    uuids = [f"GPU-{n}" for n in range(6)]
    far = {}
    for (a, b), level in zip(combinations(uuids, 2), levels, strict=True):
        far[a, b] = far[b, a] = level

    def cost(places: tuple[int, ...]) -> tuple[int, int]:
        links = [far[uuids[a], uuids[b]] for a, b in combinations(places, 2)]
        return max(links), sum(links)

    found = nearest(uuids, count, far)
    assert cost(found) == min(map(cost, combinations(range(6), count)))


def test_many_devices_are_grown_around_each_one() -> None:
    """With more sets than can be looked at, eight cards of one switch are still found among 24."""
    uuids = [f"GPU-{n}" for n in range(24)]
    far = {
        (a, b): 20 if int(a[4:]) % 3 == int(b[4:]) % 3 == 1 else 50
        for a in uuids
        for b in uuids
        if a != b
    }
    assert nearest(uuids, 8, far) == tuple(range(1, 24, 3))
