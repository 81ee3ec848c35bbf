"""Records what runs: gathers rows in memory and has a thread write them, about once a second.

Promises: nothing that is granted waits for it. If the file cannot be written, it is tried again, what
happens meanwhile is kept up to a bound, and the status says so. Of a lease that a former broker had
granted the record is completed; what nobody saw the end of is `lost`.

Must not: decide what a row says (`history.rows`), or how a file is written (`history.writer`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from grn.errors import JournalError
from grn.history.rows import (
    Row,
    device_row,
    ended_row,
    event_row,
    granted_row,
    merge,
    restored_row,
    wished_row,
)
from grn.history.writer import Batch, HistoryWriter
from grn.rules import events as ev
from grn.rules.lost import lost_now
from grn.rules.minutes import Minutes, held_now
from grn.rules.outcome import LOST
from grn.rules.records import ending_of, lease_from_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from grn.rules.machine import Machine
    from grn.rules.minutes import Told

__all__ = ["Historian"]

_WRITE_EVERY_S = 1.0
_AGAIN_AFTER_S = 5.0
_MOST_KEPT = 20_000
"""Rows that wait for a disk that is full."""
_LOST_EVERY_S = 1.0
_OF_NO_LEASE = frozenset({"refused", "device", "broker", "disk"})

log = logging.getLogger("grn.broker")


class Historian:
    """Keeps the history of one broker."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, machine: Machine, writer: HistoryWriter
    ) -> None:
        self._loop = loop
        self._machine = machine
        self._writer = writer
        self._batch = Batch()
        self._writing: Batch | None = None
        self._wait_for_this: list[Callable[[], None]] = []
        self._wait_for_next: list[Callable[[], None]] = []
        """Who is to be called when what is being written, and what is gathered, has been written."""
        self._thread = ThreadPoolExecutor(1, "history")
        self._timer: asyncio.TimerHandle | None = None
        self._minutes = Minutes()
        self._lost: dict[str, int] = {}
        self._lost_s = -_LOST_EVERY_S
        self._lost_of = (0, 0, 0)
        """Which was the newest lease, how many are held and wait, when that was looked at."""
        self._looked_s = 0.0
        self._failed = ""
        self._dropped = 0
        self._answer: Future[JournalError | None] | None = None
        self._closed = False

    @property
    def problem(self) -> str:
        """What is wrong with the history, in words for people; '' if nothing."""
        parts = [self._writer.problem]
        if self._failed:
            left_out = f"; {self._dropped} records were left out" if self._dropped else ""
            parts.append(f"{self._failed} (nothing waits for it, it is tried again{left_out})")
        elif self._dropped:
            parts.append(
                f"the history lacks {self._dropped} records: it could not be written for a while"
            )
        return "; ".join(part for part in parts if part)

    # -- what happens ---------------------------------------------------------------------------

    def take(self, event: Mapping[str, Any], effect: ev.Effect | None, now: float) -> None:
        """Take in an event and the effect that it is from, which was carried out at `now`."""
        name = event["event"]
        if name == "granted":
            assert isinstance(effect, ev.Granted)  # noqa: S101 - what tells of a grant
            if effect.nested is None:
                self._row(event["lease"], granted_row(event, effect.lease.request))
        elif name == "ended":
            assert isinstance(effect, ev.Reported | ev.Lost)  # noqa: S101 - what tells of an end
            lease = effect.lease
            row = self._batch.leases.get(lease.id)
            if row is None or "type" not in row:
                self._row(lease.id, {**wished_row(lease.request), "devices": " ".join(lease.uuids)})
            self._row(lease.id, ended_row(event, lease, now))
        elif name == "freed":
            self._row(event["lease"], {"freed_at": event["at"]})
        elif name == "started":
            self._row(event["lease"], {"pid": event["pid"]})
        elif name in _OF_NO_LEASE:
            self._batch.events.append(event_row(event))
            if name in ("device", "broker"):
                self._note_devices(event["at"])
        else:
            return
        self._plan(_WRITE_EVERY_S)

    def _row(self, lease_id: str, told: Row) -> None:
        leases = self._batch.leases
        known = leases.get(lease_id)
        if known is not None:
            merge(known, told)
            return
        if len(leases) >= _MOST_KEPT:
            del leases[next(iter(leases))]
            self._dropped += 1
        told["id"] = lease_id
        leases[lease_id] = told

    def _note_devices(self, at: float) -> None:
        books = self._machine.ledger.books
        self._batch.devices = [device_row(book.device, at) for book in books]

    def looked(self, now: float, at: float) -> None:
        """Take in how the books are after a look at the devices."""
        machine = self._machine
        of = (machine.number, len(machine.leases), len(machine.line))
        if not len(machine.line):
            self._lost = {}
        elif of != self._lost_of or now - self._lost_s >= _LOST_EVERY_S:
            self._lost, self._lost_s = lost_now(machine), now
        self._lost_of = of
        held, after_s = held_now(self._machine.ledger.books), now - self._looked_s
        self._looked_s = now
        self._told(self._minutes.look(at, held, self._lost, after_s=after_s))

    def _told(self, told: Told) -> None:
        if told.usage or told.lost:
            self._batch.usage += told.usage
            self._batch.lost += told.lost
            self._plan(_WRITE_EVERY_S)

    # -- taking over ----------------------------------------------------------------------------

    def take_over(self, records: Sequence[Mapping[str, Any]], now: float, at: float) -> None:
        """Complete the records of a former broker's leases, by its journal; before they are looked at.

        What it had no time to write is written now; what ended unseen is closed.
        """
        machine = self._machine
        for record in records:
            lease_id = str(record.get("lease", ""))
            if record.get("ev") == "grant":
                self._row(lease_id, restored_row(lease_from_record(record, now)))
            elif record.get("ev") in ("main", "end") and lease_id in self._batch.leases:
                self._row(lease_id, _change(record))
        for lease_id, row in self._batch.leases.items():
            if lease_id not in machine.leases:
                merge(row, {"outcome": LOST, "ended_at": at, **row, "freed_at": at})
        boot = at - time.clock_gettime(time.CLOCK_BOOTTIME)
        first, last = f"{machine.token}-", f"{machine.token}."  # the full stop comes after the dash
        held = json.dumps(list(machine.leases))
        known = {"first": first, "last": last, "held": held, "at": at, "boot": boot}
        self._batch.succession = known
        self._plan(_WRITE_EVERY_S)

    # -- writing --------------------------------------------------------------------------------

    def write_now(self, then: Callable[[], None]) -> None:
        """Write what has happened until now, and call `then` when that was done, or has failed."""
        if self._batch:
            self._wait_for_next.append(then)
            if self._writing is None:
                self._write()
        elif self._writing is not None:
            self._wait_for_this.append(then)
        else:
            then()

    def _plan(self, after_s: float) -> None:
        if self._timer is None and self._writing is None:
            self._timer = self._loop.call_later(after_s, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._batch:
            return
        self._writing, self._batch = self._batch, Batch()
        self._wait_for_this, self._wait_for_next = self._wait_for_next, []
        self._answer = self._thread.submit(self._attempt, self._writing)
        asyncio.wrap_future(self._answer, loop=self._loop).add_done_callback(self._written)

    def _attempt(self, batch: Batch) -> JournalError | None:
        try:
            self._writer.write(batch)
        except JournalError as error:
            return error
        return None

    def _written(self, future: asyncio.Future[JournalError | None]) -> None:
        if future.cancelled() or self._closed:
            return
        self._hear(future.result())
        waited, self._wait_for_this = self._wait_for_this, []
        for then in waited:
            then()
        if self._wait_for_next:
            self._write()
        elif self._batch:
            self._plan(_AGAIN_AFTER_S if self._failed else _WRITE_EVERY_S)

    def _hear(self, error: JournalError | None) -> None:
        batch, self._writing = self._writing, None
        if error is not None and batch is not None:
            self._keep_for_later(batch, str(error))
        elif self._failed:
            self._failed = ""
            log.info("history-healed left_out=%d", self._dropped)

    def _keep_for_later(self, batch: Batch, reason: str) -> None:
        if not self._failed:
            log.error("history-failed reason=%r", reason)
        self._failed = reason
        newer, self._batch = self._batch, batch
        for lease_id, row in newer.leases.items():
            self._row(lease_id, row)
        for rows, more in (
            (batch.events, newer.events),
            (batch.usage, newer.usage),
            (batch.lost, newer.lost),
        ):
            rows.extend(more)  # type: ignore[arg-type]  # each with its own
            self._dropped += max(0, len(rows) - _MOST_KEPT)
            del rows[:-_MOST_KEPT]
        batch.devices = newer.devices or batch.devices
        batch.succession = newer.succession or batch.succession

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._told(self._minutes.close())
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=True)
        if self._writing is not None and self._answer is not None:
            self._hear(self._answer.result())  # the loop may not turn any more
        if self._batch:
            error = self._attempt(self._batch)
            if error is not None:
                log.error("history-failed reason=%r", str(error))
        self._writer.close()


def _change(record: Mapping[str, Any]) -> Row:
    """Return what a record of a change tells of a lease."""
    outcome, ended_at, end = ending_of(record)
    main = record.get("main")
    return {
        "pid": int(main[0]) if main else None,
        "outcome": outcome or None,
        "ended_at": ended_at,
        "exit_code": end.exit_code if end is not None else None,
        "signal": end.signal if end is not None else None,
    }
