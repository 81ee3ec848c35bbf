"""What comes after: leases under the next broker, and under the next lease of one process.

A record of the journal says what a lease is (`grant`), what changed (`main`), or that it is over
(`end`), and what errors are held against a device (`health`); a snapshot starts a journal anew. What
can be observed again (memory in use, who is dead) is not kept: the successor looks for itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grn.rules import events as ev
from grn.rules.health import DeviceHealth
from grn.rules.model import DeviceState, LeaseState
from grn.rules.records import ending_of, grant_record, health_record, lease_from_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.machine import Machine
    from grn.rules.model import Lease, Request

__all__ = ["left_by", "restore", "returned", "snapshot"]


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
        *(grant_record(lease, alone=_is_alone(machine, lease)) for lease in leases),
    ]


def restore(machine: Machine, records: Iterable[Mapping[str, Any]], now: float) -> None:
    """Put back the leases that records tell of; those of an unknown kind are for somebody else."""
    for record in records:
        kind = record.get("ev")
        if kind == "token":
            machine.token = str(record["token"])
            machine.number = max(machine.number, int(record["number"]))
        elif kind == "grant":
            _restore_lease(machine, record, now)
        elif kind == "main" and record["lease"] in machine.leases:
            _restore_change(machine, record)
        elif kind == "end" and record["lease"] in machine.leases:
            lease = machine.leases.pop(str(record["lease"]))
            machine.ledger.remove(lease.id, lease.uuids)
        elif kind == "health":
            _restore_health(machine, record, now)
    for uuid, health in machine.health.items():
        book = machine.ledger.by_uuid.get(uuid)
        if book is not None and not health.usable:
            book.state, book.reason = DeviceState.UNHEALTHY, health.reason
    kept = machine.leases.values()
    machine.draining = {lease.id for lease in kept if lease.state is LeaseState.DRAINING}


def _restore_health(machine: Machine, record: Mapping[str, Any], now: float) -> None:
    """Keep back what our predecessor kept back, before anything was read."""
    uuid = str(record["uuid"])
    if "strikes" not in record:
        machine.health.pop(uuid, None)
        return
    machine.health[uuid] = DeviceHealth.restored(record, now)


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
        alone=bool(record.get("alone")),
        cpus=0 if drains else lease.request.cpus or 0,
        ram_mib=0 if drains else lease.request.ram_mib or 0,
        compute=lease.request.compute or 0,
    )


def _restore_change(machine: Machine, record: Mapping[str, Any]) -> None:
    lease = machine.leases[str(record["lease"])]
    main = record.get("main")
    owner = lease.request.owner
    lease.main = replace(owner, pid=int(main[0]), start=int(main[1])) if main else None
    if record.get("outcome"):
        lease.outcome, lease.ended_at, lease.end = ending_of(record)
    state = LeaseState(record.get("state", lease.state))
    if state is LeaseState.DRAINING and lease.state is not LeaseState.DRAINING:
        machine.ledger.release_pools(lease.id)
    elif state is LeaseState.RUNNING and lease.state is LeaseState.PROBE:
        lease.booked_mib = int(record.get("booked_mib", lease.booked_mib))
        machine.ledger.rebook(lease.id, lease.uuids, lease.booked_mib)
    lease.state = state


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
        keeps = lives or machine.is_used(lease)
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
