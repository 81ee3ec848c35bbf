"""Resident memory in place of device memory (`meter=rss`).

So that unmodified CPU programs are measured, learnt and packed like GPU jobs. A lease's processes
are the trees below its roots, plus those that left the tree (a double fork, a new session, a dead
parent) and still carry the lease's mark. Finding the latter takes a scan of all processes, so it is
done once a second, and at once when a root vanishes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from grn import procs
from grn.devices.base import ProcessUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["RssMeter"]

SCAN_EVERY_S = 1.0


class Table(Protocol):
    """What the meter asks of the process table."""

    def descendants(self, pid: int) -> list[int]:
        """Return all processes below `pid`."""
        ...

    def rss_mib(self, pid: int) -> int | None:
        """Return a process's resident memory, rounded up; None if it is gone."""
        ...

    def with_marker(self) -> dict[str, list[int]]:
        """Return lease id -> pids of all processes that carry a lease's mark."""
        ...


class RssMeter:
    """Sums resident memory by lease."""

    def __init__(
        self, table: Table | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table: Table = table or procs.ProcessTable()
        self._clock = clock
        self._marked: dict[str, list[int]] = {}
        self._scanned_s = -SCAN_EVERY_S
        self._roots: set[int] = set()

    def measure(
        self, roots: Mapping[str, Sequence[int]], places: Mapping[str, Sequence[str]]
    ) -> dict[str, list[ProcessUse]]:
        """Return what each process of each placed lease has resident.

        A process counts once, whether it is found by its tree, by its mark or by both.
        """
        self._scan_if_due({pid for pids in roots.values() for pid in pids})
        counted: set[int] = set()
        found: dict[str, list[ProcessUse]] = {}
        for lease, uuids in places.items():
            if not uuids:
                continue
            pids = self._tree(roots.get(lease, ()))
            uses = [*self._uses(pids, counted), *self._uses(self._marked.get(lease, ()), counted)]
            found[lease] = uses
        return found

    def _scan_if_due(self, roots: set[int]) -> None:
        now = self._clock()
        if now - self._scanned_s >= SCAN_EVERY_S or self._roots - roots:
            self._marked = self._table.with_marker()
            self._scanned_s = now
        self._roots = roots

    def _tree(self, roots: Iterable[int]) -> list[int]:
        return [pid for root in roots for pid in (root, *self._table.descendants(root))]

    def _uses(self, pids: Iterable[int], counted: set[int]) -> list[ProcessUse]:
        uses: list[ProcessUse] = []
        for pid in pids:
            mib = None if pid in counted else self._table.rss_mib(pid)
            if mib is not None:
                counted.add(pid)
                uses.append(ProcessUse(pid, mib))
        return uses
