"""Which of some requests would be granted at once, if they were asked now, in this order.

For a scheduler that has other work to start instead of jobs that would only wait. Decided by the
same rules as a request itself, the line of those that wait included.

Promises: nothing is changed; the answer is of this moment, and reserves nothing.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from grn.rules.placing import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grn.rules.machine import Machine
    from grn.rules.model import Request
    from grn.rules.waiting import Reservation

__all__ = ["answered_at_once"]


def answered_at_once(machine: Machine, requests: Sequence[Request], now: float) -> list[bool]:
    """Tell for each request whether it would be granted or refused at once, not made to wait."""
    machine.placer.now = now  # who is over before whom depends on it
    tickets = set(_answered(machine, requests))
    return [request.ticket in tickets for request in requests]


def _answered(machine: Machine, requests: Sequence[Request]) -> Iterator[int]:
    """Yield the tickets of those that would not wait. The books are put back at the end."""
    machine.limits.count(machine.leases.values())
    head: Reservation | None = None
    probed: set[str] = set()
    placed: list[tuple[str, tuple[str, ...]]] = []
    try:
        for request in chain(machine.line, requests):
            if request.outer in machine.leases or machine.placer.impossible(request):
                yield request.ticket  # decided in its outer lease; refused
                continue
            if machine.limits.reached(request):
                continue
            verdict = machine.placer.place(request, head)
            if not isinstance(verdict, Placement):
                if head is None and verdict.for_room:
                    head = machine.placer.reserve(request, machine.reservation)
                continue
            if verdict.probe and not machine.profiles.runs_unmeasured(request.type):
                if request.type in probed:
                    continue  # it waits until the first run was measured
                probed.add(request.type)
            placed.append((f"foreseen-{request.ticket}", verdict.uuids))
            machine.ledger.place(
                *placed[-1],
                verdict.mib,
                alone=verdict.alone,
                cpus=request.cpus,
                ram_mib=request.ram_mib,
                compute=request.compute,
            )
            machine.limits.add(request)
            yield request.ticket
    finally:
        for lease, uuids in placed:
            machine.ledger.remove(lease, uuids)
