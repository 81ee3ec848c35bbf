"""Between a batch of effects and the journal: what is not kept is not told to anybody.

The records of a batch are written in one call before any reply leaves. If they cannot be written, the
grants among them are taken back and refused with the reason, and nothing new is granted until the
whole state could be written. A record that no journal can hold costs its own request only.

Must not: decide what a grant that is taken back means for others. That is `grn.rules`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from grn.broker.journal import UnfitRecordError
from grn.errors import JournalError
from grn.rules import events as ev

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from grn.broker.core import BrokerCore
    from grn.broker.journal import Journal

__all__ = ["Recorder"]

_HEAL_EVERY_S = 1.0
_COMPACT_RECORDS = 16384
log = logging.getLogger("grn.broker")


class Recorder:
    """Writes a broker's journal.

    Args:
        core: whose effects are written.
        journal: where to.
        managed: the record of which devices are managed, the first of each snapshot.
        write_more: writes what else must be kept before grants go on; returns why it could not.
    """

    def __init__(
        self,
        core: BrokerCore,
        journal: Journal,
        managed: Mapping[str, object],
        *,
        write_more: Callable[[], JournalError | None],
    ) -> None:
        self.managed = managed
        self._core = core
        self._journal = journal
        self._write_more = write_more
        self._records = 0
        self._timer: asyncio.TimerHandle | None = None

    def kept(self, effects: list[ev.Effect]) -> list[ev.Effect]:
        """Write the records of a batch; return what may be carried out of it."""
        records = [effect.record for effect in effects if type(effect) is ev.Record]
        if not records:
            return effects
        machine = self._core.machine
        if machine.disk_problem:  # the state will be written whole once it can be
            lost = _granted_in(records)
            return self._taken_back(effects, lost, machine.disk_problem) if lost else effects
        try:
            self._journal.append(records)
        except UnfitRecordError as error:
            unfit = records[error.position]
            if unfit["ev"] == "grant":
                without = [e for e in effects if type(e) is not ev.Record or e.record is not unfit]
                lost = _granted_in([unfit])
                return self.kept(self._taken_back(without, lost, str(error), lasting=False))
            return self._failed(effects, records, error)
        except JournalError as error:
            return self._failed(effects, records, error)
        self._records += len(records)
        if self._records > _COMPACT_RECORDS + 8 * len(machine.leases):
            self.compact()
        return effects

    def _failed(
        self, effects: list[ev.Effect], records: list[dict[str, object]], error: JournalError
    ) -> list[ev.Effect]:
        self.heal_soon()
        return self._taken_back(effects, _granted_in(records), str(error))

    def _taken_back(
        self, effects: list[ev.Effect], leases: tuple[str, ...], why: str, *, lasting: bool = True
    ) -> list[ev.Effect]:
        """Leave out grants that no journal keeps; the refusals that replace them come after."""
        core = self._core
        instead = core.at_once(ev.DiskFailed(core.now(), leases, why, lasting=lasting))
        kept = [
            effect
            for effect in effects
            if type(effect) is not ev.Granted
            or effect.nested is not None
            or effect.lease.id not in leases
        ]
        return kept + instead

    def heal_soon(self) -> None:
        """Try again in a while; until it works nothing new is granted."""
        if self._timer is None:
            self._timer = self._core.loop.call_later(_HEAL_EVERY_S, self._try_to_heal)

    def _try_to_heal(self) -> None:
        """Write the state whole; when that works, the journal is sound again."""
        self._timer = None
        core = self._core
        if self.compact() and self._write_more() is None:
            core.step(ev.DiskHealed(core.now()))
        else:
            self.heal_soon()
        core.settle()

    def compact(self) -> bool:
        """Write the state whole, as a new journal; return whether that worked."""
        try:
            self._journal.compact([self.managed, *self._core.machine.snapshot()])
        except JournalError as error:
            log.error("journal-not-compacted reason=%r", str(error))  # noqa: TRY400 - said in one line
            return False
        self._records = 0
        return True

    def close(self) -> None:
        """Write the state whole for the last time, and let go of the file."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.compact()
        self._journal.close()


def _granted_in(records: list[dict[str, object]]) -> tuple[str, ...]:
    return tuple(str(record["lease"]) for record in records if record["ev"] == "grant")
