"""Which of the managed devices a client's own CUDA_VISIBLE_DEVICES shows it, and whether it names more.

A number in it is a place among all devices of the machine, so it is looked up by the devices' own
numbers; a broker may manage only some of them.

Must not: know why a device is not managed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.mask import mask_style, parse_mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.rules.model import Device

__all__ = ["names_more", "shown_by"]


def shown_by(mask: str | None, devices: Sequence[Device]) -> frozenset[str] | None:
    """Return the managed devices that the mask leaves; `None`: all that there are."""
    return None if mask is None else _read(mask, devices)[0]


def names_more(mask: str | None, devices: Sequence[Device]) -> bool:
    """Whether a device that is not managed may be meant, too."""
    return mask is None or not _read(mask, devices)[1]


def _read(mask: str, devices: Sequence[Device]) -> tuple[frozenset[str], bool]:
    """Return what it names of the devices, and whether that is all that it names."""
    if mask_style(mask) == "uuid":
        named = [device.uuid for device in devices]  # slices of one card share its number
    else:
        named = [""] * (max((device.index for device in devices), default=-1) + 1)
        for device in reversed(devices):  # of slices of one card a number means the first
            named[device.index] = device.uuid
    found = parse_mask(mask, named)
    uuids = frozenset(named[i] for i in found.indices)
    return uuids - {""}, found.reason is None and "" not in uuids
