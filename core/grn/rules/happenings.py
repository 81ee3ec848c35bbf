"""What happened, in words for whoever watches: the rules' effects as events of a fixed form.

An event is one flat map: `schema`, `seq` (rises by one since the broker's start), `at` (seconds since
1970), `event` (one of `NAMES`), then what belongs to it, always the same keys for one name. What is
unknown is `None`. `docs/events.md` tells of each; keys may be added, none is removed or changes its
meaning within a schema.

An effect may be looked at a while after it was carried out. So nothing is taken from a lease that
may have changed since: its booking and its state at the grant are in the journal's record of it.

Must not: number or date events, which the broker does; decide anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules import events as ev
from grn.rules.model import DeviceState
from grn.rules.outcome import LOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from grn.rules.ledger import Book
    from grn.rules.model import End, Lease, Request
    from grn.rules.profiles import ProfileBook

__all__ = [
    "KEYS",
    "NAMES",
    "SCHEMA",
    "broker_event",
    "device_events",
    "disk_event",
    "gap_event",
    "happenings",
    "in_a_line",
]

SCHEMA = 1

KEYS: dict[str, tuple[str, ...]] = {
    "broker": ("state", "reason", "pid", "release", "devices"),
    "queued": (
        "ticket",
        "type",
        "label",
        "pid",
        "uid",
        "engine",
        "gpus",
        "memory_mib",
        "priority",
        "reason",
    ),
    "granted": (
        "lease",
        "ticket",
        "type",
        "label",
        "pid",
        "uid",
        "engine",
        "devices",
        "booked_mib",
        "probe",
        "waited_s",
        "nested",
    ),
    "refused": ("ticket", "code", "message", "type", "label", "uid", "engine"),
    "cancelled": ("ticket", "type", "label", "uid"),
    "started": ("lease", "pid"),
    "ended": (
        "lease",
        "type",
        "label",
        "uid",
        "engine",
        "devices",
        "outcome",
        "exit_code",
        "signal",
        "peak_mib",
        "source",
        "booked_mib",
        "waited_s",
        "ran_s",
        "cpu_s",
        "rss_mib",
        "draining",
    ),
    "freed": ("lease",),
    "learnt": ("type", "device_model", "estimate_mib", "peak_mib", "runs", "state"),
    "device": ("uuid", "index", "state", "reason"),
    "disk": ("state", "reason"),
    "gap": ("missed",),
}
"""The keys of each event after `event`, in their order."""

NAMES = tuple(KEYS)
_HARMLESS = dict.fromkeys(map(ord, "-_.:"))

Happening = dict[str, Any]


def happenings(
    effects: Iterable[ev.Effect], now: float, profiles: ProfileBook
) -> Iterator[tuple[Happening, ev.Effect]]:
    """Tell what these effects mean, in their order, each with the effect that it is from.

    `now` is when they were carried out, on the clock of the rules.
    """
    records: dict[object, dict[str, object]] = {}
    for effect in effects:
        kind = type(effect)
        if kind is ev.Granted:
            told: Happening | None = _granted(effect, records, now)  # type: ignore[arg-type]
        elif kind is ev.Record:
            told = _recorded(effect, records)  # type: ignore[arg-type]
        else:
            told = _other(effect, now, profiles)
        if told is not None:
            yield told, effect


def _recorded(effect: ev.Record, records: dict[object, dict[str, object]]) -> Happening | None:
    record = effect.record
    kind, lease = record["ev"], record.get("lease")
    if kind == "grant":
        records[lease] = record
    elif kind == "end":
        return {"event": "freed", "lease": lease}
    elif effect.started:
        main: Any = record["main"]
        return {"event": "started", "lease": lease, "pid": main[0]}
    return None


def _other(effect: ev.Effect, now: float, profiles: ProfileBook) -> Happening | None:
    match effect:
        case ev.Reported():
            return _ended(effect, effect.outcome, effect.end, now)
        case ev.Lost():
            return _ended(effect, LOST, None, now)
        case ev.Learnt():
            return _learnt(effect, profiles)
        case ev.Queued(request=request) if request is not None:
            return _queued(effect, request)
        case ev.Refused(request=request) if request is not None:
            return _refused(effect, request)
    return None


def _queued(effect: ev.Queued, request: Request) -> Happening:
    return {
        "event": "queued",
        "ticket": effect.ticket,
        "type": request.type,
        "label": request.label,
        "pid": request.owner.pid,
        "uid": request.owner.uid,
        "engine": request.engine or None,
        "gpus": request.gpus,
        "memory_mib": "whole" if request.whole else request.memory_mib,
        "priority": request.priority,
        "reason": effect.reason,
    }


def _granted(effect: ev.Granted, records: dict[object, dict[str, Any]], now: float) -> Happening:
    lease, inside = effect.lease, effect.nested
    record = records.get(lease.id)
    request = lease.request if inside is None else inside
    probe = record is not None and record["state"] == "probe"
    booked = lease.booked_mib if record is None else record["booked_mib"]
    if inside is not None and not inside.whole:
        booked = inside.memory_mib
    return {
        "event": "granted",
        "lease": lease.id,
        "ticket": effect.ticket,
        "type": request.type,
        "label": request.label,
        "pid": request.owner.pid,
        "uid": request.owner.uid,
        "engine": request.engine or None,
        "devices": list(lease.uuids) if inside is None or inside.gpus else [],
        "booked_mib": booked,
        "probe": probe,
        "waited_s": waited_s(request, now),
        "nested": inside is not None,
    }


def waited_s(request: Request, granted_s: float) -> float:
    """Return how long a request waited for its grant; to the microsecond, as most do not."""
    return round(max(0.0, granted_s - request.arrived_s), 6)


def _refused(effect: ev.Refused, request: Request) -> Happening:
    if effect.code == "cancelled":
        return {
            "event": "cancelled",
            "ticket": effect.ticket,
            "type": request.type,
            "label": request.label,
            "uid": request.owner.uid,
        }
    return {
        "event": "refused",
        "ticket": effect.ticket,
        "code": effect.code,
        "message": effect.message,
        "type": request.type,
        "label": request.label,
        "uid": request.owner.uid,
        "engine": request.engine or None,
    }


def _ended(effect: ev.Reported | ev.Lost, outcome: str, end: End | None, now: float) -> Happening:
    lease = effect.lease
    request = lease.request
    return {
        "event": "ended",
        "lease": lease.id,
        "type": request.type,
        "label": request.label,
        "uid": request.owner.uid,
        "engine": request.engine or None,
        "devices": list(lease.uuids),
        "outcome": outcome,
        "exit_code": end.exit_code if end is not None else None,
        "signal": end.signal if end is not None else None,
        "peak_mib": effect.peak_mib,
        "source": effect.source,
        "booked_mib": lease.booked_mib,
        "waited_s": waited_s(request, lease.granted_s),
        "ran_s": ran_s(lease, now),
        "cpu_s": end.cpu_s if end is not None else None,
        "rss_mib": end.rss_mib if end is not None else None,
        "draining": effect.draining,
    }


def ran_s(lease: Lease, ended_s: float) -> float:
    """Return how long a job ran: from its start, if it was told, else from the grant."""
    began = lease.started_s if lease.started_s is not None else lease.granted_s
    return round(max(0.0, ended_s - began), 3)


def _learnt(effect: ev.Learnt, profiles: ProfileBook) -> Happening:
    profile = profiles.find(effect.type, effect.device_model)
    return {
        "event": "learnt",
        "type": effect.type,
        "device_model": effect.device_model,
        "estimate_mib": profile.estimate_mib(profiles.margin) if profile else None,
        "peak_mib": profile.peak_mib if profile else None,
        "runs": profile.runs if profile else 0,
        "state": profile.state if profile else "unmeasured",
    }


# -- what is no effect ----------------------------------------------------------------------------


def device_events(known: dict[str, tuple[str, str]], books: Iterable[Book]) -> list[Happening]:
    """Tell of devices that are new or in another state than is `known`, which is brought up to date."""
    told: list[Happening] = []
    for book in books:
        here = (str(book.state), book.reason)
        uuid = book.device.uuid
        if known.get(uuid) == here:
            continue
        known[uuid] = here
        told.append(
            {
                "event": "device",
                "uuid": uuid,
                "index": book.device.index,
                "state": here[0],
                "reason": None if book.state is DeviceState.OK else book.reason,
            }
        )
    return told


def disk_event(reason: str) -> Happening:
    """Tell that what must be kept cannot be written, and why; or that it can again ("")."""
    return {"event": "disk", "state": "failed" if reason else "healed", "reason": reason or None}


def broker_event(state: str, reason: str, *, pid: int, release: str, devices: str) -> Happening:
    """Tell that the broker has `started`, or is `leaving`."""
    return {
        "event": "broker",
        "state": state,
        "reason": reason or None,
        "pid": pid,
        "release": release,
        "devices": devices,
    }


def in_a_line(event: Happening) -> str:
    """Write an event as a log has it: its name, then `key=value` for each value that is known."""
    name = event["event"]
    parts = [f"{key}={_value(event[key])}" for key in KEYS[name] if event[key] is not None]
    return " ".join([name, *parts])


def _value(value: object) -> str:
    if isinstance(value, str):
        plain = value.translate(_HARMLESS).isalnum()
        return value if plain else repr(value)
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def gap_event(missed: int | None) -> Happening:
    """Tell that events are missing before the next one; `None`: nobody knows how many."""
    return {"event": "gap", "missed": missed}
