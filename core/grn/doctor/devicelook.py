"""Which devices a broker started here and now would manage, found without starting one.

Simulated devices are made in a folder of their own that is removed again, so that neither the real
ones nor their lock are touched.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from grn.devices import canonical_spec
from grn.devices.booked import rule_device
from grn.devices.nvml.backend import HEADROOM
from grn.devices.nvml.choice import choose
from grn.devices.simspec import parse_spec
from grn.devices.simulated import SimulatedBackend
from grn.doctor.facts import Seen
from grn.errors import GrnError
from grn.rules.ledger import Book
from grn.rules.model import DeviceState
from grn.rules.report import device_report

if TYPE_CHECKING:
    from typing import Any

    from grn.devices.base import DeviceInfo, DeviceReading
    from grn.doctor.facts import DriverFacts

__all__ = ["device_objects", "see", "wants_driver"]


def wants_driver(spec: str | None) -> bool:
    """Whether these devices, if they are any, are a driver's."""
    return (spec or "auto").strip() in ("auto", "nvml")


def see(spec: str | None, mask: str | None, driver: DriverFacts) -> Seen:
    """Return the devices that this description and this mask leave; a bad one is in `problem`."""
    text = (spec or "auto").strip()
    try:
        canonical_spec(text)
        if text.startswith("sim:"):
            return _simulated(text, mask)
    except (GrnError, OSError) as error:
        return Seen(text, problem=str(error))
    return Seen("none") if text == "none" else _real(mask, driver)


def _real(mask: str | None, driver: DriverFacts) -> Seen:
    found = driver.inventory
    if found.problem or not found.cards:
        reason = found.problem or "the NVIDIA driver lists no card"
        return Seen("none", notes=(reason,))
    choice, unmasked = choose(found.cards, mask), choose(found.cards, None)
    ours = [info for info, _ in choice.devices if info.uuid not in driver.claimed]
    taken = [
        f"{info.uuid} is managed by another broker ({driver.claimed[info.uuid]})"
        for info, _ in choice.devices
        if info.uuid in driver.claimed
    ]
    return Seen(
        "nvml",
        tuple(ours),
        driver.readings,
        HEADROOM,
        notes=(*choice.notes, *taken),
        mask_notes=tuple(text for text in choice.notes if text not in unmasked.notes),
    )


def _simulated(text: str, mask: str | None) -> Seen:
    spec = parse_spec(text)
    apart = spec._replace(directory=None, slow_s=0.0)
    with tempfile.TemporaryDirectory(prefix="grn-look-") as folder:
        backend = SimulatedBackend(apart, masks=(mask,), state_dir=folder)
        try:
            readings = {reading.uuid: reading for reading in backend.read({}, {})}
        finally:
            backend.close()
    notes = tuple(text for text in backend.note.split("; ") if text)
    about_mask = tuple(text for text in notes if "CUDA_VISIBLE_DEVICES" in text)
    return Seen(
        spec.canonical(),
        backend.devices,
        readings,
        backend.headroom_default,
        notes=notes,
        mask_notes=about_mask,
    )


def device_objects(seen: Seen, headroom: tuple[float, int] | None) -> list[dict[str, Any]]:
    """Return the objects that the status of a broker with these devices and no job would have."""
    return [
        _object(position, info, seen.readings.get(info.uuid), seen, headroom)
        for position, info in enumerate(seen.devices)
    ]


def _object(
    position: int,
    info: DeviceInfo,
    reading: DeviceReading | None,
    seen: Seen,
    headroom: tuple[float, int] | None,
) -> dict[str, Any]:
    book = Book(rule_device(info, seen.headroom, headroom), position)
    if reading is None:
        book.state, book.reason = DeviceState.STALE, "the driver did not answer for it in time"
        used = None
    else:
        book.state, book.reason = DeviceState(reading.state), reading.reason
        used = reading.used_mib
    book.foreign_mib = used or 0
    told = device_report(book)
    if used is None:  # unknown is not nothing
        told["foreign_mib"] = told["free_mib"] = None
    return told
