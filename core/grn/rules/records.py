"""What the journal keeps of a lease and of the devices, and back: one module knows the format.

Records are flat maps. Added keys are allowed, a missing optional key has a default: a journal of an
older version can be replayed by a newer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules.model import End, Lease, LeaseState, Owner, Request
from grn.rules.policy import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grn.rules.health import DeviceHealth

__all__ = [
    "end_record",
    "ending_of",
    "grant_record",
    "health_record",
    "lease_from_record",
    "main_record",
    "managed_record",
    "masks_from_record",
]


def grant_record(lease: Lease, *, alone: bool) -> dict[str, object]:
    """Describe a lease completely."""
    request = lease.request
    owner = request.owner
    return {
        "ev": "grant",
        "lease": lease.id,
        "number": lease.number,
        "type": request.type,
        "label": request.label,
        "owner": (owner.pid, owner.start, owner.uid),
        "main": (lease.main.pid, lease.main.start) if lease.main else None,
        "gpus": request.gpus,
        "memory_mib": request.memory_mib,
        "whole": request.whole,
        "policy": str(request.policy),
        "cpus": request.cpus,
        "ram_mib": request.ram_mib,
        "priority": request.priority,
        "session": request.session,
        "uuids": lease.uuids,
        "booked_mib": lease.booked_mib,
        "state": str(lease.state),
        "threads": lease.threads,
        "alone": alone,
        "peak_mib": lease.peak_mib,
        "samples": lease.samples,
        "accounted_mib": lease.accounted_mib,
        "reported_mib": lease.reported_mib,
        "together": lease.together,
        "compute": request.compute,
        "processes": request.processes,
        "affinity": request.affinity,
        "cores": lease.cores,
        "mps": lease.mps,
        "engine": request.engine,
        "at": lease.granted_at,
        **_ending(lease),
    }


def main_record(lease: Lease) -> dict[str, object]:
    """Describe what changed since the grant: the main process, the state, a probe's booking."""
    return {
        **_ending(lease),
        "ev": "main",
        "lease": lease.id,
        "main": (lease.main.pid, lease.main.start) if lease.main else None,
        "state": str(lease.state),
        "booked_mib": lease.booked_mib,
    }


def end_record(lease: Lease) -> dict[str, object]:
    """Say that a lease has ended."""
    return {"ev": "end", "lease": lease.id, **_ending(lease)}


def _ending(lease: Lease) -> dict[str, object]:
    """Say how its job ended, if that is known: a history may have lost it with its broker."""
    if not lease.outcome:
        return {}
    end = lease.end
    return {
        "outcome": lease.outcome,
        "ended_at": lease.ended_at,
        "exit_code": end.exit_code if end is not None else None,
        "signal": end.signal if end is not None else None,
    }


def health_record(uuid: str, health: DeviceHealth) -> dict[str, object]:
    """Say what is held against a device; without `strikes` nothing is any more."""
    return {"ev": "health", "uuid": uuid, **(health.kept() or {})}


def managed_record(spec: str, masks: Sequence[str | None]) -> dict[str, object]:
    """Say which devices are managed: what any of the masks names, the broker's own is the first."""
    return {"ev": "devices", "spec": spec, "mask": masks[0], "masks": tuple(masks)}


def masks_from_record(record: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Return the masks; older brokers had their own alone."""
    return tuple(record.get("masks") or (record["mask"],))


def lease_from_record(record: Mapping[str, Any], now: float) -> Lease:
    """Rebuild a lease. Its clock starts anew: monotonic times do not survive a broker."""
    owner = Owner(*(int(part) for part in record["owner"]))
    request = Request(
        ticket=0,
        type=str(record["type"]),
        owner=owner,
        label=str(record.get("label", "")),
        gpus=record.get("gpus"),
        memory_mib=record.get("memory_mib"),
        whole=bool(record.get("whole", False)),
        policy=named(str(record.get("policy", "spread"))),
        cpus=record.get("cpus"),
        ram_mib=record.get("ram_mib"),
        priority=int(record.get("priority", 0)),
        session=str(record.get("session", "")),
        arrived_s=now,
        compute=record.get("compute"),
        processes=int(record.get("processes", 1)),
        affinity=bool(record.get("affinity", False)),
        engine=str(record.get("engine", "")),
    )
    main = record.get("main")
    outcome, ended_at, end = ending_of(record)
    return Lease(
        id=str(record["lease"]),
        number=int(record["number"]),
        request=request,
        uuids=tuple(record["uuids"]),
        booked_mib=int(record["booked_mib"]),
        state=LeaseState(record["state"]),
        granted_s=now,
        threads=int(record.get("threads", 1)),
        main=Owner(int(main[0]), int(main[1]), owner.uid) if main else None,
        peak_mib=int(record.get("peak_mib", 0)),
        samples=int(record.get("samples", 0)),
        accounted_mib=int(record.get("accounted_mib", 0)),
        reported_mib=int(record.get("reported_mib", 0)),
        together=bool(record.get("together", False)),
        cores=tuple(record.get("cores", ())),
        mps=str(record.get("mps", "")),
        granted_at=record.get("at"),
        outcome=outcome,
        ended_at=ended_at,
        end=end,
    )


def ending_of(record: Mapping[str, Any]) -> tuple[str, float | None, End | None]:
    """Return outcome, time of day and end that a record tells of; "" if it tells of none."""
    outcome = record.get("outcome")
    if not outcome:
        return "", None, None
    end = End(exit_code=record.get("exit_code"), signal=record.get("signal"))
    return str(outcome), record.get("ended_at"), end
