"""Requests from inside a live lease: how the machine takes them in, grants them and ends them.

What is booked of the outer lease is in `nested`; here is what the machine's events do with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules import events as ev
from grn.rules.groups import asked_together
from grn.rules.model import LeaseState
from grn.rules.nested import Hold

if TYPE_CHECKING:
    from grn.rules.machine import Machine
    from grn.rules.model import Lease, Request

__all__ = ["asked_inside", "grant_inside", "left", "outer_of", "reason_inside", "reentered"]


def outer_of(machine: Machine, request: Request) -> Lease | None:
    """Return the live lease that the client is inside of, if any."""
    outer = machine.leases.get(request.outer or "")
    return None if outer is None or outer.state is LeaseState.DRAINING else outer


def asked_inside(machine: Machine, request: Request, outer: Lease) -> list[ev.Effect]:
    """Grant a request inside its outer lease, let it wait there, or refuse it."""
    nested = machine.nested
    refusal = nested.impossible(request, outer)
    if refusal:
        return [ev.Refused(request.ticket, "nested", refusal, request)]
    reason = nested.wait_reason(request, outer)
    if reason is None:
        nested.take(request, outer)
        return [ev.Granted(request.ticket, outer, nested=request)]
    nested.waiting[request.ticket] = request
    return [ev.Queued(request.ticket, reason, request)]


def grant_inside(machine: Machine, effects: list[ev.Effect]) -> bool:
    """Look again at what waits inside leases; where one has ended, it waits as all do.

    Returns whether any of them joined the line.
    """
    nested = machine.nested
    joined = False
    for ticket, request in list(nested.waiting.items()):
        outer = outer_of(machine, request)
        if outer is not None and nested.wait_reason(request, outer) is not None:
            continue
        del nested.waiting[ticket]
        if outer is not None:
            nested.take(request, outer)
            effects.append(ev.Granted(ticket, outer, nested=request))
            continue
        refusal = machine.placer.impossible(request)
        if refusal:
            effects.append(ev.Refused(ticket, "impossible", refusal, request))
        elif request.group:
            effects += asked_together(machine, request, machine.placer.now)
            joined = True
        else:
            machine.line.add(request)
            joined = True
    return joined


def left(machine: Machine, event: ev.Left) -> list[ev.Effect]:
    """A nested job has ended: others may start in its outer lease, which may be over itself."""
    hold = machine.nested.holds.pop(event.ticket, None)
    lease = machine.leases.get(hold.lease) if hold is not None else None
    if lease is None:
        return []
    machine.dirty = True
    return machine.end_if_drained(lease) if lease.state is LeaseState.DRAINING else []


def reentered(machine: Machine, event: ev.Reentered) -> list[ev.Effect]:
    """A nested job of a former broker's client runs on."""
    if event.lease in machine.leases:
        hold = Hold(event.lease, event.owner, event.mib, inside=None)
        machine.nested.holds[event.ticket] = hold
    return []


def reason_inside(machine: Machine, ticket: int) -> str:
    """Say why a request waits inside its outer lease; "" if it does not."""
    request = machine.nested.waiting.get(ticket)
    outer = None if request is None else outer_of(machine, request)
    if request is None or outer is None:
        return ""
    return machine.nested.wait_reason(request, outer) or "about to be decided"
