"""Which of the cards found are managed: the broker's mask, compute modes, MIG.

A mask of numbers means what CUDA makes of it. With MIG on a card CUDA shows a program one slice and
nothing else, so numbers cannot say which device is meant (NVIDIA's MIG guide, "Device enumeration");
a card that is lost may or may not be counted. Where a number is not certain it is refused, with the
way out: UUIDs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grn.devices.base import DeviceInfo
from grn.rules.mask import mask_style, parse_mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from grn.devices.nvml.found import Card, FoundDevice

__all__ = ["Choice", "choose", "choose_all"]

_BY_UUID = "name devices by UUID (nvidia-smi -L)"


class Choice(NamedTuple):
    """Devices in the order of the mask, each with its card, and what was left out and why."""

    devices: tuple[tuple[DeviceInfo, Card], ...]
    notes: tuple[str, ...] = ()
    numbers_differ: str = ""
    """Why a job cannot be told its devices by number; '' if it can."""
    about_mask: tuple[str, ...] = ()
    """Those of the notes that say how the mask was read."""


class _Offer(NamedTuple):
    """What a mask can name. `device` is None for a card that is divided: its slices have names."""

    uuid: str
    place: int
    card: Card
    device: FoundDevice | None


def choose(cards: Sequence[Card], mask: str | None) -> Choice:
    """Choose from the cards, which come in the driver's order."""
    offers, notes, about_mask = _offers(cards), [*_problems(cards)], []
    numbers_differ = "; ".join(_numbering(cards))
    if mask is None:
        offers = [offer for offer in offers if offer.device is not None]
    elif mask.strip() and mask_style(mask) == "index":
        offers, cut = _by_number(cards, offers)
        if cut:
            about_mask.append(cut)
        if cut and not offers:
            return Choice((), (*notes, cut), numbers_differ, (cut,))
    chosen = parse_mask(mask, [offer.uuid for offer in offers])
    about_mask += [chosen.reason] if chosen.reason else []
    found = [offers[position] for position in chosen.indices]
    return Choice(
        tuple((_info(o, o.device), o.card) for o in found if o.device and _usable(o)),
        (*notes, *about_mask, *_unusable(found)),
        numbers_differ,
        tuple(about_mask),
    )


def choose_all(cards: Sequence[Card], masks: Sequence[str | None]) -> Choice:
    """Choose what any of the masks names, in their order.

    The first is the broker's own, the others are of clients: how theirs were read concerns nobody
    else, nor does how its own was, once it hides all and theirs do not.
    """
    choices = [choose(cards, mask) for mask in masks]
    own = choices[0]
    devices = {info.uuid: (info, card) for choice in choices for info, card in choice.devices}
    told = own.about_mask if own.devices or not devices else ()
    notes = [
        note
        for choice in choices
        for note in choice.notes
        if note not in choice.about_mask or (choice is own and note in told)
    ]
    return Choice(tuple(devices.values()), tuple(dict.fromkeys(notes)), own.numbers_differ, told)


def _offers(cards: Sequence[Card]) -> list[_Offer]:
    """List devices in bus order. A place is that among the cards that CUDA can see."""
    offers = []
    for place, card in enumerate(card for card in cards if not card.denied):
        if card.problem:
            continue
        if card.divided:
            offers.append(_Offer(card.uuid, place, card, None))
        offers += [_Offer(device.uuid, place, card, device) for device in card.devices]
    return offers


def _by_number(cards: Sequence[Card], offers: list[_Offer]) -> tuple[list[_Offer], str]:
    """Return what numbers can name for certain, and why they cannot name the rest."""
    names = "CUDA_VISIBLE_DEVICES names devices by number"
    divided = [card.index for card in cards if card.divided]
    devices = [offer for offer in offers if offer.device is not None]
    if divided and len(devices) != 1:
        return [], (
            f"{names}, but MIG divides card {divided[0]}, and CUDA then counts one slice and"
            f" nothing else: {_BY_UUID}"
        )
    for place, card in enumerate(card for card in cards if not card.denied):
        if card.problem:
            certain = [offer for offer in devices if offer.place < place]
            if len(certain) == len(devices):
                break
            return certain, (
                f"{names}, which is not certain from {place} on, since card {card.index} cannot be"
                f" used: {_BY_UUID}"
            )
    return devices, ""


def _numbering(cards: Iterable[Card]) -> Iterator[str]:
    for card in cards:
        if card.divided:
            yield f"card {card.index} is divided by MIG"
        elif card.problem and not card.denied:
            yield f"card {card.index} cannot be used"
        elif card.prohibited:
            yield f"card {card.index} is in prohibited compute mode"


def _problems(cards: Iterable[Card]) -> Iterator[str]:
    for card in cards:
        if card.denied:
            yield f"card {card.index} is not ours: {card.problem}"
        elif card.problem:
            yield f"card {card.index} is not managed: {card.problem}"
        elif card.divided and not card.devices:
            yield f"card {card.index} has MIG on and no slices: create some, or turn MIG off"


def _usable(offer: _Offer) -> bool:
    device = offer.device
    return device is not None and not offer.card.prohibited and device.total_mib > 0


def _unusable(found: Iterable[_Offer]) -> Iterator[str]:
    """Say why devices that the mask left are not managed all the same."""
    said = set()
    for offer in found:
        card, device = offer.card, offer.device
        if device is None and card.devices:
            slices = ", ".join(part.uuid for part in card.devices)
            said.add(f"{card.uuid} is divided by MIG: name its slices ({slices})")
        elif device is not None and card.prohibited:
            said.add(f"card {card.index} is in prohibited compute mode")
        elif device is not None and device.total_mib <= 0:
            said.add(f"{device.uuid} does not tell its memory")
    yield from sorted(said)


def _info(offer: _Offer, device: FoundDevice) -> DeviceInfo:
    card = offer.card
    return DeviceInfo(
        offer.place,
        device.uuid,
        device.name,
        device.total_mib,
        device.reserve_mib,
        card.uuid if card.divided else None,
        exclusive_process=card.exclusive,
        shares_ram=device.shares_ram,
        bus_id=card.bus_id,
        capabilities=device.capabilities,
    )
