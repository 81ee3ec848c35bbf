"""What a client's mask shows of the managed devices, and whether it may name more."""

from __future__ import annotations

import pytest

from grn.rules.visible import names_more, shown_by
from tests.rules.acting import devices

MANAGED = devices([8000, 8000, 8000, 8000], order=[2, 0])


@pytest.mark.parametrize(
    ("mask", "shown", "more"),
    [
        (None, None, True),
        ("0", {0}, False),
        ("2,0", {0, 2}, False),
        ("1", set(), True),
        ("0,1", {0}, True),
        ("0,3", {0}, True),
        ("3,0", set(), True),
        ("GPU-0002", {2}, False),
        ("GPU-0000,GPU-0001", {0}, True),
    ],
)
def test_a_mask_is_read_by_the_machines_numbers(
    mask: str | None, shown: set[int] | None, *, more: bool
) -> None:
    """Of what it names only managed devices are shown; anything else may be a device all the same."""
    uuids = None if shown is None else {f"GPU-{index:04d}" for index in shown}
    assert shown_by(mask, MANAGED) == uuids
    assert names_more(mask, MANAGED) is more


def test_without_devices_every_mask_may_name_one() -> None:
    """Nothing is known yet of how many there are."""
    assert shown_by("0", []) == frozenset()
    assert names_more("0", [])
