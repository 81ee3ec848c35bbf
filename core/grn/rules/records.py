"""What the journal keeps of a lease and of the devices, and back: one module knows the format.

Records are flat maps. Added keys are allowed, a missing optional key has a default: a journal of an
older version can be replayed by a newer one. What cannot be understood raises `RecordError`, before
anything is made of it.

Times in seconds whose key ends with `_s` are on the machine's monotonic clock, which all its processes
share until it is started anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules.model import LONGEST_GAP_S, End, Lease, LeaseState, Owner, Request
from grn.rules.policy import named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeGuard

    from grn.rules.health import DeviceHealth

__all__ = [
    "RecordError",
    "end_record",
    "ending_of",
    "grant_record",
    "health_record",
    "lease_from_record",
    "main_from_record",
    "main_record",
    "managed_from_record",
    "managed_record",
    "read_number",
    "read_text",
    "started_from",
    "state_from",
]


_LARGEST = 1 << 40


class RecordError(ValueError):
    """A record that is whole by its checksum, and does not say what its kind must."""


def grant_record(lease: Lease, *, alone: bool, looked_s: float) -> dict[str, object]:
    """Describe a lease completely; `looked_s` is when its devices were looked at last."""
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
        "arrived_s": request.arrived_s,
        "granted_s": lease.granted_s,
        "started_s": lease.started_s,
        "looked_s": looked_s,
        "unwatched": lease.unwatched,
        "orphaned": lease.orphaned,
        "foretold_mib": lease.foretold_mib,
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
        "started_s": lease.started_s,
        "orphaned": lease.orphaned,
        "foretold_mib": lease.foretold_mib,
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


def managed_from_record(record: Mapping[str, Any]) -> tuple[str, tuple[str | None, ...]] | None:
    """Return the devices and the masks; `None` if the record is another one or not understood.

    Older brokers had their own mask alone.
    """
    spec, masks = record.get("spec"), record.get("masks") or (record.get("mask", 0),)
    readable = type(spec) is str and isinstance(masks, list | tuple)
    if record.get("ev") != "devices" or not readable:
        return None
    if not all(mask is None or type(mask) is str for mask in masks):
        return None
    return str(spec), tuple(masks)


def main_from_record(record: Mapping[str, Any], owner: Owner) -> Owner | None:
    """Return the main process of a lease, of the same user as its owner.

    Raises:
        RecordError: it is not a pid and a start time.
    """
    if record.get("main") is None:
        return None
    pid, start = _numbers(record["main"], 2, "main")
    return Owner(pid, start, owner.uid)


def lease_from_record(record: Mapping[str, Any], now: float) -> Lease:
    """Rebuild a lease, as it was when its devices were looked at last.

    A time that is not known, or lies after `now` since the machine was started anew, is `now`.

    Raises:
        RecordError: a field is missing, or not of its kind.
    """
    owner = Owner(*_numbers(record.get("owner"), 3, "owner"))
    if owner.pid == 0:
        raise RecordError("owner: no process has the number 0")
    request = Request(
        ticket=0,
        type=read_text(record, "type"),
        owner=owner,
        label=read_text(record, "label", ""),
        gpus=_maybe(record, "gpus"),
        memory_mib=_maybe(record, "memory_mib"),
        whole=bool(record.get("whole", False)),
        policy=_policy(record.get("policy", "spread")),
        cpus=_maybe(record, "cpus"),
        ram_mib=_maybe(record, "ram_mib"),
        priority=_priority(record),
        session=read_text(record, "session", ""),
        arrived_s=_moment(record, "arrived_s", now),
        compute=_maybe(record, "compute"),
        processes=read_number(record, "processes", 1),
        affinity=bool(record.get("affinity", False)),
        engine=read_text(record, "engine", ""),
    )
    outcome, ended_at, end = ending_of(record)
    looked_s = _time(record, "looked_s")
    return Lease(
        id=read_text(record, "lease"),
        number=read_number(record, "number"),
        request=request,
        uuids=_uuids(record),
        booked_mib=read_number(record, "booked_mib"),
        state=state_from(record.get("state")),
        granted_s=_moment(record, "granted_s", now),
        threads=read_number(record, "threads", 1),
        main=main_from_record(record, owner),
        started_s=started_from(record, now),
        orphaned=bool(record.get("orphaned")),
        foretold_mib=read_number(record, "foretold_mib", 0),
        unwatched=bool(record.get("unwatched"))
        or looked_s is None
        or not 0 <= now - looked_s <= LONGEST_GAP_S,
        peak_mib=read_number(record, "peak_mib", 0),
        samples=read_number(record, "samples", 0),
        accounted_mib=read_number(record, "accounted_mib", 0),
        reported_mib=read_number(record, "reported_mib", 0),
        together=bool(record.get("together", False)),
        cores=_numbers(record.get("cores", ()), None, "cores"),
        mps=read_text(record, "mps", ""),
        granted_at=_time(record, "at"),
        outcome=outcome,
        ended_at=ended_at,
        end=end,
    )


def started_from(record: Mapping[str, Any], now: float) -> float | None:
    """Return when the job began, on the clock of the rules; `None` if it was not told.

    Raises:
        RecordError: it is no number.
    """
    return None if record.get("started_s") is None else _moment(record, "started_s", now)


def ending_of(record: Mapping[str, Any]) -> tuple[str, float | None, End | None]:
    """Return outcome, time of day and end that a record tells of; "" if it tells of none.

    Raises:
        RecordError: a field is not of its kind.
    """
    outcome = read_text(record, "outcome", "")
    if not outcome:
        return "", None, None
    end = End(exit_code=_maybe(record, "exit_code"), signal=_maybe(record, "signal"))
    return outcome, _time(record, "ended_at"), end


# -- fields ---------------------------------------------------------------------------------------


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _LARGEST


def read_number(record: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """Return a number that is not negative; without a default it must be there.

    Raises:
        RecordError: it is something else.
    """
    value = record.get(key, default)
    if not _is_number(value):
        raise RecordError(f"{key}: {value!r}")
    return value


def _maybe(record: Mapping[str, Any], key: str) -> int | None:
    return None if record.get(key) is None else read_number(record, key)


def _numbers(value: object, count: int | None, key: str) -> tuple[int, ...]:
    listed: list[Any] = [*value] if isinstance(value, list | tuple) else [None]
    if not all(map(_is_number, listed)) or count not in (None, len(listed)):
        raise RecordError(f"{key}: {value!r}")
    return tuple(listed)


def read_text(record: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return a text; without a default it must be there.

    Raises:
        RecordError: it is something else.
    """
    value = record.get(key, default)
    if type(value) is not str:
        raise RecordError(f"{key}: {value!r}")
    return value


def state_from(value: object) -> LeaseState:
    """Return the state of this name.

    Raises:
        RecordError: there is none.
    """
    try:
        return LeaseState(value)  # type: ignore[arg-type]  # what is no text is refused, too
    except ValueError:
        raise RecordError(f"state: {value!r}") from None


def _policy(value: object) -> str:
    if type(value) is not str:
        raise RecordError(f"policy: {value!r}")
    return named(value)


def _time(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    if value is not None and type(value) not in (int, float):
        raise RecordError(f"{key}: {value!r}")
    return value


def _moment(record: Mapping[str, Any], key: str, now: float) -> float:
    moment = _time(record, key)
    return now if moment is None else min(moment, now)


def _priority(record: Mapping[str, Any]) -> int:
    value = record.get("priority", 0)
    if type(value) is not int:
        raise RecordError(f"priority: {value!r}")
    return value


def _uuids(record: Mapping[str, Any]) -> tuple[str, ...]:
    uuids = record.get("uuids")
    listed: list[Any] = [*uuids] if isinstance(uuids, list | tuple) else [None]
    if not all(type(uuid) is str for uuid in listed) or len(set(listed)) != len(listed):
        raise RecordError(f"uuids: {uuids!r}")
    return tuple(listed)
