"""Journals as a broker writes them: a random day of leases, each step with the books it must give."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from grn.broker.journal import _decode_prefix, _encode
from grn.rules import events as ev
from grn.rules.estimate import Margin
from grn.rules.machine import Machine
from grn.rules.model import Device, DeviceState, End, Owner, Request
from grn.rules.profiles import ProfileBook

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CAPACITY_MIB", "books", "day", "fresh_machine", "written"]

CAPACITY_MIB = 16000
DEVICES = tuple(Device(f"GPU-{n}", n, "Simulated", CAPACITY_MIB) for n in range(4))


def fresh_machine() -> Machine:
    """Return a machine with empty books."""
    return Machine(
        DEVICES, cpus=64, ram_mib=None, profiles=ProfileBook(Margin(0, 0)), token="h",  # noqa: S106 - names leases, opens nothing
    )  # fmt: skip


def day(seed: int, records: int) -> list[dict[str, Any]]:
    """Act requests, starts, readings and ends out until so many records were to be written."""
    rng = random.Random(seed)  # noqa: S311 - a day is replayed, not guessed
    machine = fresh_machine()
    written: list[dict[str, Any]] = [dict(machine.snapshot()[0])]
    held: dict[str, int] = {}
    now, ticket = 0.0, 0
    while len(written) < records:
        now += rng.random()
        effects: list[ev.Effect] = []
        kind = rng.randrange(6)
        leases = sorted(machine.leases)
        if kind < 2 or not leases:
            ticket += 1
            effects += machine.step(ev.Asked(now, _wish(rng, ticket)))
            effects += machine.step(ev.Settle(now))
        elif kind == 2:
            lease = rng.choice(leases)
            effects += machine.step(ev.Started(now, lease, Owner(5000 + ticket, ticket)))
            held[lease] = rng.choice((0, 300, 900))
        elif kind == 3:
            xids = (48,) if rng.random() < 0.05 else ()
            effects += machine.step(_look(machine, held, now, xids))
        elif kind == 4:
            ticket += 1
            lease = rng.choice(leases)
            effects += machine.step(ev.Released(now, lease, End(exit_code=0), ticket))
        else:
            held.pop(rng.choice(leases), None)
            effects += machine.step(_look(machine, held, now, ()))
        written += [effect.record for effect in effects if isinstance(effect, ev.Record)]
        for gone in held.keys() - machine.leases.keys():
            del held[gone]
    return written[:records]


def _wish(rng: random.Random, ticket: int) -> Request:
    owner = Owner(1000 + ticket % 7, 50 + ticket % 7, 1000)
    mib = rng.choice((None, 100, 2500, 7000))
    return Request(
        ticket,
        rng.choice("abc"),
        owner,
        gpus=rng.choice((1, 1, 2)),
        memory_mib=mib,
        whole=mib is None and rng.random() < 0.2,
        cpus=rng.choice((None, 2)),
        session=f"s{ticket % 7}",
        compute=rng.choice((None, 10)),
    )


def _look(machine: Machine, held: dict[str, int], now: float, xids: tuple[int, ...]) -> ev.Sampled:
    readings = []
    for device in DEVICES:
        here = {
            lease: held[lease]
            for lease in machine.ledger.by_uuid[device.uuid].bookings
            if lease in held
        }
        readings.append(
            ev.Reading(
                device.uuid,
                DeviceState.OK,
                "",
                sum(here.values()),
                0,
                here,
                {},
                xids=xids if device.index == 0 else (),
            )
        )
    return ev.Sampled(now, tuple(readings), {})


def written(records: Sequence[dict[str, Any]], boot: str) -> bytes:
    """Return the bytes of a journal with these records."""
    header = {"grn_journal": 1, "boot_id": boot}
    return b"".join(map(_encode, [header, *records]))


def books(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Restore them, check every promise, and return what is held: lease -> devices, MiB, state."""
    machine = fresh_machine()
    assert machine.restore(records, 0.0) == []
    machine.check_invariants()
    for book in machine.ledger.books:
        assert book.booked_mib <= CAPACITY_MIB, book
    return {x.id: (x.uuids, x.booked_mib, str(x.state)) for x in machine.leases.values()}


def decoded(content: bytes) -> list[dict[str, Any]]:
    """Read records back as the journal does."""
    return _decode_prefix(content)[0]
