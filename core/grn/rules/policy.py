"""Which devices to take among those that fit: `spread` (most room) or `pack` (least room).

A policy is one small pure function: it gives each device that fits a number, and those with the
least are taken. A device fits or does not before this module sees it; an exact fit is a fit. Equal
numbers go to the device that comes first in the broker's mask.

Several devices for one job are taken near to each other where the driver tells how far they are
(see `topology`); among those the policy chooses. Where it does not, the policy chooses, and of equal
ones those that are numbered in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from grn.rules.model import Policy
from grn.rules.policyname import canonical
from grn.rules.topology import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn.rules.model import Device

__all__ = ["BUILT_IN", "Room", "choose", "named", "pack", "spread"]


class Room(Protocol):
    """What a policy may look at: one device with room for the job. All sizes in MiB."""

    @property
    def device(self) -> Device:
        """Its UUID, index, model and sizes."""
        ...

    @property
    def position(self) -> int:
        """Its place in the broker's mask, from 0."""
        ...

    @property
    def free_mib(self) -> int:
        """What can be granted now."""
        ...

    @property
    def room_mib(self) -> int:
        """What leases may take in all."""
        ...

    @property
    def booked_mib(self) -> int:
        """What is set aside for leases."""
        ...

    @property
    def measured_mib(self) -> int:
        """What the processes of leases were last seen to hold."""
        ...

    @property
    def compute_booked(self) -> int:
        """Percent of the multiprocessors that leases have booked."""
        ...

    @property
    def utilisation(self) -> int | None:
        """Percent of the last moment in which the device was busy; `None`: its driver does not say."""
        ...


def spread(room: Room) -> float:
    """Prefer the device with most room: jobs get in each other's way least."""
    return -room.free_mib


def pack(room: Room) -> float:
    """Prefer the device with least room: what is empty stays so, for jobs that need all of it."""
    return room.free_mib


BUILT_IN: Mapping[str, Callable[[Room], float]] = {Policy.SPREAD: spread, Policy.PACK: pack}


def named(name: str) -> str:
    """Return a policy's one name; others than ours stay as they are."""
    name = canonical(name)
    return Policy(name) if name in BUILT_IN else name


def choose(
    rooms: Sequence[Room],
    count: int,
    key: Callable[[Room], float],
    distances: Mapping[tuple[str, str], int] | None = None,
) -> list[int] | None:
    """Pick `count` of the devices that fit; their positions come back in mask order.

    Returns `None` when fewer than `count` fit: several devices are granted all or not at all.
    """
    if len(rooms) < count:
        return None
    if count == 1:
        return [_first(rooms, key)]
    ranked = sorted(rooms, key=lambda room: (key(room), room.position))
    if distances and len(rooms) > count:
        uuids = [room.device.uuid for room in ranked]
        return sorted(ranked[place].position for place in nearest(uuids, count, distances))
    return sorted(_in_a_row(ranked, count, key))


def _first(rooms: Sequence[Room], key: Callable[[Room], float]) -> int:
    """Return the position of the one that comes first; decided for nearly every request."""
    values = [key(room) for room in rooms]
    least = min(values)
    return min([room.position for room, value in zip(rooms, values, strict=True) if value == least])


def _in_a_row(ranked: Sequence[Room], count: int, key: Callable[[Room], float]) -> list[int]:
    """Return the first `count`; of those that are equal at the end, the ones nearest by number."""
    last = key(ranked[count - 1])
    certain = [room.position for room in ranked if key(room) < last]
    equal = [room.position for room in ranked if key(room) == last]
    missing = count - len(certain)
    windows = (equal[at : at + missing] for at in range(len(equal) - missing + 1))

    def span(window: list[int]) -> int:
        taken = certain + window
        return max(taken) - min(taken)

    return certain + min(windows, key=span)
