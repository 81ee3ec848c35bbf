"""The real broker on a simulated machine: core, connections, rules, journal, watcher and sampler.

Replaced are only the walls: the loop, `/proc`, the files, the devices, the sockets. `Rig.start`
brings a broker up as `grn.broker.server` does.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.broker import connection as connection_module
from grn.broker import core as core_module
from grn.broker import journal as journal_module
from grn.broker import observers as observers_module
from grn.broker import watch as watch_module
from grn.broker.connection import Connection
from grn.broker.core import BrokerCore
from grn.broker.journal import Journal
from grn.broker.policies import Policies
from grn.rules.estimate import Margin
from grn.rules.machine import Machine
from grn.rules.messages import GrantWriter
from grn.rules.model import Device, Policy
from grn.rules.profiles import ProfileBook
from tests.reliability.world import DrivenDriver, Driver, Loop, Wire, World

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Rig", "installed"]

_PROCS = (
    "start_time", "is_alive", "ancestors", "marker", "with_marker", "exists", "birth",
)  # fmt: skip


class _Mps:
    """No daemon, and none is looked for."""

    masked = False

    def look(self) -> None:
        """Find nothing."""

    def close(self) -> None:
        """Nothing is open."""


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Let the broker's modules see this world instead of the machine."""
    table = world.processes
    swapped: list[tuple[Any, str, Any]] = [
        *((procs, name, getattr(table, name)) for name in _PROCS),
        (procs, "ProcessTable", lambda: table),
        (journal_module, "os", world.disk),
        (journal_module, "_read_all", world.disk.read_all),
        (watch_module, "os", table),
        (connection_module, "peer_has_died", Wire.peer_has_died),
        (core_module, "time", world),
        (observers_module, "time", world),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in swapped]
    for place, name, value in swapped:
        setattr(place, name, value)
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        for place, name, value in before:
            setattr(place, name, value)


class Rig:
    """At most one broker at a time on one world."""

    def __init__(self, world: World, *, driven: bool = False, cpus: int = 16) -> None:
        self.world = world
        self.driven = driven
        self.cpus = cpus
        self.core: BrokerCore | None = None
        self.token = 0
        self.reports: list[str] = []

    def start(self) -> BrokerCore:
        """Bring a broker up: journal, books, what a former one left, as the server does."""
        world = self.world
        world.disk.dead = False
        world.loop = Loop(world)
        self.token += 1
        driver: Driver = DrivenDriver(world) if self.driven else Driver(world)
        journal, records, report = Journal.open(
            "journal", boot=f"boot-{world.boot}", write=world.disk.write
        )
        devices = tuple(
            Device(info.uuid, info.index, info.name, info.total_mib) for info in driver.devices
        )
        machine = Machine(
            devices,
            cpus=self.cpus,
            ram_mib=None,
            profiles=ProfileBook(Margin(0, 0)),
            token=f"b{self.token}",
            provisional_after_s=5.0,
        )
        core = BrokerCore(
            world.loop,  # type: ignore[arg-type]  # as much of a loop as it uses
            machine=machine,
            backend=driver,
            masks=(None,),
            devices=devices,
            journal=journal,
            store=world.store,  # type: ignore[arg-type]  # as much of a store as it uses
            max_types=100,
            writer=GrantWriter.for_mask(devices, mask=None, style="index", extra={}),
            policies=Policies(Policy.SPREAD),
            release="0",
            on_demand=False,
            idle_exit_s=60.0,
            fast_s=0.1,
            slow_s=1.0,
            debug=False,
        )
        core.pid = 1  # in each hello: it must be the same in each process that replays a day
        core.mps = _Mps()  # type: ignore[assignment]  # the same
        self.reports = [*([report] if report else []), *machine.restore(records, core.now())]
        core.lives.take_over()
        self.core = core
        return core

    def accept(self, wire: Wire) -> None:
        """Let the broker take a connection in."""
        assert self.core is not None
        wire.protocol = Connection(self.core)
        wire.protocol.connection_made(wire)

    def hear(self, wire: Wire, data: bytes) -> None:
        """Let the broker read."""
        assert self.core is not None
        self.core.inbox[: len(data)] = data
        wire.protocol.buffer_updated(len(data))

    def hang_up(self, wire: Wire) -> None:
        """Let the broker learn that a connection has ended."""
        if wire.protocol is not None and not wire.lost:
            wire.lost = wire.broker_closed = True
            wire.protocol.connection_lost(None)

    def killed(self) -> None:
        """Take the broker away, as kill -9 does."""
        self.core = None
        self.world.loop = Loop(self.world)
        self.world.disk.dies_at = self.world.writes_left = None
        self.world.disk.dead = False

    def stopped(self) -> None:
        """Let the broker leave in order."""
        core = self.core
        assert core is not None
        core.stop("SIGTERM")
        core.close()
        for connection in list(core.connections):
            connection.close()
        self.killed()
