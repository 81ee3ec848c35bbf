"""One card as the broker sees it: its worker, what that said last, and what to do when it does not.

A worker that misses a deadline is not waited for again until it has answered in time; after
`GIVE_UP_S` without a word it is killed. A worker that is gone, whatever the reason, is replaced after
a while that doubles. A driver that is merely slow (`SLOW_S`) is believed when it answers, and its
answer stands until the next can come. One that took longer is not: part of it was read long ago. It
brings the next question forward.

Must not: wait. All happens in callbacks of the event loop.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from grn.devices.base import DeviceReading
from grn.devices.nvml.readings import readings_from

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from grn.devices.base import State
    from grn.devices.nvml.found import Card
    from grn.devices.nvml.nursery import Nursery, Worker
    from grn.devices.nvml.round import Round

__all__ = ["DEADLINE_S", "GIVE_UP_S", "REPEAT_S", "SLOW_S", "Link"]

DEADLINE_S = 0.3
REPEAT_S = 1.0
"""For how long the last reading stands for one that did not come."""

SLOW_S = 2.5
"""An answer that took longer tells of the past."""

GIVE_UP_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
MOST_UNDEAD = 4
"""Killed workers that the driver does not let go of; one more would only join them."""

log = logging.getLogger("grn.broker")


class Link:
    """The way to one card."""

    def __init__(self, card: Card, uuids: Sequence[str], worker: Worker, nursery: Nursery) -> None:
        self.card = card
        self.uuids = tuple(uuids)
        self.clean = True
        """Whether an answer can be waited for."""
        self.worker: Worker | None = worker
        self._order = tuple(device.uuid for device in card.devices)
        self._nursery = nursery
        self._loop: asyncio.AbstractEventLoop | None = None
        self._trouble: tuple[State, str] | None = None
        self._why = "it has not been read yet"
        self._last: dict[str, DeviceReading] = {}
        self._answered_s = float("-inf")
        self._stands_s = REPEAT_S
        self._carried: dict[str, DeviceReading] = {}
        self._number = 0
        self._asked_s: float | None = None
        self._probing = False
        self._rounds: list[Round] = []
        self._next: list[Round] = []
        self._born_s = 0.0
        self._wait_s = FIRST_WAIT_S
        self._undead: set[int] = set()
        self._watchdog: asyncio.TimerHandle | None = None
        self._rebirth: asyncio.TimerHandle | None = None

    # -- asking ---------------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the worker from this loop on."""
        self._loop = loop
        if self.worker is not None:
            loop.add_reader(self.worker.channel.fileno(), self._readable)

    def ask(self, of: Round) -> bool:
        """Ask on behalf of a round; False: it need not wait, since nobody knows for how long."""
        if not self.clean:
            if self._asked_s is None:
                self._send([], health=of.health)
            return False
        self._next.append(of)
        if self._asked_s is None:
            self._send_next()
        return self.clean

    def missed(self, of: Round) -> None:
        """A round's deadline is over."""
        self._rounds = [r for r in self._rounds if r is not of]
        self._next = [r for r in self._next if r is not of]
        if self._asked_s is not None and time.monotonic() - self._asked_s >= DEADLINE_S:
            self._doubt(f"the driver has not answered for {self._silent_s():.1f} s")

    def readings(self) -> list[DeviceReading]:
        """Return what is known of each device now; events are told once."""
        if self._trouble is not None:
            state, reason = self._trouble
            found = [DeviceReading(uuid, state, reason) for uuid in self.uuids]
        elif time.monotonic() - self._answered_s <= self._stands_s:
            gone = "the driver does not know this slice any more"
            found = [self._last.get(u) or DeviceReading(u, "lost", gone) for u in self.uuids]
        else:
            why = self._why
            if self._asked_s is not None and self.worker is not None:
                why = f"the driver has not answered for {self._silent_s():.1f} s"
            found = [DeviceReading(uuid, "stale", why) for uuid in self.uuids]
        carried, self._carried = self._carried, {}
        if not carried:
            return found
        return [_with(reading, carried.get(reading.uuid)) for reading in found]

    def _silent_s(self) -> float:
        return time.monotonic() - (self._asked_s or self._born_s)

    def _send_next(self) -> None:
        rounds, self._next = self._next, []
        self._send(rounds, health=any(r.health for r in rounds))

    def _send(self, rounds: list[Round], *, health: bool) -> None:
        if self.worker is None:
            return
        self._number += 1
        self._rounds = rounds
        self._probing = False
        self._asked_s = time.monotonic()
        self.worker.channel.send({"number": self._number, "health": health})
        self._watch()

    # -- hearing --------------------------------------------------------------------------------

    def _readable(self) -> None:
        worker = self.worker
        if worker is None:
            return
        for message in worker.channel.receive():
            if "answer" in message:
                self._answered(message)
            elif "card" in message:
                self._introduced(message["card"])
            else:
                self._troubled(message)
        if worker.channel.ended:
            self._gone("the process that asks the driver for it died")

    def _answered(self, message: dict[str, Any]) -> None:
        sent, rounds = self._asked_s, self._rounds
        took_s = message["at_s"] - sent if sent is not None else float("inf")
        found = readings_from(self._order, message)
        for uuid, reading in found.items():
            if reading.xids or reading.accounted:
                self._carried[uuid] = _with(reading, self._carried.get(uuid))
                found[uuid] = reading._replace(xids=(), accounted=())
        self._asked_s, self._rounds = None, []
        if took_s <= DEADLINE_S:
            self._believe(found)
        else:
            self._doubt("the driver answered too late")
            if took_s <= SLOW_S:
                self._keep(found, stands_s=REPEAT_S + 2 * took_s)
            if not (self._next or self._probing):
                self._send([], health=False)
                self._probing = True  # if this one is late too, the next round asks again
        for waiting in rounds:
            waiting.answered(self)
        if self._asked_s is None and self._next:
            self._send_next()

    def _believe(self, found: dict[str, DeviceReading]) -> None:
        if not self.clean:
            log.info("device-answers card=%s", self.card.uuid)
        self.clean = True
        self._keep(found, stands_s=REPEAT_S)
        if self._answered_s - self._born_s > self._wait_s:
            self._wait_s = FIRST_WAIT_S

    def _keep(self, found: dict[str, DeviceReading], *, stands_s: float) -> None:
        self._trouble = None
        self._last = found
        self._answered_s = time.monotonic()
        self._stands_s = stands_s

    def _introduced(self, told: dict[str, Any]) -> None:
        """A new worker has found the card: ask it, and believe it when it answers in time."""
        self._order = tuple(device["uuid"] for device in told["devices"])
        self._asked_s = None
        self._send([], health=False)

    def _troubled(self, message: dict[str, Any]) -> None:
        state: State = "lost" if message["trouble"] == "lost" else "stale"
        reason = str(message["reason"])
        self._doubt(reason)
        self._trouble = (state, reason)
        for uuid in self.uuids if message.get("xids") else ():
            last = DeviceReading(uuid, state, reason, xids=tuple(message["xids"]))
            self._carried[uuid] = _with(last, self._carried.get(uuid))

    # -- what goes wrong ------------------------------------------------------------------------

    def _doubt(self, why: str) -> None:
        if self.clean:
            log.warning("device-doubtful card=%s reason=%r", self.card.uuid, why)
        self.clean = False
        self._why = why

    def _gone(self, why: str) -> None:
        """The worker is gone: nobody waits for it, and another one will come."""
        worker, self.worker = self.worker, None
        if worker is None or self._loop is None:
            return
        self._loop.remove_reader(worker.channel.fileno())
        worker.channel.close()
        if self._trouble is None:
            self._doubt(why)
        self.clean = False
        self._asked_s = None
        self._be_reborn()
        waiting, self._rounds, self._next = [*self._rounds, *self._next], [], []
        for each in waiting:
            each.answered(self)

    def _watch(self) -> None:
        if self._watchdog is None and self._loop is not None:
            self._watchdog = self._loop.call_later(GIVE_UP_S, self._check)

    def _check(self) -> None:
        """Kill a worker that has not answered for too long; one timer serves many questions."""
        self._watchdog = None
        worker, loop = self.worker, self._loop
        if worker is None or loop is None or self._asked_s is None:
            return
        left = self._asked_s + GIVE_UP_S - time.monotonic()
        if left > 0:
            self._watchdog = loop.call_later(left, self._check)
            return
        self._nursery.kill(worker)
        self._undead.add(worker.number)
        self._gone(f"the driver did not answer for {GIVE_UP_S:g} s; it is asked anew")

    def _be_reborn(self) -> None:
        if self._loop is not None:
            self._rebirth = self._loop.call_later(self._wait_s, self._give_birth)
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def _give_birth(self) -> None:
        self._nursery.heard()  # which of those that were killed have ended meanwhile
        self._undead &= self._nursery.pids.keys()
        if len(self._undead) >= MOST_UNDEAD or self._loop is None:
            self._why = f"{len(self._undead)} processes hang in the driver: reboot"
            self._be_reborn()
            return
        self.worker = self._nursery.fork(self.card.address)
        if self.worker is None:
            self._be_reborn()
            return
        self._born_s = self._asked_s = time.monotonic()
        self._loop.add_reader(self.worker.channel.fileno(), self._readable)
        self._watch()

    def close(self) -> None:
        """Ask no more; the nursery ends the worker."""
        for timer in (self._watchdog, self._rebirth):
            if timer is not None:
                timer.cancel()
        if self.worker is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self.worker.channel.fileno())
            self.worker.channel.close()
        self.worker = None


def _with(reading: DeviceReading, before: DeviceReading | None) -> DeviceReading:
    """Add what an earlier reading told and nobody has been given yet."""
    if before is None:
        return reading
    accounted = dict(before.accounted)
    for pid, mib in reading.accounted:
        accounted[pid] = max(mib, accounted.get(pid, 0))
    return reading._replace(xids=(*before.xids, *reading.xids), accounted=tuple(accounted.items()))
