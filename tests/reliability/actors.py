"""Clients of the simulated machine: they ask, hold, run jobs, give back, and come back to a successor.

They keep to the protocol as `grn.client` and `grn.supervise` do, and remember on their own what they
were promised: `oracle.py` judges the broker by that, not by what it says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.rules.wire import Frames, decode, encode
from tests.reliability.world import Wire

if TYPE_CHECKING:
    from tests.reliability.world import Choices, Process, World

__all__ = ["Client", "Held", "Wish"]

_TYPES = ("a", "b", "c")
_MIB = (None, None, 500, 2000, 2001, 3000, 5000, 8000)


@dataclass(slots=True, eq=False)
class Wish:
    """One request that was not answered yet."""

    message: dict[str, Any]
    asked_s: float
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class Held:
    """A lease as its client knows it."""

    lease: str
    uuids: tuple[str, ...]
    mib: int
    """What it was told that it may use on each device."""
    need: int
    """What its job will take of each device."""
    probe: bool
    in_process: bool
    job: Process | None = None
    releasing: bool = False


@dataclass(eq=False)
class Client:
    """One client process: its connection, what it waits for, what it holds."""

    world: World
    process: Process
    name: str
    honest: bool = True
    """Its jobs keep to what was booked for them."""
    wire: Wire | None = None
    last_id: int = 0
    wishes: dict[int, Wish] = field(default_factory=dict)
    again: list[Wish] = field(default_factory=list)
    """Asked of a broker that is gone, to be asked of the next one."""
    held: dict[str, Held] = field(default_factory=dict)
    adopting: int = 0
    claimed: tuple[str, ...] = ()
    answered: int = 0
    refused: list[str] = field(default_factory=list)
    _frames: Frames = field(default_factory=Frames)
    _releases: dict[int, str] = field(default_factory=dict)

    # -- talking ------------------------------------------------------------------------------

    def say(self, **message: Any) -> None:
        """Send a message, if there is anybody to send it to."""
        wire = self.wire
        if wire is not None and not wire.broker_closed:
            wire.to_broker += encode(message)

    def _id(self) -> int:
        self.last_id += 1
        return self.last_id

    def connect(self) -> Wire:
        """Connect and greet; to a successor, say first what is held."""
        self.wire = Wire(self.world, self.process.pid)
        self._frames = Frames()
        self.say(op="hello", magic="GRN", version=1, features=[], session=self.name)
        if not self.last_id:
            return self.wire  # it was never here before
        self.adopting = self._id()
        self.claimed = tuple(sorted(self.held))
        self.say(op="adopt", id=self.adopting, leases=list(self.claimed), nested=[])
        return self.wire

    def cut_off(self) -> None:
        """The connection has ended: what was waited for is asked again, later."""
        self.wire = None
        self.again += [wish for wish in self.wishes.values() if not wish.cancelled]
        self.wishes.clear()
        self._releases.clear()
        self.adopting = 0

    @property
    def talks(self) -> bool:
        """Whether it is connected, and done with taking its leases along."""
        return self.wire is not None and not self.adopting

    def ask(self, choices: Choices) -> None:
        """Ask for something."""
        mib = choices.of(_MIB)
        gpus = 2 if choices.one_in(8) else 1
        message: dict[str, Any] = {
            "op": "acquire",
            "type": choices.of(_TYPES),
            "gpus": gpus,
            "memory_mib": mib,
            "in_process": choices.one_in(3),
        }
        rare = choices.below(16)
        if rare == 0:
            message["memory_mib"] = "whole"
        elif rare == 1:
            message |= {"gpus": None, "memory_mib": None, "cpus": 1 + choices.below(8)}
        elif rare == 2:
            message["priority"] = choices.below(3)
        elif rare == 3:
            message["compute"] = 10 + choices.below(60)
        elif rare == 4:
            message["cpus"] = 1 + choices.below(12)
        self._ask(Wish(message, self.world.now))

    def _ask(self, wish: Wish) -> None:
        request_id = self._id()
        self.wishes[request_id] = wish
        now = self.world.now
        self.say(id=request_id, waited_s=now - wish.asked_s, asked_s=wish.asked_s, **wish.message)

    def cancel(self, choices: Choices) -> None:
        """Withdraw one of the wishes; a grant may have crossed that on the way."""
        if self.wishes:
            request_id = choices.of(list(self.wishes))
            self.wishes[request_id].cancelled = True
            self.say(op="cancel", id=request_id)

    def release(self, held: Held, exit_code: int = 0) -> None:
        """Give a lease back; said again to a successor if no answer came."""
        held.releasing = True
        request_id = self._id()
        self._releases[request_id] = held.lease
        self.say(op="release", id=request_id, lease=held.lease, exit_code=exit_code)

    # -- hearing ------------------------------------------------------------------------------

    def hear(self, data: bytes) -> list[tuple[str, Any]]:
        """Take bytes in; return what happened, for the oracle: ("granted", `Held`), ("lost", id)."""
        happened: list[tuple[str, Any]] = []
        for body in self._frames.feed(data):
            message = decode(body)
            op = message["op"]
            if op == "granted":
                happened += self._granted(message)
            elif op == "adopted" and message["id"] == self.adopting:
                self.adopting = 0
                happened += self._adopted(message["leases"])
            elif op in ("refused", "error"):
                self._refused(message)
            elif op == "released":
                self._gone(self._releases.pop(message["id"], ""))
        return happened

    def _granted(self, message: dict[str, Any]) -> list[tuple[str, Any]]:
        wish = self.wishes.pop(message["id"])
        self.answered += 1
        mib = message["memory_mib"] or 0
        asked = wish.message["memory_mib"]
        need = min(mib, asked) if isinstance(asked, int) else mib * (1 + self.answered % 7) // 8
        if not self.honest and self.answered % 3 == 0:
            need = need * 3 // 2
        held = Held(
            message["lease"],
            tuple(device["uuid"] for device in message["devices"]),
            mib,
            need,
            message["probe"],
            wish.message["in_process"],
        )
        assert held.lease not in self.held, "a lease granted twice"
        self.held[held.lease] = held
        if wish.cancelled:
            self.release(held)
        return [("granted", held)]

    def _adopted(self, leases: list[str]) -> list[tuple[str, Any]]:
        lost = []
        for lease in self.claimed:
            held = self.held.get(lease)
            if held is None:
                continue
            if held.releasing:
                if lease in leases:
                    self.release(held)
                else:
                    self._gone(lease)  # its release had been taken in
            elif lease not in leases:
                lost.append(("lost", lease))
        again, self.again = self.again, []
        for wish in again:
            self._ask(wish)
        return lost

    def _refused(self, message: dict[str, Any]) -> None:
        request_id = message["id"]
        lease = self._releases.pop(request_id, None)
        if lease is not None:
            self._gone(lease)
            return
        wish = self.wishes.pop(request_id, None)
        if wish is None:
            return
        if message["code"] in ("disk", "shutting-down") and not wish.cancelled:
            self.again.append(wish)  # for its user it still waits
            return
        self.answered += 1
        self.refused.append(message["code"])

    def ask_again(self) -> None:
        """Ask again what was refused for a reason that passes."""
        again, self.again = self.again, []
        for wish in again:
            self._ask(wish)

    def _gone(self, lease: str) -> None:
        self.held.pop(lease, None)

    # -- jobs ---------------------------------------------------------------------------------

    def start_job(self, held: Held, choices: Choices) -> None:
        """Start the job of a lease and name it; its name may come late, or never."""
        if held.in_process:
            held.job = self.process
            return
        job = self.world.processes.spawn(self.process.pid, held.lease)
        if job is None:
            return
        held.job = job
        if not choices.one_in(10):
            self.say(op="started", lease=held.lease, pid=job.pid)

    def die(self, *, with_jobs: bool) -> None:
        """Be killed; with it, or not, those of its jobs that are processes of their own."""
        if with_jobs:
            for held in self.held.values():
                if held.job is not None:
                    self.world.processes.end(held.job)
        self.world.processes.end(self.process)
        if self.wire is not None:
            self.wire.client_closed = True
