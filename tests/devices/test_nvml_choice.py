"""Which cards are managed: masks in all spellings, compute modes, MIG, cards that are not ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grn.devices.nvml.choice import choose, choose_all
from grn.devices.nvml.found import Card, FoundDevice

A, B, C = (f"GPU-{letter * 8}-0000" for letter in "abc")
M, N = "MIG-11111111-0000", "MIG-12222222-0000"


def device(uuid: str, total_mib: int = 1000) -> FoundDevice:
    """Return a device of a card."""
    return FoundDevice(uuid, "Toy", total_mib, 0, False, ())


def card(index: int, uuid: str) -> Card:
    """Return a card without anything special."""
    return Card(index, uuid=uuid, name="Toy", bus_id="01", mode=0, devices=(device(uuid),))


PLAIN = (card(0, A), card(1, B), card(2, C))
DIVIDED = (
    card(0, A),
    Card(1, uuid=B, name="Toy", mode=0, divided=True, devices=(device(M), device(N))),
    card(2, C),
)


def chosen(cards: tuple[Card, ...], mask: str | None) -> list[str]:
    """Return the UUIDs that a mask leaves."""
    return [info.uuid for info, _ in choose(cards, mask).devices]


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        (None, [A, B, C]),
        ("2,0", [C, A]),
        (f"{B},{A}", [B, A]),
        ("GPU-cc,GPU-a", [C, A]),
        ("", []),
        ("NoDevFiles", []),
        ("0,7,1", [A]),
        ("0,-1,1", [A]),
        ("1,1", []),
        (f"0,{B}", [A]),
    ],
)
def test_a_mask_leaves_what_cuda_would_show(mask: str | None, left: list[str]) -> None:
    """Numbers, UUIDs and prefixes count as for CUDA, in the mask's order."""
    assert chosen(PLAIN, mask) == left


@pytest.mark.parametrize("mask", ["", "0,7", "1,1", "GPU-zz"])
def test_what_a_mask_cuts_off_is_said(mask: str) -> None:
    """A broker with fewer devices than the machine has says why."""
    assert "CUDA_VISIBLE_DEVICES" in "".join(choose(PLAIN, mask).notes)


def test_devices_keep_their_place_on_the_bus_whatever_the_mask() -> None:
    """`index` counts cards on the bus, not entries of the mask."""
    assert [info.index for info, _ in choose(PLAIN, "2,0").devices] == [2, 0]


def test_a_card_that_is_not_ours_has_no_place() -> None:
    """CUDA does not see a card that this user may not open, so it does not count it."""
    cards = (card(0, A), Card(1, "no permission", denied=True), card(2, C))
    choice = choose(cards, "1")
    assert [(info.uuid, info.index) for info, _ in choice.devices] == [(C, 1)]
    assert "card 1 is not ours" in choice.notes[0]
    assert choice.numbers_differ == ""


def test_slices_stand_for_a_card_that_is_divided() -> None:
    """A card with MIG on is never given out itself; its slices know it and its place."""
    choice = choose(DIVIDED, None)
    found = [(info.uuid, info.index, info.parent) for info, _ in choice.devices]
    assert found == [(A, 0, None), (M, 1, B), (N, 1, B), (C, 2, None)]
    assert "MIG" in choice.numbers_differ


@pytest.mark.parametrize(
    ("mask", "left"), [(f"{N},{M}", [N, M]), ("MIG-12", [N]), (f"{A},{M}", [A, M])]
)
def test_a_mask_names_slices_by_uuid(mask: str, left: list[str]) -> None:
    """MIG UUIDs and unique prefixes of them name slices."""
    assert chosen(DIVIDED, mask) == left


def test_a_mask_that_names_a_divided_card_is_told_its_slices() -> None:
    """It cannot be given out, and what can be is listed."""
    choice = choose(DIVIDED, f"{A},{B}")
    assert [info.uuid for info, _ in choice.devices] == [A]
    assert M in choice.notes[0]


def test_numbers_are_refused_where_mig_makes_them_ambiguous() -> None:
    """With MIG on, CUDA counts one slice and no other card, unlike everybody who wrote a mask."""
    choice = choose(DIVIDED, "0")
    assert choice.devices == ()
    assert "UUID" in choice.notes[-1]


def test_a_number_may_name_the_one_device_there_is() -> None:
    """With a single slice in the machine there is nothing to confuse it with."""
    assert chosen((replace(DIVIDED[1], index=0, devices=(device(M),)),), "0") == [M]


def test_mig_without_slices_is_said() -> None:
    """A card that is set up for slices and has none can run nothing."""
    choice = choose((card(0, A), replace(DIVIDED[1], devices=())), None)
    assert [info.uuid for info, _ in choice.devices] == [A]
    assert "MIG on and no slices" in choice.notes[0]


def test_numbers_are_certain_only_before_a_card_that_is_lost() -> None:
    """CUDA may or may not count a lost card: what comes after it must be named by UUID."""
    cards = (card(0, A), Card(1, "lost"), card(2, C))
    choice = choose(cards, "0,2")
    assert [info.uuid for info, _ in choice.devices] == [A]
    assert "UUID" in " ".join(choice.notes)
    assert chosen(cards, C) == [C]
    assert choice.numbers_differ


def test_compute_modes() -> None:
    """A prohibited card is never managed, and said; an exclusive one is marked."""
    cards = (replace(card(0, A), mode=2), replace(card(1, B), mode=3), card(2, C))
    choice = choose(cards, None)
    found = {info.uuid: info.exclusive_process for info, _ in choice.devices}
    assert found == {B: True, C: False}
    assert "card 0 is in prohibited compute mode" in choice.notes
    assert chosen(cards, "0,1") == [B]


def test_a_device_without_a_size_is_not_managed() -> None:
    """What does not tell how much it has cannot be shared out."""
    choice = choose((card(0, A), replace(card(1, B), devices=(device(B, 0),))), None)
    assert [info.uuid for info, _ in choice.devices] == [A]
    assert B in choice.notes[0]


@pytest.mark.parametrize(
    ("masks", "left", "said"),
    [
        (("2",), [C], ""),
        (("2", None), [C, A, B], ""),
        (("1", "1,0", "2"), [B, A, C], ""),
        (("", "1"), [B], ""),
        (("0,7", "1"), [A, B], "past the last device"),
        (("0", "7"), [A], ""),
        (("", ""), [], "hides every device"),
    ],
)
def test_several_masks_add_up(masks: tuple[str | None, ...], left: list[str], said: str) -> None:
    """The broker's own comes first; nobody is told how a client's mask was read."""
    choice = choose_all(PLAIN, masks)
    assert [info.uuid for info, _ in choice.devices] == left
    assert [said in note for note in choice.notes] == ([True] if said else [])


def test_what_is_wrong_with_cards_is_told_once_under_several_masks() -> None:
    """A card that cannot be used concerns everybody."""
    cards = (card(0, A), Card(1, "it is lost"), card(2, C))
    choice = choose_all(cards, (A, C))
    assert [info.uuid for info, _ in choice.devices] == [A, C]
    assert choice.notes == ("card 1 is not managed: it is lost",)
