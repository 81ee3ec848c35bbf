"""Spread takes the device with most room, pack the one with least that still fits."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.model import Policy
from grn.rules.policy import BUILT_IN, Room, named
from grn.rules.policy import choose as choose_by


class Fitting(NamedTuple):
    """A device with room, as far as the two policies look at it."""

    position: int
    free_mib: int


def choose(fitting: list[tuple[int, int]], count: int, policy: Policy) -> list[int] | None:
    """Choose by one of the built-in policies."""
    rooms = cast("list[Room]", [Fitting(*pair) for pair in fitting])
    return choose_by(rooms, count, BUILT_IN[policy])


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("spread", Policy.SPREAD),
        ("high-performance", Policy.SPREAD),
        ("pack", Policy.PACK),
        ("cost-saving", Policy.PACK),
    ],
)
def test_each_policy_has_one_name(name: str, own: Policy) -> None:
    """The names that some know are ours; others' stay as they are."""
    assert named(name) is own
    assert named("my-lab") == "my-lab"


FITTING = st.lists(st.integers(0, 20), max_size=6).map(lambda frees: list(enumerate(frees)))


@pytest.mark.parametrize(
    ("policy", "position"), [(Policy.SPREAD, 2), (Policy.PACK, 1)], ids=["spread", "pack"]
)
def test_most_room_or_least_room(policy: Policy, position: int) -> None:
    """Spread chooses the emptiest device that fits, pack the fullest."""
    assert choose([(0, 8000), (1, 5000), (2, 10000)], 1, policy) == [position]


@pytest.mark.parametrize("policy", list(Policy))
def test_equal_room_goes_in_mask_order(policy: Policy) -> None:
    """Of equal devices the first in the broker's mask is taken, by either policy."""
    assert choose([(1, 500), (2, 500), (0, 500)], 1, policy) == [0]
    assert choose([(0, 500), (2, 500), (1, 500)], 1, policy) == [0]


@pytest.mark.parametrize("policy", list(Policy))
def test_a_single_device_is_chosen_by_either_policy(policy: Policy) -> None:
    """With one fitting device both policies take it, also when nothing would be left on it."""
    assert choose([(0, 0)], 1, policy) == [0]


@pytest.mark.parametrize("policy", list(Policy))
def test_too_few_devices_are_none(policy: Policy) -> None:
    """Several devices are chosen together or not at all."""
    assert choose([(0, 500)], 2, policy) is None
    assert choose([], 1, policy) is None


def test_several_devices_come_back_in_mask_order() -> None:
    """The order of a lease's devices is the mask's, not that of their room."""
    assert choose([(0, 100), (1, 900), (2, 500)], 2, Policy.SPREAD) == [1, 2]
    assert choose([(0, 500), (1, 900), (2, 100)], 2, Policy.PACK) == [0, 2]


@given(fitting=FITTING, wanted=st.integers(1, 6), policy=st.sampled_from(list(Policy)))
def test_no_other_choice_would_be_better(
    fitting: list[tuple[int, int]], wanted: int, policy: Policy
) -> None:
    """Among all ways to choose, the one taken has the most (spread) or least (pack) room."""
    chosen = choose(fitting, wanted, policy)
    ways = [[free for _, free in way] for way in combinations(fitting, wanted)]
    if chosen is None:
        assert not ways
        return
    rooms = sum(dict(fitting)[position] for position in chosen)
    best = max if policy is Policy.SPREAD else min
    assert rooms == best(sum(way) for way in ways)
    assert len(set(chosen)) == wanted
