"""One simulated day: a list of numbers decides what happens, event by event.

A number decides alone, whatever happened before: so a list with some numbers left out is a day, too,
and `shrink.py` can look for the shortest one that fails. The last act is always calm: faults stop,
jobs end, and everybody must be answered.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING

from grn.rules import events as ev
from tests.reliability.actors import Client, Held
from tests.reliability.oracle import Oracle
from tests.reliability.rig import Rig, installed
from tests.reliability.world import BrokerDied, Choices, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.reliability.world import Process, Wire

__all__ = ["Day", "numbers"]

_CLIENTS = 5
_CALM_ROUNDS = 400
_CHECK_EVERY = 24
_SPLITS = (1, 5, 40, *[1 << 16] * 13)


def numbers(seed: int, events: int) -> list[int]:
    """Return the day of a seed: its kind, and one number for each event."""
    rng = random.Random(seed)  # noqa: S311 - a seed must give the same day anywhere
    return [rng.getrandbits(72) for _ in range(events + 1)]


class Day:
    """Acts a list of numbers out.

    Args:
        story: as `numbers` makes it; the first says on what machine, and which faults there are.
        told: called with a line for each event, for who wants to read the story.
    """

    def __init__(self, story: Sequence[int], told: Callable[[str], None] | None = None) -> None:
        kind = Choices(story[0])
        self.world = World(tuple(4000 * (1 + kind.below(4)) for _ in range(1 + kind.below(3))))
        self.rig = Rig(self.world, driven=kind.one_in(2))
        self.lying = kind.one_in(5)
        self.honest = not kind.one_in(4)
        self.oracle = Oracle(self.world, strict=not self.lying and self.honest)
        self.clients: list[Client] = []
        self.wires: list[Wire] = []
        """Those that the broker has not closed yet, in the order of their making."""
        self.trace = 0
        """A checksum of all that was said: the same for the same numbers."""
        self.deaths = 0
        self._story = story[1:]
        self._told = told
        self._named = 0
        self._strangers: set[int] = set()
        """Numbers that processes took which live on and have nothing to do with any lease."""
        self._idle: list[tuple[Process, Held]] = []
        """What jobs of killed clients had started, which has touched no device yet."""
        self._acts = self._table()

    def _table(self) -> list[Callable[[Choices], None]]:
        acts: list[tuple[int, Callable[[Choices], None]]] = [
            (100, self._deliver_to_broker),
            (80, self._deliver_to_client),
            (40, self._client_asks),
            (60, self._job_goes_on),
            (40, self._job_ends),
            (40, self._time_passes),
            (6, self._client_cancels),
            (5, self._client_dies),
            (3, self._client_is_dropped),
            (2, self._broker_dies),
            (2, self._broker_will_die),
            (4, self._device_changes),
            (3, self._disk_changes),
            (3, self._stranger),
            (1, self._broker_stops),
            (1, self._machine_restarts),
            (1, self._wall_clock_jumps),
            (3, self._look_at_status),
            (3, self._driver_changes),
        ]
        return [act for weight, act in acts for _ in range(weight)]

    # -- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Act it out, then calm down.

        Raises:
            BrokenPromise: a promise did not hold.
            Exception: the broker raised.
        """
        with installed(self.world):
            self._guarded(self._bring_up)
            for count, number in enumerate(self._story, 1):
                choices = Choices(number)
                act = choices.of(self._acts)
                if self._told is not None:
                    self._told(f"{count:4d} {self.world.now:9.3f} {act.__name__[1:]}")
                self._guarded(act, choices)
                if count % _CHECK_EVERY == 0 and self.rig.core is not None:
                    self.oracle.check(self.rig.core)
            self._calm_down()

    def _guarded(self, act: Callable[..., None], *args: Choices) -> None:
        """Do something, in which the broker may be killed."""
        try:
            act(*args)
            core = self.rig.core
            if core is not None:
                self.world.loop.run_soon()
                self.oracle.stepped(core)
        except BrokerDied:
            self._broker_is_gone()

    def _bring_up(self) -> None:
        core = self.rig.start()
        self.oracle.took_over(core)

    def _broker_is_gone(self) -> None:
        self.deaths += 1
        if self._told is not None:
            self._told("     the broker is dead")
        self.rig.killed()
        for wire in self.wires:
            wire.broker_closed = wire.lost = True
            wire.to_broker.clear()

    # -- the wire -----------------------------------------------------------------------------

    def _deliver_to_broker(self, choices: Choices) -> None:
        if self.rig.core is None:
            if choices.one_in(3):
                self._bring_up()
            return
        wires = self.wires
        if not wires:
            return
        first = choices.below(len(wires))
        for turn in range(len(wires)):
            wire = wires[(first + turn) % len(wires)]
            if not wire.lost and (wire.to_broker or wire.client_closed or wire.protocol is None):
                self._read(wire, choices)
                return

    def _read(self, wire: Wire, choices: Choices) -> None:
        if wire.protocol is None:
            self.rig.accept(wire)
        if wire.to_broker and not wire.broker_closed:
            size = choices.of(_SPLITS)
            data = bytes(wire.to_broker[:size])
            del wire.to_broker[:size]
            self.rig.hear(wire, data)
        elif wire.client_closed or wire.broker_closed:
            self.rig.hang_up(wire)

    def _deliver_to_client(self, choices: Choices) -> None:
        clients = self.clients
        if not clients:
            return
        first = choices.below(len(clients))
        for turn in range(len(clients)):
            client = clients[(first + turn) % len(clients)]
            wire = client.wire
            if wire is not None and (wire.to_client or wire.broker_closed):
                self._client_reads(client, wire, choices.of(_SPLITS))
                return
            if wire is None and self.rig.core is not None:
                self._connect(client)
                return

    def _client_reads(self, client: Client, wire: Wire, size: int) -> None:
        if wire.to_client:
            data = bytes(wire.to_client[:size])
            del wire.to_client[:size]
            self.trace = zlib.crc32(data, self.trace)
            self.oracle.heard(client, client.hear(data))
            return
        client.cut_off()
        wire.client_closed = True
        if wire.lost:
            self.wires.remove(wire)

    # -- clients ------------------------------------------------------------------------------

    def _client(self, choices: Choices) -> Client | None:
        """Choose a client, a new one now and then."""
        clients = self.clients
        chosen = choices.below(_CLIENTS)
        if chosen < len(clients):
            return clients[chosen]
        process = self.world.processes.spawn()
        if process is None:
            return None
        self._named += 1
        client = Client(self.world, process, f"c{self._named}", self.honest)
        clients.append(client)
        self.oracle.clients = clients
        self.wires.append(client.connect())
        return client

    def _client_asks(self, choices: Choices) -> None:
        client = self._client(choices)
        if client is None:
            return
        if client.wire is None:
            self._connect(client)
        elif client.talks:
            client.ask_again()
            if len(client.wishes) < 4:
                client.ask(choices)

    def _connect(self, client: Client) -> None:
        if self.rig.core is not None:
            self.wires.append(client.connect())

    def _client_cancels(self, choices: Choices) -> None:
        client = self._client(choices)
        if client is not None and client.talks:
            client.cancel(choices)

    def _client_dies(self, choices: Choices) -> None:
        if not self.clients:
            return
        client = self.clients.pop(choices.below(len(self.clients)))
        if choices.one_in(3):
            self._leave_idle(client)
        client.die(with_jobs=choices.one_in(2))
        if choices.one_in(3):
            taken = self.world.processes.spawn_as(client.process.pid)
            self._strangers.add(taken.pid)

    def _leave_idle(self, client: Client) -> None:
        """A job has just started another process: a shell, its training, which comes to it later."""
        for held in client.held.values():
            job = held.job
            if job is not None and job is not client.process and job.alive and not held.releasing:
                child = self.world.processes.spawn(job.pid, held.lease)
                if child is not None:
                    self._idle.append((child, held))
                    self.oracle.orphaned[held.lease] = child

    def _idle_goes_on(self) -> None:
        """It takes what was booked for it, as it was told that it may."""
        child, held = self._idle.pop(0)
        if child.alive:
            child.held.update(dict.fromkeys(held.uuids, held.need))
            self.world.version += 1

    def _client_is_dropped(self, choices: Choices) -> None:
        """The broker ends a connection, of a client that did not read; it lives, and comes back."""
        if not self.clients:
            return
        wire = choices.of(self.clients).wire
        if wire is not None and wire.protocol is not None and not wire.lost:
            wire.protocol.drop("does not read")
            self.rig.hang_up(wire)

    def _look_at_status(self, choices: Choices) -> None:
        client = self._client(choices)
        if client is not None and client.talks:
            client.say(op="status", id=0)

    # -- jobs ---------------------------------------------------------------------------------

    def _held(self, choices: Choices) -> tuple[Client, Held] | None:
        found = [(c, h) for c in self.clients for h in c.held.values() if not h.releasing]
        return choices.of(found) if found else None

    def _job_goes_on(self, choices: Choices) -> None:
        if self._idle and choices.one_in(4):
            self._idle_goes_on()
            return
        found = self._held(choices)
        if found is None:
            return
        client, held = found
        if held.job is None:
            client.start_job(held, choices)
            return
        job = held.job
        if not job.alive:
            return
        for uuid in held.uuids:
            now = job.held.get(uuid, 0)
            mine = held.need if not held.in_process else held.need // 2
            job.held[uuid] = min(max(now, mine), now + 1 + held.need // (1 + choices.below(3)))
            self.world.version += 1
        if choices.one_in(12) and not held.in_process:
            self._leave_something(job.held, held)

    def _leave_something(self, memory: dict[str, int], held: Held) -> None:
        """A child of the job takes part of its memory over, and may outlive it."""
        child = self.world.processes.spawn(held.job.pid if held.job else 1, held.lease)
        if child is not None:
            for uuid, mib in memory.items():
                child.held[uuid] = mib // 2
                memory[uuid] = mib - mib // 2

    def _job_ends(self, choices: Choices) -> None:
        if choices.one_in(4):
            self._leftover_ends(choices)
            return
        found = self._held(choices)
        if found is None:
            return
        client, held = found
        job = held.job
        if job is not None and job is not client.process:
            self.world.processes.end(job)
        elif job is not None and not choices.one_in(6):
            for uuid in held.uuids:
                job.held.pop(uuid, None)
            self.world.version += 1
        if client.talks:
            client.release(held, choices.below(2))

    def _leftover_ends(self, choices: Choices) -> None:
        """A process whose client or job is gone ends at last."""
        mine = {client.process.pid for client in self.clients}
        table = self.world.processes.table
        others = [
            process
            for process in table.values()
            if process.pid not in mine | self._strangers and process.parent not in mine
        ]
        if others:
            self.world.processes.end(choices.of(others))

    # -- time and faults ----------------------------------------------------------------------

    def _time_passes(self, choices: Choices) -> None:
        self.world.now += choices.of((0.0005, 0.002, 0.02, 0.11, 0.3, 1.1, 3.0, 40.0))
        self.world.loop.run_due()

    def _wall_clock_jumps(self, choices: Choices) -> None:
        self.world.day_s += choices.of((-86400.0, 86400.0, -1.0))

    def _broker_dies(self, choices: Choices) -> None:
        del choices
        if self.rig.core is not None:
            raise BrokerDied

    def _broker_will_die(self, choices: Choices) -> None:
        """In one of the next operations on the disk, or between two answers."""
        if self.rig.core is None:
            return
        if choices.one_in(2):
            self.world.disk.dies_after = choices.below(60)
            self.world.disk.dies_at = 1 + choices.below(5)
        else:
            self.world.writes_left = 1 + choices.below(6)

    def _broker_stops(self, choices: Choices) -> None:
        del choices
        if self.rig.core is not None:
            self.rig.stopped()
            for wire in self.wires:
                wire.broker_closed = wire.lost = True
                wire.to_broker.clear()

    def _machine_restarts(self, choices: Choices) -> None:
        """Every process is gone, and the end of each file may be."""
        if not choices.one_in(3):
            return
        for process in list(self.world.processes.table.values()):
            self.world.processes.end(process)
        self._broker_is_gone()
        self.clients.clear()
        self.wires.clear()
        self._strangers.clear()
        self.world.boot += 1
        for file in self.world.disk.files.values():
            if file and choices.one_in(2):
                del file[choices.below(len(file)) :]

    def _device_changes(self, choices: Choices) -> None:
        card = choices.of(self.world.cards)
        self.world.version += 1
        if card.state != "ok" or choices.one_in(2):
            card.state = "ok" if card.state != "ok" else choices.of(("lost", "stale"))
        else:
            card.xids = choices.of(((31,), (13, 43), (48,), (94,)))

    def _driver_changes(self, choices: Choices) -> None:
        self.world.slowness = choices.below(4)
        if self.lying:
            choices.of(self.world.cards).lie = choices.below(6)
            self.world.version += 1

    def _stranger(self, choices: Choices) -> None:
        card = choices.of(self.world.cards)
        card.foreign = 0 if card.foreign else choices.below(card.info.total_mib // 2)
        self.world.version += 1

    def _disk_changes(self, choices: Choices) -> None:
        disk = self.world.disk
        disk.full = choices.below(900) if disk.full is None and choices.one_in(2) else None

    # -- calm ---------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """Stop all faults; then everybody is answered, and everything is given back."""
        world = self.world
        world.disk.full = world.disk.dies_at = world.writes_left = None
        world.slowness = 0
        for card in world.cards:
            card.state, card.foreign, card.lie, card.xids = "ok", 0, 0, ()
        world.version += 1
        for turn in range(_CALM_ROUNDS):
            self._guarded(self._calm_round)
            core = self.rig.core
            if core is not None and turn > 2 and self.oracle.all_is_well(core):
                self.oracle.check(core)
                return
        assert self.rig.core is not None
        raise self.oracle.never_ended(self.rig.core)

    def _calm_round(self) -> None:
        if self.rig.core is None:
            self._bring_up()
        assert self.rig.core is not None
        self.rig.core.step(ev.Trusted(self.world.now))  # somebody has looked after the devices
        world = self.world
        world.version += 1
        mine = {client.process.pid for client in self.clients}
        jobs = {h.job.pid for c in self.clients for h in c.held.values() if h.job is not None}
        for process in list(world.processes.table.values()):
            if process.pid not in mine | jobs | self._strangers:
                world.processes.end(process)
        for client in self.clients:
            client.process.held.clear()
            if client.wire is None:
                self._connect(client)
            elif client.talks:
                client.ask_again()
                for held in list(client.held.values()):
                    self._finish(client, held)
        self._exchange()
        world.now += 0.4 if world.now < 1e9 else 0.0
        world.loop.run_due()
        self._exchange()

    def _finish(self, client: Client, held: Held) -> None:
        if held.releasing:
            return
        if held.job is not None and held.job is not client.process:
            self.world.processes.end(held.job)
        client.release(held)

    def _exchange(self) -> None:
        for wire in list(self.wires):
            while not wire.lost and (wire.to_broker or wire.client_closed or wire.protocol is None):
                self._read_all(wire)
            if wire.lost and wire.client_closed:
                self.wires.remove(wire)
        self.world.loop.run_soon()
        for client in self.clients:
            wire = client.wire
            if wire is not None and (wire.to_client or wire.broker_closed):
                self._client_reads(client, wire, 1 << 20)

    def _read_all(self, wire: Wire) -> None:
        if wire.protocol is None:
            self.rig.accept(wire)
        if wire.to_broker and not wire.broker_closed:
            data = bytes(wire.to_broker[: 1 << 16])
            del wire.to_broker[: 1 << 16]
            self.rig.hear(wire, data)
        else:
            self.rig.hang_up(wire)
