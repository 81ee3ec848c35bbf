"""Whose memory is it: from the pids that a driver reports to leases, and what that says of a device.

Design note. The walk goes upwards from the few pids that hold memory, not down from the jobs. A
process belongs to a lease if it is the lease's main process, carries the lease's marker
(`GRN_LEASE` in its initial environment: finds double forks and new sessions), sits in a cgroup that
is named after the lease, or descends from a process that does. A pid is only a name: it counts
together with its start time. What none of these proves is foreign. A wrong attribution would hand
out memory twice, or book a job for what somebody else holds.

A container is no descendant of the command that asked for it, and its environment can be read by
its own user and by root only; its cgroup can be read by all. `docker run -e GRN_LEASE` or
`docker run --cgroup-parent=grn-$GRN_LEASE.slice` (`/grn-$GRN_LEASE` with Docker's cgroupfs driver)
tells us.

Rejected:

- A cgroup that the main process merely sits in. Nothing proves that it was made for the job: a
  session, a batch step, a group into which a user puts all that is to run at low priority. Only a
  name says so.
- Translating a pid that does not exist here by the inner pids (`NSpid`) of our processes. A driver
  answers in the pid namespace of its caller, so a broker on the host is never given inner pids; and
  where a container's low numbers do turn up, most of them exist here as somebody else.

What a device's figures say (`figures`) is all or nothing: `leases=None` when somebody holds memory
of whom we can say neither that it is a lease's nor that it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.model import Lease

__all__ = [
    "Claims",
    "Figures",
    "Process",
    "Processes",
    "Use",
    "Verdict",
    "accountable",
    "chosen",
    "claims",
    "figures",
    "figures_unseen",
    "hides_clients",
    "judge",
    "largest_together",
    "lease_of_cgroups",
    "main_processes",
    "shows_clients",
]

SERVER_OWN_MIB = 128
"""An MPS server's own share is some tens of MiB; with more it holds what its clients allocated."""

_DEEPEST = 128
_INIT = 1
_UNIT_KINDS = (".slice", ".scope", ".service")

Process = tuple[int, int]
"""A pid and the start time that tells it from others of the same number."""


class Processes(Protocol):
    """What must be known of processes: the real table, or a simulated one."""

    def birth(self, pid: int) -> tuple[int, int] | None:
        """Start time and parent's pid, also of a zombie; `None`: no such process, or hidden."""
        ...

    def marker(self, pid: int) -> str | None:
        """Value of `GRN_LEASE` in the initial environment; `None` when absent or unreadable."""
        ...

    def cgroups(self, pid: int) -> tuple[str, ...]:
        """Paths of its cgroup in all hierarchies; `()` when unknown."""
        ...


# -- one process ----------------------------------------------------------------------------------


class Claims(NamedTuple):
    """Which processes live leases name: those, and what descends from them, are theirs."""

    mains: Mapping[Process, tuple[str, ...]]
    """Main process -> leases, oldest first: one process may use several leases for itself."""
    owners: Mapping[Process, str]
    """Owner of exactly one lease -> that lease; of several, an owner does not say which."""

    def changed(self, before: Claims) -> frozenset[Process]:
        """Return the processes of which something else is claimed now."""
        mains = self.mains.items() ^ before.mains.items()
        owners = self.owners.items() ^ before.owners.items()
        return frozenset(process for process, _ in (*mains, *owners))


class Verdict(NamedTuple):
    """Whose a process is. `leases=()`: foreign; several: see `chosen`."""

    start: int
    leases: tuple[str, ...] = ()
    chain: frozenset[Process] = frozenset()
    """Whom the walk met: what is claimed of one of them later may change the verdict."""


def main_processes(leases: Iterable[Lease]) -> dict[int, tuple[int, str]]:
    """Map the pid of each lease's main process to its start time and lease.

    A client that uses a lease in its own process names itself; of several leases of one process
    the newest counts.
    """
    return {
        lease.main.pid: (lease.main.start, lease.id) for lease in leases if lease.main is not None
    }


def claims(leases: Iterable[Lease]) -> Claims:
    """Collect what live leases, oldest first, claim.

    Descendants of an owner count too: they may have lost the marker (`env -i`).
    """
    mains: dict[Process, tuple[str, ...]] = {}
    owned: dict[Process, list[str]] = {}
    for lease in leases:
        owner = lease.request.owner
        owned.setdefault((owner.pid, owner.start), []).append(lease.id)
        if lease.main is not None:
            main = (lease.main.pid, lease.main.start)
            mains[main] = (*mains.get(main, ()), lease.id)
    return Claims(mains, {owner: ids[0] for owner, ids in owned.items() if len(ids) == 1})


def judge(
    pid: int,
    live: Mapping[str, Lease],
    claimed: Claims,
    table: Processes,
    *,
    by_owner: bool = True,
) -> Verdict | None:
    """Find whose a process is; `None` when it is gone.

    Args:
        pid: the process.
        live: leases by id.
        claimed: see `claims`.
        table: what is known of processes.
        by_owner: descent from an owner counts. Not for what a lease that has ended left behind.
    """
    born = table.birth(pid)
    if born is None:
        return None
    start, at = born[0], pid
    chain: list[Process] = []
    leases: tuple[str, ...] = ()
    while born is not None and len(chain) < _DEEPEST:
        if chain and born[0] > chain[-1][1]:
            break  # no parent is younger than its child: the number was given away in between
        process = (at, born[0])
        chain.append(process)
        leases = claimed.mains.get(process, ())
        marker = None if leases else table.marker(at)
        leases = leases or _named(at, marker, live, table, cgroup_too=at == pid)
        if not leases and (by_owner or at == pid):
            leases = _owned(chain, live, claimed)
        if leases or born[1] <= _INIT:
            break  # what has init as parent may be anybody's orphan
        # The mark of another lease, one that has ended: it is not its owner's next lease's.
        by_owner = by_owner and marker is None
        at = born[1]
        born = table.birth(at)
    again = table.birth(pid)
    if again is None or again[0] != start:
        return None
    return Verdict(start, leases, frozenset(chain))


def _named(
    pid: int, marker: str | None, live: Mapping[str, Lease], table: Processes, *, cgroup_too: bool
) -> tuple[str, ...]:
    if marker is not None and marker in live:
        return (marker,)
    # A child begins in its parent's cgroup: to ask for the first of a chain is enough.
    lease = lease_of_cgroups(table.cgroups(pid), live) if cgroup_too else None
    return (lease,) if lease else ()


def _owned(chain: list[Process], live: Mapping[str, Lease], claimed: Claims) -> tuple[str, ...]:
    lease = claimed.owners.get(chain[-1])
    if lease is None:
        return ()
    main = live[lease].main
    if main is not None and len(chain) > 1 and chain[-2][1] < main.start:
        return ()  # older than the job: left behind by one before it
    return (lease,)


def lease_of_cgroups(paths: Iterable[str], live: Mapping[str, Lease]) -> str | None:
    """Return the live lease after which a part of a path is named: `grn-<lease>[.slice]`.

    The innermost one counts. Paths that name several leases say nothing.
    """
    found = {_lease_of_path(path, live) for path in paths if "/grn-" in path} - {None}
    return found.pop() if len(found) == 1 else None


def _lease_of_path(path: str, live: Mapping[str, Lease]) -> str | None:
    for part in reversed(path.split("/")):
        name = part
        for kind in _UNIT_KINDS:
            name = name.removesuffix(kind)
        lease = name.removeprefix("grn-")
        if lease != name and lease in live:
            return lease
    return None


def chosen(leases: tuple[str, ...], uuid: str, live: Mapping[str, Lease]) -> str | None:
    """Return whose the memory on one device is.

    Of several leases of one process it is the newest one's that was given this device. If none was
    given it the newest counts, which then strays.
    """
    alive = [lease for lease in leases if lease in live]
    given = [lease for lease in alive if uuid in live[lease].uuids] or alive
    return given[-1] if given else None


# -- one device -----------------------------------------------------------------------------------


class Use(NamedTuple):
    """What one process holds on one device, and whose it is.

    `stranger`: it does not exist here, so it may be anybody's. `doubtful`: it does not exist, and
    may have died since the driver's answer. `server`: it holds memory for other processes.
    """

    pid: int
    mib: int | None
    lease: str | None = None
    server: bool = False
    stranger: bool = False
    doubtful: bool = False

    @property
    def holds(self) -> bool:
        """Whether it holds memory, or may."""
        return self.mib is None or self.mib > 0


class Figures(NamedTuple):
    """What one reading says. `None`: nobody can say, or it stays as it was."""

    foreign_mib: int | None
    leases: dict[str, int] | None
    holders: dict[str, tuple[int, ...]]


def figures(
    uses: Iterable[Use],
    used_mib: int | None,
    booked: Mapping[str, int],
    before: Mapping[str, int] | None,
    *,
    old_server: bool = False,
    other_numbers: bool = False,
    hidden: bool = False,
) -> Figures:
    """Sum up who holds what on one device.

    Args:
        uses: of each process that the driver lists.
        used_mib: the device's total; `None`: unknown.
        booked: MiB of each lease that was given this device.
        before: what live leases held at the reading before; `None`: unknown.
        old_server: an MPS server may hold what leases allocated (see `hides_clients`).
        other_numbers: the driver was caught counting in another pid namespace, so that a process
            that exists here may be meant for another one.
        hidden: nobody is listed, and yet the total is above what it was without leases.

    The rules, in this order:

    1. With no lease on the device, whoever has no lease is foreign, known or not.
    2. A stranger that holds memory, or may, makes all unknown: it may be any lease's. So does memory
       that nobody listed holds: in a container the driver's list may be empty.
    3. So does a process of a lease of this device whose use the driver does not tell. That of a
       foreign process, or of a lease that strays here, does not: it is in what the others leave.
    4. A doubtful process leaves foreign memory as it was, and no lease less than it held: it may be
       a lease's that has just died. The next reading decides.
    5. What leases do not hold is foreign: contexts of the driver and an MPS server's share too. Where
       the total is unknown, it is at least what processes without a lease are listed with.
    """
    listed = [use for use in uses if use.holds or use.lease]
    held, holders = _sums(listed)
    unknown = (old_server or hidden) or any(
        use.stranger or (use.lease in booked and (use.mib is None or other_numbers))
        for use in listed
        if use.holds
    )
    if booked and unknown:
        return Figures(_foreign_at_least(listed, used_mib, booked, held), None, holders)
    if booked and any(use.doubtful for use in listed):
        return Figures(None, _no_less(held, before), holders)
    others = sum(use.mib or 0 for use in listed if use.lease is None)
    foreign = others if used_mib is None else max(0, used_mib - sum(held.values()))
    return Figures(foreign if used_mib is not None or others else None, held, holders)


def figures_unseen(used_mib: int | None, booked: Mapping[str, int]) -> Figures:
    """Where the driver lists no processes, count as foreign what exceeds the bookings."""
    return Figures(_foreign_at_least((), used_mib, booked, {}), None, {})


def _sums(uses: Iterable[Use]) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    held: dict[str, int] = {}
    holders: dict[str, tuple[int, ...]] = {}
    for use in uses:
        if use.lease is None:
            continue
        holders[use.lease] = (*holders.get(use.lease, ()), use.pid)
        if use.mib is not None:
            held[use.lease] = held.get(use.lease, 0) + use.mib
    return held, holders


def _no_less(held: dict[str, int], before: Mapping[str, int] | None) -> dict[str, int] | None:
    if before is None:
        return None
    return {
        lease: max(held.get(lease, 0), before.get(lease, 0))
        for lease in held.keys() | before.keys()
    }


def _foreign_at_least(
    uses: Iterable[Use],
    used_mib: int | None,
    booked: Mapping[str, int],
    held: Mapping[str, int],
) -> int | None:
    """What exceeds the bookings, and what is surely others': no less than either."""
    if used_mib is None:
        return None
    ours = sum(max(mib, held.get(lease, 0)) for lease, mib in booked.items())
    others = sum(
        use.mib or 0
        for use in uses
        if not (use.lease in booked or use.stranger or use.doubtful or use.server)
    )
    return max(0, min(others, used_mib), used_mib - ours)


def hides_clients(uses: Iterable[Use], booked: Mapping[str, int]) -> bool:
    """Whether an MPS server of the old kind may hold what leases of this device allocated.

    Before Volta the server alone is listed, with the memory of all its clients. Since then clients
    are listed beside it, and what it holds itself is small.
    """
    listed = list(uses)
    served = any(use.server and (use.mib is None or use.mib > SERVER_OWN_MIB) for use in listed)
    return bool(booked) and served and not shows_clients(listed, booked)


def shows_clients(uses: Iterable[Use], booked: Mapping[str, int]) -> bool:
    """Whether a server and a lease's process are listed side by side: a server of the new kind."""
    listed = list(uses)
    return any(use.server for use in listed) and any(
        use.lease in booked and use.holds for use in listed if not use.server
    )


def accountable(process: Process, lease: Lease) -> bool:
    """Whether what a driver recorded of a process is the lease's alone.

    A process that uses leases itself, or began before them, may have held more without.
    """
    owner = lease.request.owner
    return lease.main != owner and process != (owner.pid, owner.start)


def largest_together(spans: Iterable[tuple[int, int, int]]) -> int:
    """Return the largest sum of maxima of processes that were there at the same time.

    A script's steps one after another never held the sum of all of them.

    Args:
        spans: (first look, last look, largest MiB) of each process.
    """
    listed = list(spans)
    # The sum can only be largest at a look at which a process appears.
    return max(
        (
            sum(mib for first, last, mib in listed if first <= at <= last)
            for at in {first for first, _, _ in listed}
        ),
        default=0,
    )
