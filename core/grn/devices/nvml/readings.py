"""A worker's answer as readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.devices.base import DeviceReading, HealthReading, ProcessUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["readings_from"]


def readings_from(order: Sequence[str], answer: Mapping[str, Any]) -> dict[str, DeviceReading]:
    """Read the rows of an answer (see `reader.DeviceReader.read`), which come in this order."""
    said = answer.get("health")
    health = None if said is None else HealthReading(*said)
    return {
        uuid: _reading(uuid, row, health) for uuid, row in zip(order, answer["rows"], strict=True)
    }


def _reading(uuid: str, row: Sequence[Any], health: HealthReading | None) -> DeviceReading:
    state, reason, used, flat, servers, accounted, utilisation, xids = row
    processes = None
    if flat is not None:
        processes = tuple(
            ProcessUse(pid, mib, pid in servers)
            for pid, mib in zip(flat[::2], flat[1::2], strict=True)
        )
    pairs = tuple(zip(accounted[::2], accounted[1::2], strict=True))
    return DeviceReading(
        uuid, state, reason, used, processes, pairs, tuple(xids), health, utilisation
    )
