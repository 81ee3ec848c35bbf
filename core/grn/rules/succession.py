"""What comes after: leases under the next broker, and under the next lease of one process.

A record of the journal says what a lease is (`grant`), what changed (`main`), or that it is over
(`end`), and what errors are held against a device (`health`); a snapshot starts a journal anew. What
can be observed again (memory in use, who is dead) is not kept: the successor looks for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules import events as ev
from grn.rules.health import DeviceHealth
from grn.rules.model import DeviceState, LeaseState
from grn.rules.records import (
    RecordError,
    ending_of,
    grant_record,
    health_record,
    lease_from_record,
    main_from_record,
    read_number,
    read_text,
    started_from,
    state_from,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.machine import Machine
    from grn.rules.model import Lease, Request

__all__ = ["left_by", "restore", "returned", "snapshot"]

_LONGEST_REPORT = 200


def snapshot(machine: Machine) -> list[dict[str, object]]:
    """Return the records that rebuild the present leases, and the numbers that ids go on from."""
    counter: dict[str, object] = {
        "ev": "token",
        "token": machine.token,
        "number": machine.number,
    }
    leases = machine.leases.values()
    return [
        counter,
        *(health_record(uuid, x) for uuid, x in machine.health.items() if x.kept() is not None),
        *(_as_it_is(machine, lease) for lease in leases),
    ]


def restore(machine: Machine, records: Iterable[Mapping[str, Any]], now: float) -> list[str]:
    """Put back the leases that records tell of; those of an unknown kind are for somebody else.

    A record that cannot be understood is skipped; return what is wrong with each of those.
    """
    skipped: list[str] = []
    for number, record in enumerate(records, 1):
        handler = _HANDLERS.get(str(record.get("ev")))
        if handler is None:
            continue
        try:
            handler(machine, record, now)
        except RecordError as error:
            what = f"record {number} of the journal ({record['ev']}) is skipped: {error}"
            skipped.append(what[:_LONGEST_REPORT])
    for uuid, health in machine.health.items():
        book = machine.ledger.by_uuid.get(uuid)
        if book is not None and not health.usable:
            book.state, book.reason = DeviceState.UNHEALTHY, health.reason
    kept = machine.leases.values()
    for lease in kept:
        if lease.state is LeaseState.PROBE and _has_company(machine, lease):
            lease.state = LeaseState.RUNNING  # a record is missing: others are beside it
        if lease.foretold_mib and lease.uuids and lease.state is LeaseState.RUNNING:
            machine.learning.foretold_before(lease)
    machine.draining = {lease.id for lease in kept if lease.state is LeaseState.DRAINING}
    return skipped


def _restore_token(machine: Machine, record: Mapping[str, Any], now: float) -> None:
    del now
    token, number = read_text(record, "token"), read_number(record, "number")
    machine.token = token
    machine.number = max(machine.number, number)


def _restore_end(machine: Machine, record: Mapping[str, Any], now: float) -> None:
    del now
    lease = machine.leases.pop(read_text(record, "lease"), None)
    if lease is not None:
        machine.ledger.remove(lease.id, lease.uuids)


def _restore_health(machine: Machine, record: Mapping[str, Any], now: float) -> None:
    """Keep back what our predecessor kept back, before anything was read."""
    uuid = read_text(record, "uuid")
    if "strikes" not in record:
        machine.health.pop(uuid, None)
        return
    try:
        machine.health[uuid] = DeviceHealth.restored(record, now)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{type(error).__name__}: {error}") from error


def _restore_lease(machine: Machine, record: Mapping[str, Any], now: float) -> None:
    lease = lease_from_record(record, now)
    if lease.id in machine.leases:
        return
    machine.number = max(machine.number, lease.number)
    machine.leases[lease.id] = lease
    drains = lease.state is LeaseState.DRAINING  # and has given its CPUs and RAM back
    machine.ledger.restore(
        lease.id,
        lease.uuids,
        lease.booked_mib,
        alone=bool(record.get("alone")) or lease.state is LeaseState.PROBE,
        cpus=0 if drains else lease.request.cpus or 0,
        ram_mib=0 if drains else lease.request.ram_mib or 0,
        compute=lease.request.compute or 0,
    )
    if drains:
        machine.ledger.drain(lease.id, lease.uuids, runs_on=lease.orphaned)


def _as_it_is(machine: Machine, lease: Lease) -> dict[str, object]:
    looked_s = lease.unread_since if lease.unread_since is not None else machine.looked_s
    looked_s = max(looked_s, lease.granted_s)
    return grant_record(lease, alone=_is_alone(machine, lease), looked_s=looked_s)


def _restore_change(machine: Machine, record: Mapping[str, Any], now: float) -> None:
    lease = machine.leases.get(read_text(record, "lease"))
    if lease is None:
        return
    main = main_from_record(record, lease.request.owner)
    state = state_from(record.get("state", lease.state))
    booked = read_number(record, "booked_mib", lease.booked_mib)
    foretold = read_number(record, "foretold_mib", lease.foretold_mib)
    ending = ending_of(record)
    began = started_from(record, now)
    lease.main = main
    lease.orphaned |= bool(record.get("orphaned"))
    lease.foretold_mib = foretold
    lease.started_s = began if began is not None else lease.started_s
    if ending[0]:
        lease.outcome, lease.ended_at, lease.end = ending
    if state is LeaseState.DRAINING and lease.state is not LeaseState.DRAINING:
        machine.ledger.drain(lease.id, lease.uuids, runs_on=lease.orphaned)
    elif state is LeaseState.RUNNING and lease.state is LeaseState.PROBE:
        lease.booked_mib = booked
        machine.ledger.rebook(lease.id, lease.uuids, lease.booked_mib)
    lease.state = state


_HANDLERS = {
    "token": _restore_token,
    "grant": _restore_lease,
    "main": _restore_change,
    "end": _restore_end,
    "health": _restore_health,
}


def _has_company(machine: Machine, lease: Lease) -> bool:
    books = machine.ledger.by_uuid
    return any(len(books[uuid].bookings) > 1 for uuid in lease.uuids if uuid in books)


def _is_alone(machine: Machine, lease: Lease) -> bool:
    books = machine.ledger.by_uuid
    return any(books[uuid].alone == lease.id for uuid in lease.uuids if uuid in books)


def returned(machine: Machine, event: ev.Returned) -> list[ev.Effect]:
    """End what a client does not claim, as its release would: the word of it was lost."""
    effects: list[ev.Effect] = []
    for lease in list(machine.leases.values()):
        request = lease.request
        theirs = request.owner == event.owner and request.session == event.session
        theirs = theirs and lease.number <= event.last
        unclaimed = theirs and bool(event.session) and lease.id not in event.claimed
        if not unclaimed or lease.state is LeaseState.DRAINING:
            continue
        effects.append(ev.Said("info", f"unclaimed lease={lease.id}"))
        lives = lease.id in event.alive and lease.main != request.owner
        if lease.id not in event.alive:
            lease.main = None
        lease.left_over = event.left_over.get(lease.id, ())
        keeps = lives or bool(lease.left_over) or machine.is_used(lease)
        effects += machine.lost(lease, drains=keeps)
        effects += machine.drain(lease, event.now) if keeps else machine.end(lease)
    return effects


def left_by(machine: Machine, request: Request) -> list[Lease]:
    """List the leases that drain since the very process that asks holds their memory on.

    What it holds will be its next lease's, so it must not wait for itself.
    """
    if not request.in_process or not machine.draining:
        return []
    drain = [lease for lease in machine.leases.values() if lease.id in machine.draining]
    return [
        lease
        for lease in drain
        if lease.main == lease.request.owner == request.owner and not machine.nested.held(lease.id)
    ]
