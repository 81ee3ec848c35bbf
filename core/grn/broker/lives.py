"""Whose leases end without a release: what the broker does when an owner or a job has died.

A client's connection ends, or a pidfd says that its process did; a client of our predecessor comes
back and does not claim what it was granted; a predecessor's leases are looked through. In each case
the devices are looked at first, then the rules are told.

Must not: decide whether a lease ends. That is `grn.rules`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn import procs
from grn.broker.watch import Watcher
from grn.rules import events as ev

if TYPE_CHECKING:
    from grn.broker.core import BrokerCore
    from grn.rules.model import Lease, Owner

__all__ = ["Lives"]


class Lives:
    """Watches the processes of leases whose owners do not speak to us."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._watcher = Watcher(core.loop)

    def watch_owner(self, lease: Lease) -> None:
        """Learn of the death of a lease's owner, which no connection will tell any more."""
        owner = lease.request.owner
        self._watcher.watch(owner, lambda: self._owner_died(owner))

    def _owner_died(self, owner: Owner) -> None:
        self._core.sampler.look(lambda: self._end_of_owner(owner))
        self._core.settle()

    def _end_of_owner(self, owner: Owner) -> None:
        core = self._core
        theirs = [x for x in core.machine.leases.values() if x.request.owner == owner]
        marked = procs.with_marker() if theirs else {}
        for lease in theirs:
            main = lease.main
            alive = main is not None and procs.is_alive(main.pid, main.start)
            left_over = tuple(marked.get(lease.id, ()))
            core.step(ev.OwnerGone(core.now(), lease.id, main_alive=alive, left_over=left_over))
            core.sampler.notice(lease)
            # Also if it has ended: workers may hold memory on, and the rules must hear of its end.
            self.watch_main(lease)

    def returned(self, owner: Owner, session: str, claimed: frozenset[str]) -> None:
        """A client of our predecessor says what it holds: look at what it does not claim."""
        last = self._core.machine.number
        self._core.sampler.look(lambda: self._look_at_unclaimed(owner, session, claimed, last))

    def _look_at_unclaimed(
        self, owner: Owner, session: str, claimed: frozenset[str], last: int
    ) -> None:
        core = self._core
        mains = {x.id: x.main for x in core.machine.leases.values() if x.request.owner == owner}
        alive = frozenset(
            lease_id
            for lease_id, main in mains.items()
            if main is not None and procs.is_alive(main.pid, main.start)
        )
        left_over = {x: core.left_over_unseen(x) for x in mains.keys() - claimed}
        core.step(ev.Returned(core.now(), owner, session, claimed, alive, last, left_over))
        for lease_id in alive - claimed:
            lease = core.machine.leases.get(lease_id)
            if lease is not None and lease.request.session == session:
                self.watch_main(lease)

    def watch_main(self, lease: Lease) -> None:
        """Learn of the death of a lease's main process, if that is another one than its owner."""
        main = lease.main
        if main is not None and main != lease.request.owner:
            self._watcher.watch(main, lambda: self._main_died(lease.id))

    def _main_died(self, lease_id: str) -> None:
        self._core.sampler.look(lambda: self._end_of_main(lease_id))
        self._core.settle()

    def _end_of_main(self, lease_id: str) -> None:
        core = self._core
        left_over = tuple(procs.with_marker().get(lease_id, ()))
        core.step(ev.MainGone(core.now(), lease_id, left_over))

    def take_over(self) -> None:
        """Check each lease that a former broker left: keep the living, forget the dead."""
        self._core.sampler.look(self._watch_all)
        self._core.settle()
        self._core.compact()

    def _watch_all(self) -> None:
        for lease in list(self._core.machine.leases.values()):
            self.watch_owner(lease)
            self.watch_main(lease)

    def close(self) -> None:
        """Stop watching."""
        self._watcher.close()
