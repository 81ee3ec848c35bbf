"""This shell's variables: the device mask as CUDA reads it, and what else decides about devices. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor.finding import Finding, note, ok, problem
from grn.rules.mask import mask_style

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.doctor.facts import Facts

__all__ = ["findings"]

_MASK, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
_ORDERS = ("FASTEST_FIRST", "PCI_BUS_ID")
_ABOUT = "mask"


def findings(facts: Facts) -> Iterator[Finding]:
    """Say what this shell's mask leaves and how its numbers are counted."""
    lease = facts.environ.get("GRN_LEASE")
    if lease is not None:
        yield note(
            _ABOUT,
            f"this shell runs inside lease {lease}: its mask is what the lease was given",
            "for the whole machine, ask from a shell outside of it",
        )
    yield from _mask(facts)
    yield from _order(facts)


def _mask(facts: Facts) -> Iterator[Finding]:
    mask = facts.environ.get(_MASK)
    if mask is None:
        yield ok(_ABOUT, f"{_MASK} is not set: all devices")
        return
    places = [str(info.index) for info in facts.seen.devices]
    left = f"leaves device{'s' if len(places) > 1 else ''} {', '.join(places)}"
    reasons = facts.seen.mask_notes
    hides_all = not mask.strip() or mask.strip() == "NoDevFiles"
    if hides_all:
        yield note(
            _ABOUT,
            f"{_MASK}={mask!r} hides every device from what is started here, a broker too",
            f"unset {_MASK}",
        )
    elif reasons:
        then = left if places else "no device is left"
        do = f"correct or unset {_MASK}; `nvidia-smi -L` lists numbers and UUIDs"
        for reason in reasons:
            yield problem(_ABOUT, f"{reason} ({_MASK}={mask!r}; {then})", do)
    elif not places:
        yield note(_ABOUT, f"{_MASK}={mask!r}, and there are no devices here")
    else:
        yield ok(_ABOUT, f"{_MASK}={mask!r} (by {_SPELLED[mask_style(mask)]}) {left}")


_SPELLED = {"index": "number", "uuid": "UUID"}


def _order(facts: Facts) -> Iterator[Finding]:
    order = facts.environ.get(_ORDER)
    mask = facts.environ.get(_MASK)
    if order is not None and order not in _ORDERS:
        yield note(_ABOUT, f"{_ORDER}={order!r} is none of {', '.join(_ORDERS)}", f"unset {_ORDER}")
        return
    names = {card.name for card in facts.driver.inventory.cards if card.name}
    by_number = mask is not None and bool(mask.strip()) and mask_style(mask) == "index"
    if order != "PCI_BUS_ID" and by_number and len(names) > 1:
        yield note(
            _ABOUT,
            f"{_MASK} names cards by number, the cards differ and {_ORDER} is"
            f" {order or 'not set'}: to CUDA 0 is the fastest card, to GRN and nvidia-smi the"
            " first on the bus",
            f"export {_ORDER}=PCI_BUS_ID, or name cards by UUID; jobs of GRN get PCI_BUS_ID",
        )
    elif order is not None:
        yield ok(_ABOUT, f"{_ORDER}={order}; jobs of GRN get PCI_BUS_ID")
