"""What was found on this machine: cards and their devices, also those that will not be managed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Card", "FoundDevice", "Inventory", "card_from"]

_PROHIBITED = 2
_EXCLUSIVE = (1, 3)


class FoundDevice(NamedTuple):
    """One thing that a job could be given: a card that is not divided, or a slice of one."""

    uuid: str
    name: str
    total_mib: int
    reserve_mib: int
    shares_ram: bool
    capabilities: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One card in the driver's order, which is that of the bus."""

    index: int
    """The driver's number for it (`nvidia-smi`)."""
    problem: str = ""
    """Why it cannot be used at all; then nothing else is known of it."""
    denied: bool = False
    """Whether that is because this user may not open it. CUDA does not count it either."""
    uuid: str = ""
    name: str = ""
    bus_id: str | None = None
    mode: int | None = None
    """The compute mode."""
    divided: bool = False
    """Whether MIG is on. Then the devices are its slices, if it has any."""
    devices: tuple[FoundDevice, ...] = ()

    @property
    def prohibited(self) -> bool:
        """Whether its compute mode lets no program use it."""
        return self.mode == _PROHIBITED

    @property
    def exclusive(self) -> bool:
        """Whether its compute mode lets one process use it at a time."""
        return self.mode in _EXCLUSIVE

    @property
    def address(self) -> dict[str, Any]:
        """How a worker finds it again."""
        return {"uuid": self.uuid, "bus": self.bus_id}


class Inventory(NamedTuple):
    """What the driver said of the machine. `problem`: why it could not be asked."""

    problem: str = ""
    driver: str | None = None
    cuda: str | None = None
    cards: tuple[Card, ...] = ()
    pairs: tuple[tuple[str, str, int], ...] = ()
    """(UUID, UUID, distance) of cards, as far as the driver tells; see `rules.topology`."""


def card_from(index: int, told: Mapping[str, Any] | None, within_s: float) -> Card:
    """Read what a worker told first about its card; None: it told nothing in time."""
    if told is None:
        return Card(index, f"the driver did not answer for it within {within_s:g} s: is it stuck?")
    if "trouble" in told:
        return Card(index, told["reason"], denied=told["trouble"] == "denied")
    card = told["card"]
    return Card(
        index,
        uuid=card["uuid"],
        name=card["name"],
        bus_id=card["bus"],
        mode=card["mode"],
        divided=card["divided"],
        devices=tuple(_device_from(device) for device in card["devices"]),
    )


def _device_from(device: Mapping[str, Any]) -> FoundDevice:
    return FoundDevice(
        uuid=device["uuid"],
        name=device["name"],
        total_mib=device["total"],
        reserve_mib=device["reserved"],
        shares_ram=device["shares_ram"],
        capabilities=tuple((query, answer) for query, answer in device["capabilities"]),
    )
