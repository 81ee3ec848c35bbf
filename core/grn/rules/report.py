"""The state of the books as the JSON object that `status` prints; its keys are a promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules.curve import QUANTILES
from grn.rules.model import DeviceState
from grn.rules.peaks import peak_of
from grn.rules.wire import MAX_FRAME, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.estimate import Margin, Profile
    from grn.rules.expected import Forecast
    from grn.rules.ledger import Book
    from grn.rules.machine import Machine
    from grn.rules.model import Lease, Request

__all__ = [
    "PAGED",
    "PAGE_BYTES",
    "SCHEMA",
    "device_report",
    "pages",
    "profiles_report",
    "status_pages",
    "status_report",
]

SCHEMA = 1
PAGE_BYTES = MAX_FRAME * 3 // 4
"""Of the entries of a report on one page; the rest of a frame is for devices and warnings."""


def status_report(
    machine: Machine,
    now: float,
    warnings: list[str],
    expected: Mapping[int, Forecast] | None = None,
) -> dict[str, Any]:
    """Describe devices, leases, and waiters with their reasons, as of now.

    `expected`: when which ticket is expected to start, see `forecasts`.
    """
    expected = {} if expected is None else expected
    ledger = machine.ledger
    return {
        "schema": SCHEMA,
        "devices": [device_report(book) for book in ledger.books],
        "leases": [_lease(machine, lease, now) for lease in machine.leases.values()],
        "waiters": [_waiter(machine, request, now, expected) for request in machine.line],
        "cpus": {"total": ledger.cpus.total, "booked": ledger.cpus.booked},
        "ram_mib": {"total": ledger.ram.total, "booked": ledger.ram.booked},
        "warnings": warnings,
    }


PAGED = ("leases", "waiters", "recent")
"""The lists of a status that may be longer than a frame, in the order in which pages hold them."""


def status_pages(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a status so that each page fits a frame; all but the long lists is on every page."""
    tagged = [(key, entry) for key in PAGED for entry in report.get(key, ())]
    parts = pages([entry for _, entry in tagged], PAGE_BYTES)
    found: list[dict[str, Any]] = []
    rest = iter(tagged)
    for part in parts:
        page = {**report, **{key: [] for key in PAGED}}
        for _ in part:
            key, entry = next(rest)
            page[key].append(entry)
        found.append(page)
    return found


def pages(entries: Iterable[dict[str, Any]], limit: int) -> list[list[dict[str, Any]]]:
    """Split entries so that no page exceeds `limit` bytes: a frame is bounded."""
    pages: list[list[dict[str, Any]]] = [[]]
    room = limit
    for entry in entries:
        size = len(encode(entry))
        if room < size:
            pages.append([])
            room = limit
        pages[-1].append(entry)
        room -= size
    return pages


def device_report(book: Book) -> dict[str, Any]:
    """Describe one device by its page of the books."""
    device = book.device
    return {
        "index": device.index,
        "uuid": device.uuid,
        "name": device.model,
        "state": str(book.state),
        "reason": book.reason,
        "total_mib": device.total_mib,
        "capacity_mib": device.capacity_mib,
        "free_mib": book.free_mib if book.state is DeviceState.OK else 0,
        "booked_mib": book.booked_mib,
        "measured_mib": book.measured_mib,
        "foreign_mib": book.foreign_mib,
        "compute_booked": book.compute_booked,
        # Without leases nobody looks: what was last said is no news.
        "utilization": book.utilization if book.bookings else None,
        "leases": len(book.bookings),
        "parent": device.parent,
        "bus_id": device.bus_id,
        "capabilities": [list(pair) for pair in device.capabilities],
    }


def _lease(machine: Machine, lease: Lease, now: float) -> dict[str, Any]:
    books = machine.ledger.by_uuid
    bookings = [books[uuid].bookings[lease.id] for uuid in lease.uuids if uuid in books]
    main = lease.main or lease.request.owner
    peak = peak_of(lease)
    return {
        "id": lease.id,
        "type": lease.type,
        "label": lease.request.label,
        "pid": main.pid,
        "owner_pid": lease.request.owner.pid,
        "uid": lease.request.owner.uid,
        "engine": lease.request.engine or None,
        "policy": str(lease.request.policy),
        "devices": list(lease.uuids),
        "booked_mib": lease.booked_mib,
        "measured_mib": max((x.measured_mib for x in bookings), default=0),
        "peak_mib": peak.mib if peak else lease.peak_mib if lease.samples else None,
        "peak_source": peak.source if peak else None,
        "state": str(lease.state),
        "since_s": round(now - lease.granted_s, 3),
        "enforced_by": lease.enforced_by,
        "compute": lease.request.compute,
        "utilization": max((u for x in bookings if (u := x.utilization) is not None), default=None),
        "cores": list(lease.cores),
        "left_over": list(lease.left_over),
        "strays": list(lease.strays),
    }


def _waiter(
    machine: Machine, request: Request, now: float, expected: Mapping[int, Forecast]
) -> dict[str, Any]:
    start = expected.get(request.ticket)
    return {
        "type": request.type,
        "label": request.label,
        "pid": request.owner.pid,
        "uid": request.owner.uid,
        "engine": request.engine or None,
        "ticket": request.ticket,
        "gpus": request.gpus,
        "memory_mib": "whole" if request.whole else request.memory_mib,
        "since_s": round(now - request.arrived_s, 3),
        "priority": request.priority,
        "reason": machine.reason(request.ticket),
        "expected_s": None if start is None else round(max(0.0, start.start_s - now), 3),
    }


def profiles_report(
    profiles: Iterable[Profile], margin: Margin, model: str | None = None
) -> list[dict[str, Any]]:
    """Describe what was learnt, on one device model or all: an entry for each type and model."""
    return [
        _profile(profile, margin)
        for profile in profiles
        if (profile.known or profile.outcomes) and model in (None, profile.device_model)
    ]


def _profile(profile: Profile, margin: Margin) -> dict[str, Any]:
    quantiles = profile.quantiles_mib
    return {
        "type": profile.type,
        "device_model": profile.device_model,
        "estimate_mib": profile.estimate_mib(margin),
        "peak_mib": profile.peak_mib,
        "runs": profile.runs,
        "source": profile.source,
        "state": profile.state,
        "peaks_mib": profile.peaks,
        "peaks": [
            {"mib": peak.mib, "source": peak.source, "at": peak.at, "censored": peak.censored}
            for peak in profile.window
        ],
        "set_mib": profile.set_mib,
        "first_at": profile.first_at,
        "last_at": profile.last_at,
        "quantiles_mib": dict(zip(map(str, QUANTILES), quantiles, strict=False)),
        "durations_s": list(profile.durations_s),
        "outcomes": list(profile.outcomes),
        "failures": profile.failures,
        "ooms": profile.ooms,
        "warnings": _profile_warnings(profile),
    }


def _profile_warnings(profile: Profile) -> list[str]:
    """Say what a person should look at before trusting the estimate."""
    found: list[str] = []
    if profile.differs is not None:
        found.append(
            f"runs of this type differ: the largest peak is {profile.differs:.1f} times the median."
            " Give them types of their own with --type, or do not ignore arguments that matter"
        )
    if profile.preallocated:
        found.append(
            "the last run took most of its device at once and kept it: this looks like"
            " preallocation, not like need"
        )
    return found
