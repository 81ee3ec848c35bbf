"""Why a job waits, where it would go, and what would let it start: the books, told in full.

For `grn explain`. What is asked about is a word: the id of a lease, a ticket, a pid, a label, or a job
type, whole or in part. The answer is one map of plain values (`schema` 1); the numbers in it are those
that the placer decides by, asked of the placer itself.

Pure: the time, what is expected and which leases have ended lately are arguments.

Must not: change anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.errors import UsageError
from grn.rules.expected import expected_end, forecasts
from grn.rules.holding import Opening, device_view, openings
from grn.rules.inside import outer_of
from grn.rules.knowing import knowledge, need_how
from grn.rules.model import Lease, LeaseState, Owner, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from grn.rules.expected import Forecast
    from grn.rules.machine import Machine

__all__ = ["SCHEMA", "explain"]

SCHEMA = 1
_NAMED = 5
_THOUGHT_OF = 1 << 62
"""The ticket of a request that nobody made: behind all that wait."""

_Found = Lease | Request | str


def explain(
    machine: Machine,
    subject: str,
    now: float,
    *,
    expected: Mapping[int, Forecast],
    ended: Sequence[Mapping[str, Any]] = (),
    gpus: int = 1,
    uid: int = 0,
) -> dict[str, Any]:
    """Explain what the word names.

    Args:
        machine: the books.
        subject: a lease's id, a ticket, a pid, a label, or a job type; of ids, labels and types a
            part will do that no other has.
        now: on the clock of the leases.
        expected: what is expected of those that wait.
        ended: leases that have ended, as their `ended` events.
        gpus: how many devices a job of the type would ask for, if it is a type.
        uid: who asks for it: in words, jobs are named to their own user.

    Raises:
        UsageError: several jobs are meant, or one that is not known any more.
    """
    found = _find(machine, subject)
    if isinstance(found, Lease):
        told = _held(machine, found, now)
    elif isinstance(found, Request):
        told = _waiting(machine, found, now, expected.get(found.ticket))
    elif found is None and (event := _ended(ended, subject)) is not None:
        told = {"kind": "ended", "ended": event, "type": event["type"]}
    elif found is None and _is_a_job(machine, subject):
        raise UsageError(
            f"nothing that runs, waits or has ended lately is called {subject}: `grn history` tells of"
            " what is longer ago"
        )
    else:
        told = _type(machine, found or subject, now, gpus, uid)
    return {
        "schema": SCHEMA,
        "subject": subject,
        **told,
        "known": knowledge(machine.profiles, told["type"]),
    }


# -- what is meant --------------------------------------------------------------------------------


def _find(machine: Machine, subject: str) -> _Found | None:
    """Find the job, else the type; what is named whole goes before what is named in part."""
    leases = list(machine.leases.values())
    waits = [*machine.line, *machine.nested.waiting.values()]
    types = {x.type for x in (*leases, *waits)} | {p.type for p in machine.profiles.all()}
    for jobs in _by_name(subject, leases, waits):
        if len(jobs) == 1:
            return jobs[0]
        if jobs and subject not in types:
            raise UsageError(_several(subject, jobs))
        if jobs:
            break
    if subject in types or machine.profiles.of_type(subject):
        return subject
    return _one_of(subject, [name for name in types if subject in name])


def _by_name(
    subject: str, leases: list[Lease], waits: list[Request]
) -> Iterator[Sequence[Lease | Request]]:
    """List what each way of naming finds, the surest first."""
    yield [lease for lease in leases if lease.id == subject]
    if subject.isdecimal():
        number = int(subject)
        yield [request for request in waits if request.ticket == number]
        yield [lease for lease in leases if lease.number == number]
        held = [lease for lease in leases if number in _pids(lease)]
        yield (*held, *(request for request in waits if request.owner.pid == number))
    named = [lease for lease in leases if lease.request.label == subject]
    yield (*named, *(request for request in waits if request.label == subject))
    if "-" in subject:
        yield [lease for lease in leases if lease.id.startswith(subject)]


def _pids(lease: Lease) -> set[int]:
    main = {lease.main.pid} if lease.main is not None else set()
    return {lease.request.owner.pid, *lease.holders, *lease.left_over} | main


def _one_of(subject: str, names: Iterable[str]) -> str | None:
    found = sorted(names)
    if len(found) > 1:
        shown = ", ".join(map(repr, found[:_NAMED])) + (", ..." if len(found) > _NAMED else "")
        raise UsageError(f"{subject!r} is a part of {len(found)} types ({shown}): name one")
    return found[0] if found else None


def _several(subject: str, jobs: Sequence[Lease | Request]) -> str:
    names = [f"lease {x.id}" if isinstance(x, Lease) else f"request {x.ticket}" for x in jobs]
    shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return f"{subject!r} is the name of {len(jobs)} jobs ({shown}): name one"


def _is_a_job(machine: Machine, subject: str) -> bool:
    """Whether the word can only be a job's: a number, or a lease of this broker."""
    return subject.isdecimal() or subject.startswith(f"{machine.token}-")


def _ended(ended: Sequence[Mapping[str, Any]], subject: str) -> dict[str, Any] | None:
    """Find the newest lease that has ended under this id, number or label."""
    for event in reversed(ended):
        lease = str(event["lease"])
        if subject in (lease, lease.rpartition("-")[2], event["label"]):
            return dict(event)
    return None


# -- a job that runs ------------------------------------------------------------------------------


def _held(machine: Machine, lease: Lease, now: float) -> dict[str, Any]:
    end = expected_end(lease, machine.ledger, machine.profiles, now)
    books = [machine.ledger.by_uuid[uuid] for uuid in lease.uuids if uuid in machine.ledger.by_uuid]
    return {
        "kind": "lease",
        "lease": lease.id,
        "job": _job(lease.request),
        "type": lease.type,
        "state": str(lease.state),
        "since_s": round(now - lease.granted_s, 3),
        "ends_s": None if end is None else round(end - now, 3),
        "overdue": end is not None and end <= now and lease.state is not LeaseState.DRAINING,
        "on": [
            {
                "index": book.device.index,
                "uuid": book.device.uuid,
                "booked_mib": book.bookings[lease.id].booked_mib,
                "measured_mib": book.bookings[lease.id].measured_mib,
            }
            for book in books
        ],
        "left_over": list(lease.left_over),
        "devices": [device_view(machine, book, now) for book in books],
    }


# -- a job that waits -----------------------------------------------------------------------------


def _waiting(
    machine: Machine, request: Request, now: float, forecast: Forecast | None
) -> dict[str, Any]:
    head = machine.reservation
    ahead = [other.ticket for other in machine.line]
    return {
        "kind": "waiting",
        "ticket": request.ticket,
        "job": _job(request),
        "type": request.type,
        "since_s": round(now - request.arrived_s, 3),
        "reason": machine.reason(request.ticket),
        "ahead": ahead.index(request.ticket) if request.ticket in ahead else None,
        "head": head is not None and head.ticket == request.ticket,
        **_prospect(machine, request, now, forecast),
    }


def _type(machine: Machine, job_type: str, now: float, gpus: int, uid: int) -> dict[str, Any]:
    """Explain a type by a request of it that is only thought of."""
    request = Request(_THOUGHT_OF, job_type, Owner(0, 0, uid), gpus=gpus, arrived_s=now)
    refusal = machine.placer.impossible(request)
    if refusal is not None:
        return {"kind": "type", "type": job_type, "gpus": gpus, "refusal": refusal}
    forecast = forecasts(machine, now, request).get(request.ticket)
    return {
        "kind": "type",
        "type": job_type,
        "gpus": gpus,
        "refusal": None,
        "runs": sum(x.type == job_type for x in machine.leases.values()),
        "waits": sum(x.type == job_type for x in machine.line),
        "ahead": len(machine.line),
        **_prospect(machine, request, now, forecast),
    }


def _job(request: Request) -> dict[str, Any]:
    return {
        "label": request.label,
        "pid": request.owner.pid,
        "uid": request.owner.uid,
        "engine": request.engine or None,
        "gpus": request.gpus,
        "memory_mib": "whole" if request.whole else request.memory_mib,
        "cpus": request.cpus,
        "ram_mib": request.ram_mib,
        "compute": request.compute,
        "priority": request.priority,
    }


def _prospect(
    machine: Machine, request: Request, now: float, forecast: Forecast | None
) -> dict[str, Any]:
    """Say where a request would go, what would let it start, and when and where that is expected."""
    machine.placer.now = now  # who is over before whom depends on it
    index = {book.device.uuid: book.device.index for book in machine.ledger.books}
    found = openings(machine, request, now)
    return {
        "devices": [
            {
                **device_view(machine, x.book, now, x),
                "how": need_how(machine.profiles, request, x.book.device.model),
            }
            for x in found
        ],
        "lets_start": _lets_start(machine, request, found),
        "expected_s": None if forecast is None else round(max(0.0, forecast.start_s - now), 3),
        "expected_on": [] if forecast is None else [index[uuid] for uuid in forecast.uuids],
        "probe": forecast.probe if forecast is not None else None,
    }


def _lets_start(machine: Machine, request: Request, found: list[Opening]) -> list[str]:
    """Say what must happen, the first first."""
    machine.limits.count(machine.leases.values())
    if machine.disk_problem:
        return [
            f"nothing new is granted until what is kept can be written again: {machine.disk_problem}"
        ]
    outer = outer_of(machine, request)
    if outer is not None:
        return [f"another job inside lease {outer.id} must end"]
    if reached := machine.limits.reached(request):
        return [f"one of those jobs must end: {reached}"]
    lacks = _pools_lack(machine, request)
    return lacks + (_devices_open(machine, request, found) if request.gpus else [])


def _pools_lack(machine: Machine, request: Request) -> list[str]:
    """Say of which of CPUs and RAM too little is free, or kept for the head of the queue."""
    head = machine.reservation
    head = None if head is None or head.ticket == request.ticket else head
    pools = (
        (machine.ledger.cpus, request.cpus or 0, head.cpus if head else 0),
        (machine.ledger.ram, request.ram_mib or 0, head.ram_mib if head else 0),
    )
    found: list[str] = []
    for pool, wish, kept in pools:
        free = 0 if pool.total is None else pool.total - pool.booked
        if not wish or pool.total is None or wish <= free - kept:
            continue
        if wish > free:
            found.append(f"{wish - free} more {pool.name} must become free")
        else:
            found.append(
                f"{_head(machine, request)} must start first: {kept} {pool.name} are kept for it"
            )
    return found


def _devices_open(machine: Machine, request: Request, found: list[Opening]) -> list[str]:
    count = request.gpus or 0
    usable = [x for x in found if x.possible]
    wait = next((x.need.wait for x in usable if x.need is not None and x.need.wait), "")
    if wait:
        return [f"{wait}: it must end, or show that its memory has settled"]
    if len(usable) < count:
        return [_too_few(usable, count)]
    fitting = [x for x in usable if x.fits]
    if len(fitting) >= count:
        return []
    kept = [x for x in usable if x.kept]
    if len(fitting) + len(kept) >= count:
        return [_after_the_head(machine, request, kept)]
    rest = sorted((x for x in usable if not x.fits and not x.kept), key=Opening.order)
    told = [x.in_words() for x in rest[: count - len(fitting) - len(kept)]]
    return told + ([_after_the_head(machine, request, kept)] if kept else [])


def _too_few(usable: list[Opening], count: int) -> str:
    what = "no device" if not usable else f"only {len(usable)} of the {count} wanted"
    return (
        f"{what} would do with all leases ended: others must free memory, or a device be well again"
    )


def _after_the_head(machine: Machine, request: Request, kept: list[Opening]) -> str:
    numbers = ", ".join(str(x.book.device.index) for x in kept)
    return (
        f"{_head(machine, request)} must start first, or so much end on device{'s' if len(kept) > 1 else ''}"
        f" {numbers} that there is room for both"
    )


def _head(machine: Machine, request: Request) -> str:
    ticket = machine.reservation.ticket if machine.reservation is not None else 0
    first = machine.line.get(ticket)
    own = first is not None and first.owner.uid == request.owner.uid
    name = f" ({first.label or first.type})" if own and first is not None else ""
    return f"request {ticket}{name}, the head of the queue,"
