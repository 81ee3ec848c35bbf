"""Which processes belong to a child, and the end of all of them.

A child leads a session of its own. Its processes are those of that session, those that were seen
below any of them, and those that carry its lease, if it has one to itself. The fork server adopts
orphans; so as long as it lives, whoever is not below it is none of ours.

Promises: a broker, whoever started it, belongs to nobody, nor does what is below it; a process is
signalled through a pidfd after its start time was compared.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from grn import procs
from grn.supervise.tree import send

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["Family", "kin", "signal_all"]

_LEASE = "GRN_LEASE"
_TICK_S = 0.02
_GIVE_UP_S = 10.0


def kin(among: Iterable[int], leaders: Collection[int], seen: dict[int, int]) -> dict[int, int]:
    """Return which of these processes (parents first) are the leaders', with their start times.

    `seen` remembers them: a process that has left its session and lost its parent is still theirs.
    """
    found: dict[int, int] = {}
    for pid in among:
        birth = procs.birth(pid)
        start = procs.start_time(pid)
        if birth is None or start is None:
            continue
        ours = (
            pid in leaders
            or birth[1] in found
            or seen.get(pid) == start
            or _session(pid) in leaders
        )
        if ours and not procs.is_broker(pid):
            found[pid] = start
    seen.update(found)
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


class Family:
    """The processes of the child that began at `start` under `server` (pid and start time).

    `alone` says whether no other child is under the same lease now.
    """

    def __init__(
        self,
        pid: int,
        start: int,
        *,
        server: tuple[int, int],
        lease: str | None,
        alone: Callable[[str], bool],
    ) -> None:
        self.lease = lease
        self._pid = pid
        self._start = start
        self._server = server
        self._alone = alone
        self._seen: dict[int, int] = {}

    def find(self) -> dict[int, int]:
        """Return the living processes with their start times, parents first."""
        near = self._near()
        # The number of a session is free for others only when nobody is in it any more.
        reused = procs.start_time(self._pid) not in {None, self._start}
        found = kin(near, () if reused else (self._pid,), self._seen)
        if self._has_lease_to_itself():
            marked = [pid for pid in near if procs.marker(pid) == self.lease]
            found |= kin(marked, marked, self._seen)
        return {pid: start for pid, start in found.items() if start >= self._start}

    def _has_lease_to_itself(self) -> bool:
        lease = self.lease
        if lease is None or lease in {os.environ.get(_LEASE), procs.marker(os.getpid())}:
            return False  # none, or the one that we are under ourselves
        return self._alone(lease)

    def _near(self) -> list[int]:
        server, start = self._server
        if procs.is_alive(server, start):
            return procs.descendants(server)
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]

    def stop(self, grace_s: float, wait: Callable[[float], bool]) -> list[int]:
        """Terminate all, kill them after the grace; return the pids that survived even that.

        `wait(s)` waits that long for the child itself, and says whether it is gone.
        """
        deadline = time.monotonic() + grace_s
        asked: set[tuple[int, int]] = set()
        while (found := self.find()) and time.monotonic() < deadline:
            # Parents first: a shell whose command dies before its own TERM would run the next one.
            fresh = {pid: start for pid, start in found.items() if (pid, start) not in asked}
            signal_all(fresh, signal.SIGTERM)
            signal_all(fresh, signal.SIGCONT)  # a stopped process would not see it
            asked |= fresh.items()
            _pause(wait)
        deadline = time.monotonic() + _GIVE_UP_S
        while found and time.monotonic() < deadline:
            signal_all(found, signal.SIGKILL)
            _pause(wait)
            found = self.find()
        return sorted(found)


def signal_all(processes: dict[int, int], number: int) -> None:
    """Signal all that can be."""
    for pid, start in processes.items():
        try:
            send(pid, start, number)
        except PermissionError:  # it runs as another user now: it shows as a survivor
            continue


def _pause(wait: Callable[[float], bool]) -> None:
    if wait(_TICK_S):
        time.sleep(_TICK_S / 10)  # the child is gone, others are still to go
