"""Who looks on: events and states of the books, pushed to clients that watch, and to the history.

Design note. What is decided must not wait for who looks on. A batch of effects is only put on a list
here, with the time; a moment later, off the path from request to grant, the list is turned into
events, once, whoever many watch. The last thousand events are kept for those who come or come back.
A state of the books is pushed as often as its watcher asked for, only when something has changed, and
is built once for all of them. A watcher that does not read is dropped as any slow client is.

Must not: decide what an event says (`rules.happenings`), or hold up the loop.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from grn.errors import UsageError
from grn.rules.guests import veiled
from grn.rules.happenings import (
    SCHEMA,
    device_events,
    disk_event,
    gap_event,
    happenings,
    in_a_line,
)
from grn.rules.messages import number
from grn.rules.report import status_pages
from grn.rules.wire import encode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from grn.broker.connection import Connection
    from grn.broker.core import BrokerCore
    from grn.broker.historian import Historian
    from grn.rules import events as ev
    from grn.rules.happenings import Happening

__all__ = ["EVENTS_KEPT", "RECENT_KEPT", "Inside", "Observers"]

EVENTS_KEPT = 1000
RECENT_KEPT = 50
_SOON_S, _LATER_S = 0.05, 0.5
"""How long events gather before they are told: to watchers, and to the history alone."""
_MOST_GATHERED = 8
"""Batches that gather before they are told sooner: whoever asks meanwhile waits a tenth of a millisecond."""
_SHORTEST_STATUS_S, _LONGEST_STATUS_S = 0.1, 3600.0
_EPSILON_S = 0.005

log = logging.getLogger("grn.broker")


class Inside(Protocol):
    """Looks on from within the broker; returns at once."""

    def happened(self, events: Sequence[dict[str, Any]]) -> None:
        """Take events."""

    def changed(self, status: dict[str, Any]) -> None:
        """Take a state of the books, which is not to be changed."""


class _Watcher:
    """One client that watches, or somebody within the broker."""

    __slots__ = ("connection", "due_s", "events", "every_s", "inside", "request_id", "seen")

    def __init__(
        self,
        connection: Connection | None,
        request_id: int,
        *,
        events: bool,
        every_s: float | None,
        inside: Inside | None = None,
    ) -> None:
        self.connection = connection
        self.inside = inside
        self.request_id = request_id
        self.events = events
        self.every_s = every_s
        self.due_s = 0.0
        self.seen = -1
        """Which change of the books it was told last."""


class Observers:
    """The broker's watchers and what they are told."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._gathered: list[tuple[float, float, Sequence[ev.Effect]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._status_timer: asyncio.TimerHandle | None = None
        self._watchers: dict[Connection | Inside, _Watcher] = {}
        self._ring: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_KEPT)
        """The last leases whose jobs have ended, as their `ended` events."""
        self._seq = 0
        self._began_at = time.time()
        self._changes = 0
        self._devices: dict[str, tuple[str, str]] = {}
        self._disk = ""
        self.history: Historian | None = None
        self._readings: Sequence[ev.Reading] = ()
        device_events(self._devices, core.machine.ledger.books)

    # -- what happens ---------------------------------------------------------------------------

    def take(self, effects: Sequence[ev.Effect]) -> None:
        """Gather effects that are being carried out: on the hot path, so nothing more."""
        self._gathered.append((time.time(), self._core.now(), effects))
        if self._timer is None:
            if self._watchers:
                self._timer = self._core.loop.call_later(_SOON_S, self._due)
            elif self.history is not None:
                self._timer = self._core.loop.call_later(_LATER_S, self._due)
        if len(self._gathered) == _MOST_GATHERED:
            self._core.loop.call_soon(self.tell)

    def sampled(self, readings: Sequence[ev.Reading]) -> None:
        """See whether a look at the devices found anything that was not so before."""
        core = self._core
        if self.history is not None:
            self.history.looked(core.now(), time.time())
        if readings == self._readings:
            return
        self._readings = readings
        told = device_events(self._devices, core.machine.ledger.books)
        if told or self._watchers:
            self.say(*told)

    def say(self, *told: Happening) -> None:
        """Tell of what is no effect of the rules, now."""
        self.tell()
        at, now = time.time(), self._core.now()
        self._push([self._numbered(at, each, None, now) for each in told])

    def _due(self) -> None:
        self._timer = None
        self.tell()

    def tell(self) -> None:
        """Turn what was gathered into events, keep them, and tell the watchers."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        fresh: list[dict[str, Any]] = []
        at, now, _ = gathered[-1]
        profiles = self._core.machine.profiles
        for at, now, effects in gathered:
            for happening, effect in happenings(effects, now, profiles):
                fresh.append(self._numbered(at, happening, effect, now))
        if self.history is not None and not self._core.machine.leases:
            self.history.looked(now, at)  # nobody looks at the devices until there is a lease again
        fresh += [self._numbered(at, each, None, now) for each in self._beside()]
        self._push(fresh)

    def record(self, then: Callable[[], None]) -> None:
        """Have the history written, with all that has happened until now, then call `then`."""
        self.tell()
        if self.history is None:
            then()
        else:
            self.history.write_now(then)

    def _beside(self) -> list[Happening]:
        """Tell of what came with the effects and is none."""
        told = device_events(self._devices, self._core.machine.ledger.books)
        problem = self._core.machine.disk_problem
        if problem != self._disk:
            self._disk = problem
            told.append(disk_event(problem))
        return told

    def _numbered(
        self, at: float, happening: Happening, effect: ev.Effect | None, now: float
    ) -> dict[str, Any]:
        self._seq += 1
        event = {"schema": SCHEMA, "seq": self._seq, "at": at, **happening}
        if happening["event"] == "ended":
            self.recent.append(event)
        if self.history is not None:
            self.history.take(event, effect, now)
        return event

    def _push(self, events: list[dict[str, Any]]) -> None:
        self._ring.extend(events)
        if log.isEnabledFor(logging.DEBUG):
            for event in events:
                log.debug("%s", in_a_line(event))
        self._changes += 1
        self._plan_status()
        bodies: dict[tuple[int, int | None], bytes] = {}
        for watcher in list(self._watchers.values()):
            if not (watcher.events and events):
                continue
            if watcher.inside is not None:
                watcher.inside.happened(events)
            elif watcher.connection is not None:
                key = request_id, viewer = self._key(watcher, watcher.connection)
                if key not in bodies:
                    shown = events if viewer is None else veiled(events, viewer)
                    bodies[key] = b"".join(_event(request_id, event) for event in shown)
                watcher.connection.push(bodies[key])

    def _key(self, watcher: _Watcher, connection: Connection) -> tuple[int, int | None]:
        """Say who is told the same: most watch under the same number, and may see everything."""
        return watcher.request_id, self._core.guests.veils(connection.uid)

    # -- who watches ----------------------------------------------------------------------------

    def watch(self, connection: Connection, message: dict[str, Any]) -> None:
        """Tell a client from now on what happens.

        Raises:
            UsageError: it watches already, or asks for nothing that there is.
        """
        request_id, since = message.get("id"), number(message, "since")
        events, every_s = message.get("events", True) is True, _every_s(message)
        if type(request_id) is not int or connection in self._watchers:
            raise UsageError("watch: once a connection, under a number")
        if not events and every_s is None:
            raise UsageError("watch: neither events nor status_every_s")
        self.tell()
        missed, kept = self._since(since)
        connection.reply(
            {
                "op": "watched",
                "id": request_id,
                "schema": SCHEMA,
                "seq": self._seq,
                "missed": missed,
                "broker": {"pid": self._core.pid, "since": self._began_at},
            }
        )
        if events:
            for event in self._core.guests.shown(kept, connection.uid):
                connection.reply({"op": "event", "id": request_id, "event": event})
        self._watchers[connection] = _Watcher(
            connection, request_id, events=events, every_s=every_s
        )
        self._plan_status()

    def _since(self, since: int | None) -> tuple[int | None, list[dict[str, Any]]]:
        """Return how many events after this one are gone (`None`: unknown), and those that are not."""
        if since is None:
            return 0, []
        kept = list(self._ring)
        first = self._seq - len(kept) + 1
        if since > self._seq:  # a number that another broker gave
            missed: int | None = None
        else:
            missed = max(0, first - 1 - since)
            kept = kept[max(0, since + 1 - first) :]
        if missed != 0:
            gap = {"schema": SCHEMA, "seq": self._seq - len(kept), "at": time.time()}
            kept.insert(0, {**gap, **gap_event(missed)})
        return missed, kept

    def listen(self, inside: Inside, every_s: float | None) -> None:
        """Tell somebody within the broker from now on what happens, and what is, unless None."""
        self.tell()
        self._watchers[inside] = _Watcher(None, 0, events=True, every_s=every_s, inside=inside)
        self._plan_status()

    def gone(self, who: Connection | Inside) -> None:
        """Forget a client that has left, or somebody within the broker."""
        self._watchers.pop(who, None)

    # -- the state of the books -----------------------------------------------------------------

    def _plan_status(self) -> None:
        """See that each watcher gets the next state when it is due, if anything has changed."""
        if self._status_timer is not None or not self._watchers:
            return
        behind = [
            w.due_s
            for w in self._watchers.values()
            if w.every_s is not None and w.seen != self._changes
        ]
        if behind:
            due = max(self._core.loop.time(), min(behind))
            self._status_timer = self._core.loop.call_at(due, self._push_status)

    def _push_status(self) -> None:
        self._status_timer = None
        self.tell()
        now = self._core.loop.time() + _EPSILON_S
        due = [
            w
            for w in self._watchers.values()
            if w.every_s is not None and w.seen != self._changes and w.due_s <= now
        ]
        if due:
            status = self._core.status(closely=False)
            pages = status_pages(status) if any(w.connection for w in due) else []
            bodies: dict[tuple[int, int | None], bytes] = {}
            for watcher in due:
                watcher.due_s = now + (watcher.every_s or 0.0)
                watcher.seen = self._changes
                if watcher.inside is not None:
                    watcher.inside.changed(status)
                    continue
                if watcher.connection is None:
                    continue
                key = request_id, viewer = self._key(watcher, watcher.connection)
                if key not in bodies:
                    shown = pages if viewer is None else veiled(pages, viewer)
                    bodies[key] = _status(request_id, shown)
                watcher.connection.push(bodies[key])
        self._plan_status()

    def close(self) -> None:
        """Tell what is left to tell."""
        self.tell()
        for timer in (self._timer, self._status_timer):
            if timer is not None:
                timer.cancel()
        if self.history is not None:
            self.history.close()


def _every_s(message: dict[str, Any]) -> float | None:
    every = message.get("status_every_s")
    if every is None:
        return None
    if type(every) not in (int, float) or not every <= _LONGEST_STATUS_S:
        raise UsageError(f"status_every_s: {every!r} is not a number of seconds up to an hour")
    return max(_SHORTEST_STATUS_S, float(every))


def _event(request_id: int, event: dict[str, Any]) -> bytes:
    return encode({"op": "event", "id": request_id, "event": event})


def _status(request_id: int, pages: list[dict[str, Any]]) -> bytes:
    last = len(pages) - 1
    return b"".join(
        encode({"op": "status", "id": request_id, "status": page, "more": number < last})
        for number, page in enumerate(pages)
    )
