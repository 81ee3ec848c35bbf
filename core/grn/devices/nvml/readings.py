"""A worker's answer as readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.devices.base import BusyReading, DeviceReading, HealthReading, ProcessUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["readings_from"]


def readings_from(order: Sequence[str], answer: Mapping[str, Any]) -> dict[str, DeviceReading]:
    """Read the rows of an answer (see `reader.DeviceReader.read`), which come in this order."""
    said = answer.get("health")
    health = None if said is None else HealthReading(*said)
    rows = answer["rows"]
    busy = answer.get("busy", [None] * len(rows))
    return {
        uuid: _reading(uuid, row, health, _busy(use))
        for uuid, row, use in zip(order, rows, busy, strict=True)
    }


def _busy(use: Sequence[Any] | None) -> BusyReading | None:
    if use is None:
        return None
    percent, flat = use
    return BusyReading(
        percent, None if flat is None else tuple(zip(flat[::2], flat[1::2], strict=True))
    )


def _reading(
    uuid: str, row: Sequence[Any], health: HealthReading | None, busy: BusyReading | None
) -> DeviceReading:
    state, reason, used, flat, servers, accounted, xids = row
    processes = None
    if flat is not None:
        processes = tuple(
            ProcessUse(pid, mib, pid in servers)
            for pid, mib in zip(flat[::2], flat[1::2], strict=True)
        )
    pairs = tuple(zip(accounted[::2], accounted[1::2], strict=True))
    return DeviceReading(uuid, state, reason, used, processes, pairs, tuple(xids), health, busy)
