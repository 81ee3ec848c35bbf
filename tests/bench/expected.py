"""What it costs to look ahead: 200 leases on 16 devices, 200 requests that wait, of few or many types."""

from __future__ import annotations

import time

from grn.rules import events as ev
from grn.rules.estimate import Margin
from grn.rules.expected import MOST_WAITERS, expected_starts
from grn.rules.machine import Machine
from grn.rules.model import Device, Owner, Request
from grn.rules.profiles import ProfileBook
from tests.bench.figures import Figure

__all__ = ["measure"]

_DEVICES = 16
_LEASES = 200
_RUNNING_TYPES = 40
_LIMIT_MS = 20.0


def measure(*, quick: bool) -> list[Figure]:
    """Measure processor time of one look ahead, the shortest of several."""
    rounds = 3 if quick else 20
    return [_figure(types, rounds) for types in (1, 5, MOST_WAITERS)]


def _figure(types: int, rounds: int) -> Figure:
    machine = _busy(types)
    found: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        expected_starts(machine, 50.0)
        found.append(time.process_time() - began)
    name = f"look ahead, {len(machine.line)} waiting, of {types} type{'s' if types > 1 else ''}"
    return Figure("expected", name, 1000 * min(found), "ms", limit=_LIMIT_MS)


def _busy(types: int) -> Machine:
    """Fill the devices with jobs of known run times, and let as many wait."""
    profiles = ProfileBook(Margin(0, 0))
    for kind in range(max(types, _RUNNING_TYPES)):
        for run in range(20):
            profiles.of(f"t{kind}", "m").succeeded(5800 + kind, 100.0 + 37 * run, "sampled")
    devices = [Device(f"d{n}", n, "m", 81920) for n in range(_DEVICES)]
    machine = Machine(devices, cpus=64, ram_mib=None, profiles=profiles, token="t")  # noqa: S106
    for ticket in range(1, _LEASES + MOST_WAITERS + 1):
        kind = ticket % (_RUNNING_TYPES if ticket <= _LEASES else types)
        request = Request(ticket, f"t{kind}", Owner(ticket, ticket), arrived_s=ticket / 1000)
        machine.step(ev.Asked(0.0, request))
    machine.step(ev.Settle(0.0))
    return machine
