"""What follows when the journal cannot be written, and when it can again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules import events as ev

if TYPE_CHECKING:
    from grn.rules.machine import Machine

__all__ = ["disk_failed", "disk_healed"]


def disk_failed(machine: Machine, event: ev.DiskFailed) -> list[ev.Effect]:
    """Take grants back that no journal keeps, and grant nothing until it can be written."""
    if event.lasting:
        machine.disk_problem = event.reason
    effects: list[ev.Effect] = [ev.Said("error", f"journal-failed reason={event.reason!r}")]
    for lease_id in event.leases:
        lease = machine.leases.pop(lease_id, None)
        if lease is None:
            continue
        machine.dirty = True
        machine.draining.discard(lease_id)
        machine.nested.forget_lease(lease_id)
        machine.ledger.remove(lease_id, lease.uuids)
        effects.append(ev.Refused(lease.request.ticket, "disk", event.reason, lease.request))
    return effects


def disk_healed(machine: Machine, event: ev.DiskHealed) -> list[ev.Effect]:
    """Grant again."""
    del event
    if not machine.disk_problem:
        return []
    machine.disk_problem = ""
    machine.dirty = True
    return [ev.Said("info", "journal-healed")]
