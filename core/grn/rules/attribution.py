"""Whose memory is it: from a pid that a driver reports to the lease it belongs to.

The walk goes upwards from the few pids that hold memory, not down from the jobs. A process belongs
to a lease if it is the lease's main process, carries the lease's marker (`GRN_LEASE` in its initial
environment: finds double forks and new sessions), or descends from a process that does. A pid
counts as the recorded process only if its start time is the recorded one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.model import Lease

__all__ = ["Processes", "attribute", "main_processes", "sole_owners", "split_use"]

_DEEPEST = 128


class Processes(Protocol):
    """What must be known of processes: the real table, or a simulated one."""

    def start_time(self, pid: int) -> int | None:
        """Start time in clock ticks since boot; `None` when the process is gone."""

    def parent(self, pid: int) -> int | None:
        """Parent's pid; `None` when unknown."""

    def marker(self, pid: int) -> str | None:
        """Value of `GRN_LEASE` in the initial environment; `None` when absent or unreadable."""


def main_processes(leases: Iterable[Lease]) -> dict[int, tuple[int, str]]:
    """Map the pid of each lease's main process to its start time and lease.

    A client that uses a lease in its own process names itself; of several leases of one process
    the newest counts.
    """
    return {
        lease.main.pid: (lease.main.start, lease.id) for lease in leases if lease.main is not None
    }


def sole_owners(leases: Iterable[Lease]) -> dict[int, tuple[int, str]]:
    """Map each owner of exactly one lease to it: all its descendants are that lease's.

    They may have lost the marker (`env -i`). An owner of several leases says nothing about which.
    """
    held: dict[int, list[Lease]] = {}
    for lease in leases:
        held.setdefault(lease.request.owner.pid, []).append(lease)
    return {
        pid: (theirs[0].request.owner.start, theirs[0].id)
        for pid, theirs in held.items()
        if len(theirs) == 1
    }


def attribute(
    pid: int, live: Mapping[str, Lease], mains: Mapping[int, tuple[int, str]], table: Processes
) -> str | None:
    """Return the id of the live lease to which a process belongs, or `None`: it is foreign."""
    for _ in range(_DEEPEST):
        if pid <= 1:
            return None
        main = mains.get(pid)
        if main is not None and table.start_time(pid) == main[0]:
            return main[1]
        marker = table.marker(pid)
        if marker is not None and marker in live:
            return marker
        parent = table.parent(pid)
        if parent is None or parent == pid:
            return None
        pid = parent
    return None


def split_use(
    uses: Iterable[tuple[int, int | None]],
    live: Mapping[str, Lease],
    mains: Mapping[int, tuple[int, str]],
    table: Processes,
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], bool]:
    """Sum the use of one device by lease.

    Args:
        uses: (pid, MiB or `None` when the driver does not say) of each process on the device.
        live: leases by id.
        mains: see `main_processes`.
        table: what is known of processes.

    Returns:
        MiB by lease, holders' pids by lease, and whether every figure was known.
    """
    held: dict[str, int] = {}
    holders: dict[str, tuple[int, ...]] = {}
    complete = True
    for pid, mib in uses:
        lease = attribute(pid, live, mains, table)
        if mib is None:
            complete = False
            continue
        if lease is not None:
            held[lease] = held.get(lease, 0) + mib
            holders[lease] = (*holders.get(lease, ()), pid)
    return held, holders, complete
