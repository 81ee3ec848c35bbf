"""Which processes belong to which job, and a signal that can only reach the right one.

Design note. As a subreaper we are an ancestor of every process that our jobs start: an orphan
becomes our child. So a job's processes are those below its main process, and those of our adopted
children that carry its lease in their environment or were seen below its main process before.
A process that left us altogether (started by a daemon on the job's behalf) counts if it carries
the lease. What can be attributed in none of these ways belongs to the `heir`, if there is one.

A shell that replaces itself by us (`server & exec grn run ...`) leaves us its children: they are no
job's, and since an orphan of theirs looks like an orphan of a job, there is no heir then.

Promises: a broker, though it may be our child, belongs to no job; a process is signalled through
a pidfd after its start time was compared, so a reused number never gets another's signal; a list
that comes back empty was so at one moment: a process that ends during the walk, and whose children
so move elsewhere in the tree, makes the walk start again. Who could not look, for want of descriptors
say, says so: not to see a process is no proof that it is gone.
"""

from __future__ import annotations

import os
import signal

from grn import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Census", "Owner", "send"]

_SELF = "/proc/self/stat"

_PASSES = 10


class Owner:
    """A job as the census sees it: a main process, a lease, and the processes seen so far."""

    __slots__ = ("lease", "main", "seen")

    def __init__(self, main: int, lease: str | None) -> None:
        self.main: int | None = main
        self.lease = lease  # None: run without a lease of its own
        self.seen: dict[int, int] = {}


class Census:
    """Finds the living processes of jobs.

    Apart are children of ours that are no job's, with all below them. `guarded`: a broker is being
    started and cannot be told from a job's unmarked orphan yet, so the heir gets nothing. To be made
    before the first job is started: the children that are there already are apart. Who makes it later
    says which were there (`before`).
    """

    def __init__(self, before: Iterable[int] | None = None) -> None:
        self._me = os.getpid()
        self._apart: dict[int, int | None] = {}
        """Pid -> when it began: its number may be a job's process's, later."""
        for pid in procs.children(self._me) if before is None else before:
            self.set_apart(pid)
        self.guarded = False
        self._among_strangers = bool(self._apart)

    def take(
        self, owners: Sequence[Owner], *, heir: Owner | None, everywhere: bool
    ) -> dict[Owner, dict[int, int]]:
        """Return, for each owner, its living processes with their start times, parents first.

        `everywhere` also looks for marked processes that are not below us: one scan of all.

        Raises:
            OSError: `/proc` cannot be read now, so that nobody can say who lives.
        """
        dead: set[int] = set()
        found: dict[Owner, dict[int, int]] = {}
        for _ in range(_PASSES):
            found = {owner: {} for owner in owners}
            died = self._walk(found, heir, dead)
            if not died:
                break
            dead |= died
        if everywhere:
            self._add_strays(found)
        if not all(found.values()):
            os.close(os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC))
        for owner, processes in found.items():
            owner.seen.update(processes)
        return found

    def _walk(
        self, found: dict[Owner, dict[int, int]], heir: Owner | None, dead: set[int]
    ) -> set[int]:
        """Walk the tree below us once; return who was found dead for the first time."""
        died: set[int] = set()
        for child in procs.children(self._me):
            if self._is_apart(child):
                continue
            start = procs.start_time(child)
            if start is None:
                died.add(child)
                continue
            owner = self._owner_of(child, start, found)
            if owner is None and not self.guarded and not self._among_strangers:
                owner = heir
            if owner is not None:
                died |= self._collect(child, found.setdefault(owner, {}))
        return died - dead

    def _collect(self, top: int, into: dict[int, int]) -> set[int]:
        """Add a process and all below it; return those that ended meanwhile."""
        died: set[int] = set()
        stack = [top]
        while stack:
            pid = stack.pop()
            if self._is_apart(pid):
                continue
            start = procs.start_time(pid)
            if start is not None:
                stack += procs.children(pid)
            if start is None or procs.start_time(pid) is None:
                died.add(pid)
            else:
                into[pid] = start
        return died

    def _is_apart(self, pid: int) -> bool:
        """A broker serves others too, whoever started it: also one that a job of ours started."""
        if pid in self._apart:
            if self._apart[pid] == procs.start_time(pid):
                return True
            del self._apart[pid]
        if not procs.is_broker(pid):
            return False
        self.set_apart(pid)
        return True

    def set_apart(self, pid: int) -> None:
        """Let a process be no job's, for as long as it lives."""
        self._apart[pid] = procs.start_time(pid)

    @staticmethod
    def _owner_of(child: int, start: int, owners: Iterable[Owner]) -> Owner | None:
        for owner in owners:
            if owner.main == child or owner.seen.get(child) == start:
                return owner
        lease = procs.marker(child)
        if lease is not None:
            for owner in owners:
                if owner.lease == lease:
                    return owner
        return None

    def _add_strays(self, found: dict[Owner, dict[int, int]]) -> None:
        by_lease = {owner.lease: owner for owner in found if owner.lease is not None}
        if not by_lease:
            return
        for lease, pids in procs.with_marker().items():
            owner = by_lease.get(lease)
            for pid in pids if owner is not None else ():
                start = procs.start_time(pid)
                ours = pid != self._me and not self._is_apart(pid)
                if owner is not None and start is not None and ours:
                    found[owner].setdefault(pid, start)


def send(pid: int, start: int, number: int) -> bool:
    """Send a signal to the process that began at `start`; False when it is gone.

    Raises:
        PermissionError: the process lives and is not ours to signal (it changed its user).
        OSError: it cannot be reached now: descriptors or memory have run out.
    """
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if procs.start_time(pid) != start:
            os.close(os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC))  # or it could not be read
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True
