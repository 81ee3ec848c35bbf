"""Looks at an NVIDIA driver without a broker: cards, what they hold, whose they are.

Promises: bounded, since every question is asked by a process of its own (see `grn.devices.nvml`);
claims nothing and changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from typing import TYPE_CHECKING, Any

from grn.devices.base import DeviceReading
from grn.devices.claim import claimed_by
from grn.devices.nvml.nursery import Nursery
from grn.devices.nvml.opening import WITHIN_S, find_cards
from grn.devices.nvml.readings import readings_from
from grn.doctor.asking import ask
from grn.doctor.facts import DriverFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from grn.devices.base import State
    from grn.devices.nvml.found import Card, Inventory
    from grn.devices.nvml.nursery import Worker

__all__ = ["look"]

ANSWER_WITHIN_S = 3.0
_LDCONFIG_WITHIN_S = 2.0
_LIBRARY = "libnvidia-ml.so.1"
_WSL = "/usr/lib/wsl/lib"
_MODULE = "/proc/driver/nvidia/version"
_BUS = "/sys/bus/pci/devices"
_NVIDIA, _DISPLAY = "0x10de", "0x03"


def look(*, within_s: float = WITHIN_S, managed: Collection[str] = ()) -> DriverFacts:
    """Ask the driver once; of `managed` devices our broker is known to have the claim."""
    nursery = Nursery()
    with _stderr_kept_back():
        try:
            inventory, workers = find_cards(nursery, within_s)
            readings = _read_all(inventory, workers, time.monotonic() + ANSWER_WITHIN_S)
        finally:
            nursery.close()
    uuids = [device.uuid for card in inventory.cards for device in card.devices]
    asked = {uuid: claimed_by(uuid) for uuid in uuids if uuid not in managed}
    return DriverFacts(
        inventory,
        readings,
        library=_library_path(),
        module_version=_module_version(),
        cards_on_bus=_cards_on_bus(),
        claimed={uuid: who for uuid, who in asked.items() if who is not None},
    )


@contextlib.contextmanager
def _stderr_kept_back() -> Iterator[None]:
    """Let no process that may hang in the driver for ever keep our caller's pipe open."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed, so nobody waits for its end
        yield
        return
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _read_all(
    inventory: Inventory, workers: Mapping[int, Worker], until_s: float
) -> dict[str, DeviceReading]:
    """Ask each card's worker once; return the readings of those that answered in time."""
    cards = {card.index: card for card in inventory.cards}
    waiting = dict(workers)
    for worker in workers.values():
        worker.channel.send({"number": 1, "health": True})
    found: dict[str, DeviceReading] = {}
    while waiting and (left := until_s - time.monotonic()) > 0:
        channels = {worker.channel: index for index, worker in waiting.items()}
        ready, _, _ = select.select(list(channels), [], [], left)
        for channel in ready:
            messages = channel.receive()
            for message in messages:
                found |= _readings(cards[channels[channel]], message)
            if messages or channel.ended:
                del waiting[channels[channel]]
    return found


def _readings(card: Card, message: Mapping[str, Any]) -> dict[str, DeviceReading]:
    uuids = [device.uuid for device in card.devices]
    if "answer" in message:
        return readings_from(uuids, message)
    state: State = "lost" if message["trouble"] == "lost" else "stale"
    return {uuid: DeviceReading(uuid, state, message["reason"]) for uuid in uuids}


def _library_path() -> str | None:
    """Say which library the linker finds, with the version that its file's name tells."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for folder in [*folders, _WSL]:
        if os.path.exists(os.path.join(folder, _LIBRARY)):
            return os.path.realpath(os.path.join(folder, _LIBRARY))
    ldconfig = next(filter(os.path.exists, ("/sbin/ldconfig", "/usr/sbin/ldconfig")), None)
    listed = ask([ldconfig, "-p"], _LDCONFIG_WITHIN_S) if ldconfig else None
    for line in (listed or "").splitlines():
        name, _, path = line.partition(" => ")
        if name.split()[:1] == [_LIBRARY] and os.path.exists(path):
            return os.path.realpath(path)
    return None


def _module_version() -> str | None:
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _text(_MODULE))
    return found.group() if found else None


def _cards_on_bus() -> int:
    try:
        slots = os.listdir(_BUS)
    except OSError:
        return 0
    return sum(
        _text(f"{_BUS}/{slot}/vendor").strip() == _NVIDIA
        and _text(f"{_BUS}/{slot}/class").startswith(_DISPLAY)
        for slot in slots
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
