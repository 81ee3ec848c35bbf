"""Bugs that somebody could make, one switch each: the simulation must find every one of them.

Each is a patch of the real code, put in by `planted(name)` and taken out again.
"""

from __future__ import annotations

import contextlib
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.broker import watch
from grn.broker.core import BrokerCore
from grn.broker.journal import Journal, _encode
from grn.broker.recorder import Recorder
from grn.errors import JournalError
from grn.rules import events as ev
from grn.rules import machine, succession
from grn.rules.ledger import Book, Booking
from grn.rules.machine import Machine
from tests.reliability.simulation import numbers
from tests.reliability.sweep import EVENTS, why_it_fails
from tests.reliability.world import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Patch = tuple[Any, str, Any]

__all__ = ["BUGS", "caught", "planted", "table"]

MOST_SEEDS = 400


def _off_by_one() -> list[Patch]:
    """One MiB more than there is."""
    real = Book.free_mib.fget
    assert real is not None
    return [(Book, "free_mib", property(lambda book: real(book) + 1))]


def _free_on_timeout() -> list[Patch]:
    """A lease that is two minutes old is taken to be over."""
    real = Machine.step

    def step(machine: Machine, event: ev.Event) -> list[ev.Effect]:
        effects = real(machine, event)
        if isinstance(event, ev.Sampled):
            for lease in list(machine.leases.values()):
                if event.now - lease.granted_s > 120:
                    effects += machine.end(lease)
        return effects

    return [(Machine, "step", step)]


def _acknowledge_before_write() -> list[Patch]:
    """A grant is told, and then written."""
    real = Recorder.kept

    def kept(recorder: Recorder, effects: list[ev.Effect]) -> list[ev.Effect]:
        core = recorder._core
        for effect in effects:
            if isinstance(effect, ev.Granted):
                core._granted(effect)
        for told in list(core.unflushed):
            told.flush()
        return real(recorder, [e for e in effects if not isinstance(e, ev.Granted)])

    return [(Recorder, "kept", kept)]


def _skipped_replay() -> list[Patch]:
    """Grants that were made since the last compaction are not read back."""

    def restore(machine: Machine, records: Any, now: float) -> list[str]:
        snapshot = [r for r in records if r["ev"] in ("token", "health")]
        return succession.restore(machine, snapshot, now)

    return [(Machine, "restore", restore)]


def _pid_without_start_time() -> list[Patch]:
    """Whoever has the number is taken for the process that had it."""
    blind = SimpleNamespace(is_alive=lambda pid, start: procs.is_alive(pid, start and None))
    return [(watch, "procs", blind)]


def _memory_ignored() -> list[Patch]:
    """What still holds memory is freed all the same."""
    return [(Machine, "is_used", lambda machine, lease: machine.nested.held(lease.id))]


def _waiter_stays() -> list[Patch]:
    """A request that was withdrawn stays in the line."""

    def cancelled(machine: Machine, event: ev.Cancelled) -> list[ev.Effect]:
        if event.ticket not in machine.line:
            return []
        return [ev.Refused(event.ticket, "cancelled", "the request was withdrawn")]

    real = Machine.__init__

    def made(machine: Machine, *args: Any, **keywords: Any) -> None:
        real(machine, *args, **keywords)
        machine._handlers[ev.Cancelled] = lambda event: cancelled(machine, event)

    return [(Machine, "__init__", made)]


def _torn_tail_kept() -> list[Patch]:
    """Half a record stays in the journal, and others are written behind it."""

    def cut(journal: Journal) -> None:
        journal._torn = False

    return [(Journal, "_cut_torn_tail", cut)]


def _compacted_in_place() -> list[Patch]:
    """The journal is emptied, and then written anew."""

    def compact(journal: Journal, snapshot: Any) -> None:
        from grn.broker import journal as module

        content = b"".join([journal._header, *map(_encode, snapshot)])
        module.os.ftruncate(journal._fd, 0)
        journal.size = 0
        journal._torn = False
        try:
            journal._write_all(journal._fd, content)
        except OSError as error:
            raise JournalError(str(error)) from error
        journal.size = len(content)

    return [(Journal, "compact", compact)]


def _numbers_anew() -> list[Patch]:
    """A new broker counts its leases from one again, under the old name."""

    def restore(machine: Machine, records: Any, now: float) -> list[str]:
        said = succession.restore(machine, records, now)
        machine.number = 0
        return said

    return [(Machine, "restore", restore)]


def _measured_replaces_booked() -> list[Patch]:
    """Once a job holds something, its booking is forgotten."""
    return [(Booking, "counts_mib", property(lambda b: b.measured_mib or b.booked_mib))]


def _unkept_grant_told() -> list[Patch]:
    """A grant that no journal keeps is told all the same."""
    real = Recorder._taken_back

    def taken_back(
        recorder: Recorder, effects: list[ev.Effect], *args: Any, **keywords: Any
    ) -> list[ev.Effect]:
        real(recorder, effects, *args, **keywords)
        return effects

    return [(Recorder, "_taken_back", taken_back)]


def _hanging_up_is_death() -> list[Patch]:
    """A client whose connection ended is taken for dead."""
    real = BrokerCore.disconnected

    def disconnected(core: BrokerCore, connection: Any) -> None:
        for lease in list(connection.leases):
            core.step(ev.OwnerGone(core.now(), lease, main_alive=False))
        real(core, connection)

    return [(BrokerCore, "disconnected", disconnected)]


def _peer_not_asked() -> list[Patch]:
    """A client that has died meanwhile is taken for whoever has its number now."""
    return [(Wire, "peer_has_died", lambda _: False)]


def _orphans_forgotten() -> list[Patch]:
    """What runs on of a job whose client was killed, and holds nothing yet, keeps no lease."""
    return [(machine, "kept_by_left_over", lambda *_: False)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    patch.__name__[1:].replace("_", "-"): patch
    for patch in (
        _off_by_one,
        _free_on_timeout,
        _acknowledge_before_write,
        _skipped_replay,
        _pid_without_start_time,
        _memory_ignored,
        _waiter_stays,
        _torn_tail_kept,
        _compacted_in_place,
        _numbers_anew,
        _measured_replaces_booked,
        _unkept_grant_told,
        _hanging_up_is_death,
        _peer_not_asked,
        _orphans_forgotten,
    )
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Put a bug in, for as long as this lasts."""
    patches = BUGS[name]()
    before = [(place, attribute, vars(place)[attribute]) for place, attribute, _ in patches]
    for place, attribute, value in patches:
        setattr(place, attribute, value)
    try:
        yield
    finally:
        for place, attribute, value in before:
            setattr(place, attribute, value)


def caught(name: str) -> tuple[int, str] | None:
    """Return the first seed that finds the bug, and what it says; `None` if none does."""
    with planted(name):
        for seed in range(MOST_SEEDS):
            error = why_it_fails(numbers(seed, EVENTS))
            if error is not None:
                return seed, f"{type(error).__name__}: {error}"
    return None


def table(say: Callable[[str], None]) -> int:
    """Say of each bug how it is found; return 1 if one is not."""
    missed = count()
    for name in BUGS:
        found = caught(name)
        if found is None:
            next(missed)
            say(f"{name:26} NOT FOUND in {MOST_SEEDS} seeds")
        else:
            say(f"{name:26} seed {found[0]:3}: {found[1][:140]}")
    return min(1, next(missed))
