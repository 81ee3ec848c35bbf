"""The broker's middle: carries events to the rules and their effects to the world.

One batch is: messages of one read -> events -> `Settle` -> effects. Journal records of a batch are
written in one call before any reply leaves, so that a grant that a client has seen survives the
broker. If they cannot be written, the grants are taken back and refused with the reason.

Must not: decide anything about placement, profiles or lives of leases. That is `grn.rules`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from grn import mps, procs
from grn.broker.groupwait import GroupWait
from grn.broker.guests import Guests
from grn.broker.keeper import ProfileKeeper
from grn.broker.lives import Lives
from grn.broker.mpswatch import MpsWatch
from grn.broker.observers import Observers
from grn.broker.recorder import Recorder
from grn.broker.sampler import Sampler
from grn.broker.teller import Teller
from grn.broker.turn import Turn
from grn.rules import events as ev
from grn.rules.happenings import broker_event
from grn.rules.messages import released_reply
from grn.rules.records import managed_record
from grn.rules.seeing import unseen

if TYPE_CHECKING:
    import asyncio

    from grn.broker.connection import Connection
    from grn.broker.journal import Journal
    from grn.broker.lookout import Lookout
    from grn.broker.policies import Policies
    from grn.broker.store import ProfileStore
    from grn.devices.base import Backend
    from grn.errors import JournalError
    from grn.rules.machine import Machine
    from grn.rules.messages import GrantWriter
    from grn.rules.model import Device, End

__all__ = ["BrokerCore"]

_INBOX_BYTES = 1 << 16
_NO_DEVICES_S = 1.0
_FIRST_CLIENT_S = 5.0
log = logging.getLogger("grn.broker")


class BrokerCore:
    """Everything that one running broker holds together."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        machine: Machine,
        backend: Backend,
        masks: tuple[str | None, ...],
        devices: tuple[Device, ...],
        journal: Journal,
        store: ProfileStore,
        max_types: int,
        writer: GrantWriter,
        policies: Policies,
        release: str,
        on_demand: bool,
        idle_exit_s: float,
        fast_s: float,
        slow_s: float,
        debug: bool,
    ) -> None:
        self.loop = loop
        self.machine = machine
        self.backend = backend
        self.devices = devices
        self.policies = policies
        self.release = release
        self.on_demand = on_demand
        self.pid = os.getpid()
        self.guests = Guests(os.getuid())
        self.inbox = memoryview(bytearray(_INBOX_BYTES))
        self.ticket = 0
        self.asked: dict[int, tuple[Connection, int, float]] = {}
        """Ticket -> who asked, under which request id, and since when."""
        self.releases: dict[int, tuple[Connection, object]] = {}
        self.connections: set[Connection] = set()
        self.unflushed: dict[Connection, None] = {}
        self.warnings: list[str] = []
        self.lookout: Lookout | None = None
        """Where devices may appear while we run."""
        self._keeper = ProfileKeeper(
            loop,
            machine.profiles,
            store,
            max_types=max_types,
            models=sorted({device.model for device in devices}),
            failed=self._profiles_unkept,
            kept=self._mind_idleness,
        )
        managed = managed_record(backend.spec, masks)
        self._recorder = Recorder(self, journal, managed, write_more=self._keeper.write)
        self._writer = writer
        self._debug = debug
        self._effects: list[ev.Effect] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_exit_s = idle_exit_s
        self._was_asked = False
        self._stop: asyncio.Future[str] = loop.create_future()
        self.turn = Turn(loop, self.settle)
        self.lives = Lives(self)
        self._group_wait = GroupWait(self)
        self.observers = Observers(self)
        self._teller = Teller(self)
        self.mps = MpsWatch(self, mps.pipe_folder(os.environ))
        self.sampler = Sampler(self, backend, fast_s=fast_s, slow_s=slow_s)

    def gain(
        self,
        backend: Backend,
        devices: tuple[Device, ...],
        writer: GrantWriter,
        masks: tuple[str | None, ...],
    ) -> None:
        """Manage devices that were found since the start, beside those that are managed."""
        self.step(ev.Found(self.now(), devices, backend.note))
        self.backend = backend
        self.devices = tuple(book.device for book in self.machine.ledger.books)
        self._writer = writer
        self._recorder.managed = managed_record(backend.spec, masks)
        self._keeper.models = sorted({device.model for device in self.devices})
        self.sampler.drive(backend)
        self.compact()
        self.sampler.look()

    # -- time and steps -------------------------------------------------------------------------

    @staticmethod
    def now() -> float:
        """Seconds on the monotonic clock: no lease depends on the time of day."""
        return time.monotonic()

    def step(self, event: ev.Event) -> None:
        """Take one event in; its effects are carried out at the end of the batch."""
        lookout = self.lookout
        held = lookout.withdrawn(event) if lookout is not None and lookout.held else None
        self._effects += self.machine.step(event) if held is None else held
        if self._debug:
            self.machine.check_invariants()

    def at_once(self, event: ev.Event) -> list[ev.Effect]:
        """Take an event in whose effects belong to the batch that is being carried out."""
        before, self._effects = self._effects, []
        self.step(event)
        effects, self._effects = self._effects, before
        return effects

    def settle(self) -> None:
        """End a batch: decide what can be granted, then carry all effects out."""
        machine = self.machine
        if len(machine.line):
            self.mps.look()
        if machine.dirty and (not machine.line.want_devices or self.sampler.fresh()):
            self.step(ev.Settle(self.now(), time.time()))
        if self._effects:
            self._carry_out()
        if self.unflushed:
            # The last first: who was granted what another one gave back, then that other one.
            for connection in reversed(self.unflushed):
                connection.flush()
            self.unflushed.clear()
        if len(machine.groups) or self._group_wait.armed:
            self._group_wait.mind()
        self.sampler.batch_ended()
        self._mind_idleness()

    def _carry_out(self) -> None:
        effects, self._effects = self._effects, []
        effects = self._recorder.kept(effects)
        self.observers.take(effects)
        for effect in effects:
            kind = type(effect)
            if kind is ev.Granted:
                self._granted(effect)  # type: ignore[arg-type]
            elif kind is ev.Reported:
                self._reported(effect)  # type: ignore[arg-type]
            elif kind is not ev.Record:
                self._other(effect)

    def _other(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Refused():
                self._refused(effect)
            case ev.Queued():
                ticket = effect.ticket
                connection, request_id, _ = self.asked.get(ticket, (None, 0, 0.0))
                if connection is not None:
                    connection.reply({"op": "waiting", "id": request_id, "reason": effect.reason})
            case ev.Learnt(job_type, model):
                self._keeper.learnt(job_type, model)
            case ev.Said(level, said):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", said)

    def _granted(self, effect: ev.Granted) -> None:
        entry = self.asked.pop(effect.ticket, None)
        lease = effect.lease
        if entry is None:
            return
        connection, request_id, since = entry
        connection.tickets.pop(request_id, None)
        waited = max(0.0, self.now() - since)
        nested = effect.nested is not None
        if nested:
            connection.nested[request_id] = effect.ticket
        else:
            connection.leases.add(lease.id)
            self.sampler.notice(lease)
        connection.reply(
            self._writer.write(
                request_id,
                lease,
                nested=nested,
                waited_s=waited,
                by_uuid=(self.sampler.driven and self.machine.ledger.lost)
                or (bool(lease.mps) and self.mps.masked),
            )
        )

    def _reported(self, effect: ev.Reported) -> None:
        connection, request_id = self.releases.pop(effect.ticket)
        lease = effect.lease
        connection.leases.discard(lease.id)
        began = lease.started_s if lease.started_s is not None else lease.granted_s
        connection.reply(released_reply(request_id, effect, ran_s=self.now() - began))
        if effect.draining:
            self.sampler.notice(lease)
            self.lives.watch_main(lease)

    def _refused(self, effect: ev.Refused) -> None:
        if effect.ticket in self.releases:
            connection, request_id = self.releases.pop(effect.ticket)
        elif effect.ticket in self.asked:
            connection, request_id, _ = self.asked.pop(effect.ticket)
            connection.tickets.pop(request_id, None)
        else:
            return
        connection.reply(
            {"op": "refused", "id": request_id, "code": effect.code, "message": effect.message}
        )

    # -- clients --------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A client is there."""
        self.connections.add(connection)
        self._was_asked = True
        self._mind_idleness()

    def disconnected(self, connection: Connection) -> None:
        """A client's connection ended: withdraw what waits, and see whether its process lives."""
        self.connections.discard(connection)
        self.unflushed.pop(connection, None)
        self.observers.gone(connection)
        for ticket in list(connection.tickets.values()):
            self.step(ev.Cancelled(self.now(), ticket))
            self.asked.pop(ticket, None)
        for ticket in connection.nested.values():
            self.step(ev.Left(self.now(), ticket))
        held = self.machine.leases
        for lease_id in connection.leases:
            if lease_id in held:
                self.lives.watch_owner(held[lease_id])
        self.settle()

    def give_back(
        self, connection: Connection, request_id: object, lease_id: str, end: End
    ) -> None:
        """A client gives a lease back: look at its devices first, then let the rules decide."""
        self.ticket += 1
        ticket = self.ticket
        self.releases[ticket] = (connection, request_id)

        def release() -> None:
            released = ev.Released(
                self.now(),
                lease_id,
                end,
                ticket,
                main_alive=self._main_lives(lease_id),
                at=time.time(),
                left_over=self.left_over_unseen(lease_id),
            )
            self.step(released)

        self.sampler.before_end(lease_id, release)

    def left_over_unseen(self, lease_id: str) -> tuple[int, ...]:
        """List the living processes of a lease of which a device does not say what they hold."""
        lease = self.machine.leases.get(lease_id)
        if lease is None or not unseen(self.machine, lease):
            return ()
        return tuple(procs.with_marker().get(lease_id, ()))

    def reenter(self, connection: Connection, request_id: int, lease_id: str, mib: int) -> None:
        """A nested job of a client that was another broker's runs on."""
        self.ticket += 1
        connection.nested[request_id] = self.ticket
        owner = connection.owner()
        self.step(ev.Reentered(self.now(), self.ticket, lease_id, owner, mib))

    def leave(self, connection: Connection, request_id: object) -> None:
        """A nested job has ended."""
        ticket = connection.nested.pop(request_id, None) if type(request_id) is int else None
        if ticket is not None:
            self.step(ev.Left(self.now(), ticket))

    def _main_lives(self, lease_id: str) -> bool:
        lease = self.machine.leases.get(lease_id)
        if lease is None or lease.main is None:
            return False  # no lease: it drained, and the look just now found it free
        main = lease.main
        # The owner itself is who is speaking.
        return main is lease.request.owner or procs.is_alive(main.pid, main.start)

    # -- the journal ----------------------------------------------------------------------------

    def compact(self) -> bool:
        """Write the state whole, as a new journal; return whether that worked."""
        return self._recorder.compact()

    # -- profiles -------------------------------------------------------------------------------

    def _profiles_unkept(self, error: JournalError) -> None:
        """Profiles could not be written: grant nothing new until that works."""
        self.step(ev.DiskFailed(self.now(), (), str(error)))
        self._recorder.heal_soon()
        self.settle()

    def edit_profiles(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """List, set or forget profiles, as a client asks."""
        found = self._keeper.edit(message)
        self.machine.dirty = True
        return found

    def problems(self) -> list[str]:
        """Say what is wrong with what is kept on disk, in words for people."""
        history = self.observers.history
        return [self._keeper.problem, history.problem if history is not None else ""]

    # -- status ---------------------------------------------------------------------------------

    def status(self, *, closely: bool = True) -> dict[str, Any]:
        """Describe the books; as of now, if the sampler has just looked.

        Unless `closely`, what takes a look at every process is as it was some seconds ago.
        """
        return self._teller.status(closely=closely)

    def explain(self, subject: str, gpus: int, uid: int) -> dict[str, Any]:
        """Explain a job or a type to a user.

        Raises:
            UsageError: several are meant.
        """
        return self._teller.explain(subject, gpus, uid)

    # -- the end --------------------------------------------------------------------------------

    def _mind_idleness(self) -> None:
        machine = self.machine
        idle = not (machine.leases or len(machine.line) or self.connections or self._keeper.lags)
        if not idle or not self.on_demand:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None
        elif self._idle_timer is None:
            # Without devices it is of little use, and the next one may find a driver.
            idle_s = self._idle_exit_s if self.devices else min(self._idle_exit_s, _NO_DEVICES_S)
            if not self._was_asked:  # who started it has yet to come
                idle_s = max(idle_s, _FIRST_CLIENT_S)
            self._idle_timer = self.loop.call_later(idle_s, self.stop, "idle")

    def stop(self, why: str) -> None:
        """Leave: grant nothing more, tell those who wait; leases stay in the journal."""
        if self._stop.done():
            return
        machine = self.machine
        machine.closing = True
        text = f"the broker is leaving ({why})"
        for ticket in list(self.asked):
            request = machine.waiting(ticket)
            self._effects.append(ev.Refused(ticket, "shutting-down", text, request))
        self.settle()
        self.announce("leaving", why)
        self._stop.set_result(why)

    def announce(self, state: str, reason: str = "") -> None:
        """Tell who watches that the broker has started, or is leaving."""
        spec = self.backend.spec
        told = broker_event(state, reason, pid=self.pid, release=self.release, devices=spec)
        self.observers.say(told)

    async def until_stopped(self) -> str:
        """Wait until the broker is to leave; return why."""
        return await self._stop

    def close(self) -> None:
        """Keep what was learnt, and let go of files."""
        if self.lookout is not None:
            self.lookout.close()
        self.turn.close()
        self.observers.close()
        self._keeper.keep()
        self._recorder.close()
        self._keeper.close()
        self.lives.close()
        self._group_wait.close()
        self.mps.close()
        self.sampler.close()
