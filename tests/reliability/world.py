# ruff: noqa: D102 - stand-ins have the methods of what they stand in for
"""A machine that exists only here: time, processes, devices, a disk and a wire, all told what to do.

Nothing of it has a will of its own. `rig.py` runs the real broker on it, `sweep.py` lets seeds decide
what happens. Everything is deterministic, and no call to the system is made.
"""

from __future__ import annotations

import errno
import heapq
import os
import socket
import struct
from asyncio import Transport
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.devices.base import DeviceInfo, DeviceReading, HeadroomRule, HealthReading, ProcessUse
from tests.reliability.disk import BrokerDied, Disk, Store

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BrokerDied", "Choices", "Disk", "Driver", "Loop", "Processes", "Wire", "World"]


class Choices:
    """What happens, read off one number: the same number decides the same, whatever was before."""

    __slots__ = ("_left",)

    def __init__(self, number: int) -> None:
        self._left = number

    def below(self, count: int) -> int:
        """Choose one of so many."""
        self._left, chosen = divmod(self._left, count)
        return chosen

    def one_in(self, count: int) -> bool:
        """Choose something rare."""
        self._left, chosen = divmod(self._left, count)
        return chosen == 0

    def of(self, options: Any) -> Any:
        """Choose one of these."""
        self._left, chosen = divmod(self._left, len(options))
        return options[chosen]


# -- time -----------------------------------------------------------------------------------------


class _Timer:
    __slots__ = ("args", "call", "due", "number")

    def __init__(
        self, due: float, number: int, call: Callable[..., None] | None, args: Any
    ) -> None:
        self.due, self.number, self.call, self.args = due, number, call, args

    def __lt__(self, other: _Timer) -> bool:
        return (self.due, self.number) < (other.due, other.number)

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self.call = None


class _Future:
    def __init__(self) -> None:
        self.value: Any = None

    def done(self) -> bool:
        return self.value is not None

    def set_result(self, value: Any) -> None:
        self.value = value


class Loop:
    """As much of an event loop as the broker uses. One per broker: it dies with it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._timers: list[_Timer] = []
        self._soon: list[_Timer] = []
        self._numbers = 0
        self.readers: dict[int, tuple[Callable[..., None], Any]] = {}

    def time(self) -> float:
        return self._world.now

    def create_future(self) -> _Future:
        return _Future()

    def call_soon(self, call: Callable[..., None], *args: Any) -> _Timer:
        timer = _Timer(0.0, 0, call, args)
        self._soon.append(timer)
        return timer

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> _Timer:
        return self.call_at(self._world.now + delay, call, *args)

    def call_at(self, due: float, call: Callable[..., None], *args: Any) -> _Timer:
        self._numbers += 1
        timer = _Timer(due, self._numbers, call, args)
        heapq.heappush(self._timers, timer)
        return timer

    def add_reader(self, fd: int, call: Callable[..., None], *args: Any) -> None:
        self.readers[fd] = (call, args)

    def remove_reader(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def run_soon(self) -> None:
        """Run what is due at once, and what that makes due."""
        while self._soon:
            soon, self._soon = self._soon, []
            for timer in soon:
                if timer.call is not None:
                    timer.call(*timer.args)

    def run_due(self) -> None:
        """Run the timers that are due by now."""
        now, timers = self._world.now, self._timers
        while timers and timers[0].due <= now:
            timer = heapq.heappop(timers)
            if timer.call is not None:
                timer.call(*timer.args)
                self.run_soon()

    def next_due(self) -> float | None:
        """When the next timer is due."""
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None


# -- processes ------------------------------------------------------------------------------------

FIRST_PID, PIDS = 100, 30
"""So few numbers that each is soon somebody else's."""

SEEN, UNSEEN = 2, 3
"""A process of somebody else, and one in another pid namespace."""


@dataclass(slots=True, eq=False)
class Process:
    """One process: who it is, and what it holds on devices, in MiB by UUID."""

    pid: int
    start: int
    parent: int
    marker: str | None
    held: dict[str, int] = field(default_factory=dict)
    alive: bool = True


class Processes:
    """The process table, with the functions of `grn.procs`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.table: dict[int, Process] = {}
        self._next = 0
        self._start = 1000
        self._descriptors: dict[int, Process] = {}
        self._next_fd = 10

    def spawn(self, parent: int = 1, marker: str | None = None) -> Process | None:
        """Start a process under the next number that is free; `None` if none is."""
        for _ in range(PIDS):
            self._next = (self._next + 1) % PIDS
            pid = FIRST_PID + self._next
            if pid not in self.table:
                self._start += 1
                process = self.table[pid] = Process(pid, self._start, parent, marker)
                return process
        return None

    def spawn_as(self, pid: int) -> Process:
        """Start a process under this number, which is free."""
        self._start += 1
        process = self.table[pid] = Process(pid, self._start, 1, None)
        return process

    def end(self, process: Process) -> None:
        """End a process: its memory is free, its children are init's, who watches it hears of it."""
        if not process.alive:
            return
        process.alive = False
        process.held.clear()
        self._world.version += 1
        del self.table[process.pid]
        for child in self.table.values():
            if child.parent == process.pid:
                child.parent = 1
        for fd, watched in self._descriptors.items():
            if watched is process:
                self._world.told_of_end(fd)

    # -- what the broker asks -----------------------------------------------------------------

    def pidfd_open(self, pid: int) -> int:
        process = self.table.get(pid)
        if process is None:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        self._next_fd += 1
        self._descriptors[self._next_fd] = process
        return self._next_fd

    def close(self, fd: int) -> None:
        self._descriptors.pop(fd, None)

    def start_time(self, pid: int) -> int | None:
        process = self.table.get(pid)
        return process.start if process is not None else None

    def identity(self, pid: int) -> int | None:
        return 1 if pid == SEEN else self.start_time(pid)

    def is_alive(self, pid: int, start: int | None) -> bool:
        process = self.table.get(pid)
        return process is not None and (start is None or process.start == start)

    def birth(self, pid: int) -> tuple[int, int] | None:
        process = self.table.get(pid)
        if process is None:
            return (1, 1) if pid == SEEN else None
        return process.start, process.parent

    def exists(self, pid: int) -> bool:
        return pid in self.table or pid == SEEN

    def ancestors(self, pid: int) -> tuple[int, ...]:
        found: list[int] = []
        process = self.table.get(pid)
        while process is not None and process.parent > 1 and len(found) < PIDS:
            found.append(process.parent)
            process = self.table.get(process.parent)
        return tuple(found)

    def marker(self, pid: int) -> str | None:
        process = self.table.get(pid)
        return process.marker if process is not None else None

    def cgroups(self, pid: int) -> tuple[str, ...]:
        del pid
        return ()

    def with_marker(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for pid, process in self.table.items():
            if process.marker is not None:
                found.setdefault(process.marker, []).append(pid)
        return found

    def in_first_pid_namespace(self) -> bool:
        return True


# -- devices --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Card:
    """One device as it is, and how it answers."""

    info: DeviceInfo
    state: str = "ok"
    foreign: int = 0
    xids: tuple[int, ...] = ()
    lie: int = 0
    """How the driver lies: 0 not at all; see `Driver.reading`."""


class Driver:
    """The devices as a backend shows them. `DrivenDriver` is one that answers later."""

    spec = "sim:world"
    meter = "device"
    headroom_default = HeadroomRule()
    note = ""
    numbers_differ = ""

    def __init__(self, world: World) -> None:
        self._world = world
        self.devices = tuple(card.info for card in world.cards)
        self._seen = -1

    def job_env(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        """Nothing is open."""

    def unchanged_since_last_read(self) -> bool:
        return self._seen == self._world.version

    def read(self, roots: object, places: object) -> tuple[DeviceReading, ...]:
        del roots, places
        self._seen = self._world.version
        return tuple(map(self._reading, self._world.cards))

    def _reading(self, card: Card) -> DeviceReading:
        uuid = card.info.uuid
        if card.state != "ok":
            return DeviceReading(uuid, card.state, "as the world has it")  # type: ignore[arg-type]  # a state
        xids, card.xids = card.xids, ()
        uses = tuple(
            ProcessUse(process.pid, process.held[uuid])
            for process in self._world.processes.table.values()
            if uuid in process.held
        )
        used = card.foreign + sum(use.mib or 0 for use in uses)
        if card.foreign:
            uses = (*uses, ProcessUse(SEEN if card.foreign % 2 else UNSEEN, card.foreign))
        if card.lie:
            used, told = _lies(card.lie, used, uses)
            return DeviceReading(uuid, "ok", "", used, told, (), xids)
        health = HealthReading(False, False, 0, 0) if xids else None
        return DeviceReading(uuid, "ok", "", used, uses, (), xids, health)


def _lies(
    lie: int, used: int, uses: tuple[ProcessUse, ...]
) -> tuple[int | None, tuple[ProcessUse, ...] | None]:
    if lie == 1:
        return used, None  # who holds what is not said
    if lie == 2:
        return used, uses[1:]  # one is left out
    if lie == 3:
        return used, (*uses, ProcessUse(99_999, 300))  # one of another pid namespace
    if lie == 4:
        return None, tuple(ProcessUse(use.pid, None) for use in uses)
    return used // 2, uses


class DrivenDriver(Driver):
    """A driver that is asked and answers later; some devices do not answer in time."""

    def ask(self, answer: Callable[[Any], None], *, health: bool) -> None:
        del health
        world = self._world
        delay = (0.0, 0.001, 0.02, 0.3)[world.slowness]
        early = self.read(None, None) if world.slowness % 2 else None

        def later() -> None:
            answer(self.read(None, None) if early is None else early)

        world.loop.call_later(delay, later)


# -- the wire -------------------------------------------------------------------------------------


class Wire(Transport):
    """One connection: bytes on their way in both directions, and the broker's end of it."""

    def __init__(self, world: World, pid: int) -> None:
        super().__init__()
        self._world = world
        self.pid = pid
        self.process = world.processes.table.get(pid)
        self.to_broker = bytearray()
        self.to_client = bytearray()
        self.client_closed = False
        self.broker_closed = False
        self.protocol: Any = None
        self.lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name, default
        return self

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.pack("3i", self.pid, 0, 0)

    def peer_has_died(self) -> bool:
        """Stand in for what the kernel says of who made a connection."""
        return self.process is not None and not self.process.alive

    def write(self, data: Any) -> None:
        world = self._world
        if world.writes_left is not None:
            world.writes_left -= 1
            if world.writes_left <= 0:
                world.writes_left = None
                world.disk.dead = True
                raise BrokerDied
        if not self.client_closed:
            self.to_client += data

    def is_closing(self) -> bool:
        return self.broker_closed

    def close(self) -> None:
        self.broker_closed = True

    def abort(self) -> None:
        self.broker_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


# -- all of it ------------------------------------------------------------------------------------


class World:
    """The machine. `loop` is that of the broker that runs, which `rig.py` puts in."""

    def __init__(self, sizes_mib: tuple[int, ...]) -> None:
        self.now = 1000.0
        self.day_s = 0.0
        """What the wall clock is off by: nobody may care."""
        self.version = 0
        self.slowness = 0
        self.boot = 0
        self.writes_left: int | None = None
        self.disk = Disk()
        self.store = Store(self.disk)
        self.processes = Processes(self)
        self.cards = [
            Card(DeviceInfo(index, f"GPU-{index}", "Simulated", mib))
            for index, mib in enumerate(sizes_mib)
        ]
        self.loop = Loop(self)

    # as the module `time`
    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.day_s

    def told_of_end(self, fd: int) -> None:
        """Let whoever watches a process hear of its end, at its next turn."""
        reader = self.loop.readers.get(fd)
        if reader is not None:
            call, args = reader
            self.loop.call_soon(call, *args)
