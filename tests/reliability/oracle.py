"""Judges a simulated day: by what clients were told and what processes do, not by the broker's books.

Promises that are checked:

- what was granted and not given back never adds up to more than a device has, counted with the
  memory that is still held by jobs of leases that are over: so no grant comes before the free;
- a lease is in the books for as long as its client lives and holds it;
- what leaves the books is not in use: its named main process is dead, nobody of it holds memory on a
  device that can be read, and nothing of it runs on whose client was killed in its midst;
- at the end, when faults have stopped, every request was answered and nothing is booked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.broker.core import BrokerCore
    from grn.rules.model import Lease
    from tests.reliability.actors import Client, Held
    from tests.reliability.world import Process, World

__all__ = ["BrokenPromise", "Oracle"]


class BrokenPromise(AssertionError):  # noqa: N818 - named by what happened
    """A promise did not hold."""


class Oracle:
    """Watches one world. `strict` is off where the driver lies: it cannot be known who holds what."""

    def __init__(self, world: World, *, strict: bool) -> None:
        self.world = world
        self.strict = strict
        self.clients: list[Client] = []
        self.orphaned: dict[str, Process] = {}
        """Lease -> what runs on of its job, whose client was killed."""
        self.checked = 0
        self.grants = 0
        self._known: dict[str, Lease] = {}
        self._core: BrokerCore | None = None

    # -- what clients were told ---------------------------------------------------------------

    def heard(self, client: Client, happened: Iterable[tuple[str, Held | str]]) -> None:
        """Judge what a client has just been told."""
        for kind, what in happened:
            if kind == "lost":
                raise BrokenPromise(
                    f"{client.name} holds {what}, and the new broker does not know it"
                )
            assert not isinstance(what, str)
            self.grants += 1
            for uuid in what.uuids:
                self._fits(uuid)

    def _fits(self, uuid: str) -> None:
        """Add up what is promised and used on a device."""
        total = next(c.info.total_mib for c in self.world.cards if c.info.uuid == uuid)
        promised = 0
        held: set[str] = set()
        for client in self.clients:
            if not client.process.alive:
                continue
            for lease in client.held.values():
                if uuid not in lease.uuids or lease.releasing:
                    continue
                held.add(lease.lease)
                if not lease.probe:
                    promised += lease.mib
                elif lease.job is not None and lease.lease in self._known:
                    # What it will need is a guess as soon as it seems settled: it may outgrow that.
                    booked = self._known[lease.lease].booked_mib
                    promised += min(lease.job.held.get(uuid, 0), booked)
        if self.strict:
            promised += sum(
                process.held[uuid]
                for process in self.world.processes.table.values()
                if uuid in process.held
                and process.marker is not None
                and process.marker not in held
                and self._known.get(process.marker) is None
            )
        if promised > total:
            raise BrokenPromise(f"{promised} MiB of {uuid} are promised or used, it has {total}")

    # -- what the broker did ------------------------------------------------------------------

    def took_over(self, core: BrokerCore) -> None:
        """Judge what a new broker has found."""
        self._core = core
        self._known = dict(core.machine.leases)
        self.check(core)

    def stepped(self, core: BrokerCore) -> None:
        """Judge one turn: whatever left the books must have been free to."""
        leases = core.machine.leases
        known = self._known
        if leases.keys() == known.keys():
            return
        for gone in known.keys() - leases.keys():
            self._was_free(known[gone])
        self._known = dict(leases)

    def _was_free(self, lease: Lease) -> None:
        owner = lease.request.owner
        client = self._holder(lease.id)
        if client is not None:
            raise BrokenPromise(
                f"{client.name} lives and holds {lease.id}, which has left the books"
            )
        table = self.world.processes
        main = lease.main
        if main is not None and main != owner and table.is_alive(main.pid, main.start):
            raise BrokenPromise(f"{lease.id} has left the books, its main process {main.pid} lives")
        orphan = self.orphaned.get(lease.id)
        if orphan is not None and orphan.alive:
            raise BrokenPromise(f"{lease.id} has left the books, {orphan.pid} of its job runs on")
        if not self.strict or lease.request.in_process:
            return
        for card in self.world.cards:
            uuid = card.info.uuid
            if uuid not in lease.uuids or card.state != "ok" or self.unread(uuid):
                continue
            for process in table.table.values():
                if process.marker == lease.id and uuid in process.held:
                    raise BrokenPromise(
                        f"{lease.id} has left the books, process {process.pid} of it holds"
                        f" {process.held[uuid]} MiB of {uuid}"
                    )

    def unread(self, uuid: str) -> bool:
        """Whether the broker could not read a device when it looked last."""
        book = None if self._core is None else self._core.machine.ledger.by_uuid.get(uuid)
        return book is None or book.state != "ok"

    def _holder(self, lease: str) -> Client | None:
        for client in self.clients:
            held = client.held.get(lease)
            if held is not None and not held.releasing and client.process.alive:
                return client
        return None

    def check(self, core: BrokerCore) -> None:
        """Judge the books as a whole."""
        self.checked += 1
        machine = core.machine
        machine.check_invariants()
        for book in machine.ledger.books:
            if book.booked_mib > book.device.capacity_mib:
                raise BrokenPromise(f"{book.booked_mib} MiB booked of {book.device.uuid}")
        leases = machine.leases
        for client in self.clients:
            if client.process.alive:
                for held in client.held.values():
                    if held.lease not in leases and not held.releasing:
                        raise BrokenPromise(
                            f"{client.name} holds {held.lease}, which is not in the books"
                        )

    # -- the end ------------------------------------------------------------------------------

    def all_is_well(self, core: BrokerCore) -> bool:
        """Whether nobody waits and nothing is booked, once faults have stopped."""
        machine = core.machine
        return not (
            machine.leases
            or len(machine.line)
            or any(client.wishes or client.again or client.held for client in self.clients)
        )

    def never_ended(self, core: BrokerCore) -> BrokenPromise:
        """Say what is left when it should be over."""
        machine = core.machine
        waits = [f"{c.name}: {len(c.wishes)} wishes, {sorted(c.held)} held" for c in self.clients]
        return BrokenPromise(
            f"after all faults stopped: leases {sorted(machine.leases)}, {len(machine.line)} in the"
            f" line, problem {machine.disk_problem!r}; {'; '.join(waits)}"
        )
