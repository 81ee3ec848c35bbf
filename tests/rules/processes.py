"""A table of processes for the rules, as a test describes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from grn.rules.attribution import (
    claims,
    judge,
)
from grn.rules.model import Lease, LeaseState, Owner, Request


@dataclass
class Row:
    """What is known of one process."""

    start: int
    parent: int
    marker: str | None = None
    cgroups: tuple[str, ...] = ("/",)


@dataclass
class Table:
    """A process table, and how often it was asked for what."""

    rows: dict[int, Row] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(
        self,
        pid: int,
        parent: int,
        *,
        start: int | None = None,
        marker: str | None = None,
        cgroups: tuple[str, ...] = ("/",),
    ) -> Table:
        """Add a process; it began at ten times its pid unless `start` says otherwise."""
        self.rows[pid] = Row(start if start is not None else pid * 10, parent, marker, cgroups)
        return self

    def birth(self, pid: int) -> tuple[int, int] | None:
        """Return start time and parent."""
        self.asked.append("birth")
        row = self.rows.get(pid)
        return None if row is None else (row.start, row.parent)

    def marker(self, pid: int) -> str | None:
        """Return the marker."""
        self.asked.append("marker")
        return self.rows[pid].marker if pid in self.rows else None

    def cgroups(self, pid: int) -> tuple[str, ...]:
        """Return the paths of its cgroup."""
        return self.rows[pid].cgroups if pid in self.rows else ()


def lease(
    name: str,
    main: int | None,
    *,
    owner: int = 50,
    uuids: tuple[str, ...] = ("d0",),
) -> Lease:
    """Return a lease; every process began at ten times its pid."""
    request = Request(1, "job", Owner(owner, owner * 10))
    process = None if main is None else Owner(main, main * 10)
    return Lease(name, 1, request, uuids, 100, LeaseState.RUNNING, 0.0, 1, main=process)


def live(*leases: Lease) -> dict[str, Lease]:
    """Return leases by id."""
    return {each.id: each for each in leases}


A_AND_B = live(lease("a", 100), lease("b", 200))


def table() -> Table:
    """Return init, the owner 50, and the main processes 100 and 200 of its two jobs."""
    return Table().add(1, 0, start=0).add(50, 1).add(100, 50).add(200, 50)


def whose(
    pid: int, leases: dict[str, Lease], processes: Table, *, by_owner: bool = True
) -> tuple[str, ...] | None:
    """Return the leases of a process; `None`: it is gone."""
    verdict = judge(pid, leases, claims(leases.values()), processes, by_owner=by_owner)
    return None if verdict is None else verdict.leases
