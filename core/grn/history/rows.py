"""From leases and events to rows of the history. A row is a map from columns to values.

A row may be partial: what it does not tell, or tells as `None`, another one tells, and `merge` and the
file's writer let neither overwrite the other with nothing.

Must not: read a clock, or touch a file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from grn.rules.curve import steps
from grn.rules.model import LeaseState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grn.rules.model import Device, Lease, Request

__all__ = [
    "COLUMNS",
    "device_row",
    "ended_row",
    "event_row",
    "granted_row",
    "lease_values",
    "merge",
    "restored_row",
    "wished_row",
]

Row = dict[str, Any]

COLUMNS = (
    "id",
    "type",
    "label",
    "uid",
    "pid",
    "engine",
    "policy",
    "priority",
    "gpus",
    "devices",
    "booked_mib",
    "probe",
    "asked_at",
    "granted_at",
    "ended_at",
    "freed_at",
    "waited_s",
    "ran_s",
    "outcome",
    "exit_code",
    "signal",
    "peak_mib",
    "source",
    "cpu_s",
    "rss_mib",
    "curve",
)
"""All columns of a lease but `seq`, which the file gives."""

_OF_AN_END = ("outcome", "exit_code", "signal", "peak_mib", "source", "cpu_s", "rss_mib", "ran_s")


def granted_row(event: Mapping[str, Any], request: Request) -> Row:
    """Return what is known of a lease when it is granted, from its `granted` event."""
    at, waited = event["at"], event["waited_s"]
    return {
        **wished_row(request),
        "id": event["lease"],
        "pid": event["pid"],
        "devices": " ".join(event["devices"]),
        "booked_mib": event["booked_mib"] if event["devices"] else None,
        "probe": int(event["probe"]),
        "asked_at": at - waited,
        "granted_at": at,
        "waited_s": waited,
    }


def wished_row(request: Request) -> Row:
    """Return what was asked for, which every record needs."""
    return {
        "type": _kept(request.type),
        "label": _kept(request.label),
        "uid": request.owner.uid,
        "engine": request.engine or None,
        "policy": str(request.policy),
        "priority": request.priority,
        "gpus": request.gpus,
    }


def ended_row(event: Mapping[str, Any], lease: Lease, ended_s: float) -> Row:
    """Return what an end adds, from its `ended` event; `ended_s` is on the clock of the lease."""
    began_s = lease.started_s if lease.started_s is not None else lease.granted_s
    known = lease.samples and lease.peak_mib
    curve = steps(lease.history, began_s, ended_s, top_mib=lease.peak_mib) if known else []
    return {
        "ended_at": event["at"],
        **{key: event[key] for key in _OF_AN_END},
        "curve": json.dumps(curve, separators=(",", ":")) if curve else None,
    }


def restored_row(lease: Lease) -> Row:
    """Return what a journal tells of a lease, for a history that may have missed a part of it."""
    main = lease.main or lease.request.owner
    end = lease.end
    return {
        **wished_row(lease.request),
        "id": lease.id,
        "pid": main.pid,
        "devices": " ".join(lease.uuids),
        "booked_mib": lease.booked_mib if lease.uuids else None,
        "probe": 1 if lease.state is LeaseState.PROBE else None,  # else it may have been one
        "granted_at": lease.granted_at,
        "ended_at": lease.ended_at,
        "outcome": lease.outcome or None,
        "exit_code": end.exit_code if end is not None else None,
        "signal": end.signal if end is not None else None,
    }


def merge(known: Row, more: Mapping[str, Any]) -> None:
    """Add to a row what another one tells of the same lease: the later word counts, if there is one."""
    for key, value in more.items():
        if value is not None:
            known[key] = value


def lease_values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row in the order of the columns."""
    return tuple(map(row.get, COLUMNS))


def event_row(event: Mapping[str, Any]) -> tuple[float, str, str]:
    """Return (at, event, JSON) of an event that is about no lease."""
    return event["at"], event["event"], json.dumps(event)


def device_row(device: Device, at: float) -> tuple[Any, ...]:
    """Return (uuid, idx, model, total, capacity, seen_at)."""
    sizes = (device.total_mib, device.capacity_mib)
    return (device.uuid, device.index, _kept(device.model), *sizes, at)


def _kept(text: str) -> str:
    """Make a text fit for UTF-8: of a command, bytes may be left that are none."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
