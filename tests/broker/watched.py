"""A machine whose driver lists what a test says, looked at again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.broker.whose import Whose
from grn.devices.base import DeviceReading, ProcessUse
from grn.rules.model import Lease, LeaseState, Owner, Request

if TYPE_CHECKING:
    from grn.rules import events as ev


OWNER = 50


class Machine:
    """Processes that live and die, leases, and a device `d0` that lists some of the processes."""

    def __init__(self, *, first_namespace: bool = True) -> None:
        self.rows: dict[int, tuple[int, int, str | None]] = {1: (0, 0, None), OWNER: (500, 1, None)}
        self.hidden: set[int] = set()
        self.asked = 0
        self.leases: dict[str, Lease] = {}
        self.whose = Whose(self)
        self._first = first_namespace

    def start(self, pid: int, parent: int = OWNER, *, began: int = 0, marker: str = "") -> int:
        """Start a process; it begins at ten times its pid unless told otherwise."""
        self.rows[pid] = (began or pid * 10, parent, marker or None)
        return pid

    def end(self, pid: int) -> None:
        """End a process; its children become init's."""
        del self.rows[pid]
        for child, (began, parent, marker) in self.rows.items():
            if parent == pid:
                self.rows[child] = (began, 1, marker)

    def lease(
        self, name: str, main: int | None, *uuids: str, owner: int = OWNER, mib: int = 1000
    ) -> None:
        """Grant a lease, of `d0` if nothing is said."""
        request = Request(1, "t", Owner(owner, self.rows[owner][0]))
        process = None if main is None else Owner(main, self.rows[main][0])
        self.leases[name] = Lease(
            name, 1, request, uuids or ("d0",), mib, LeaseState.RUNNING, 0.0, 1, main=process
        )

    def look(self, used: int | None, *uses: tuple[int, int | None], **more: Any) -> ev.Reading:
        """Look at `d0`."""
        processes = tuple(ProcessUse(pid, mib) for pid, mib in uses)
        reading = DeviceReading("d0", "ok", "", used, processes, **more)
        (told,) = self.whose.readings([reading], self.leases)
        return told

    def birth(self, pid: int) -> tuple[int, int] | None:
        """Return start time and parent."""
        self.asked += 1
        row = None if pid in self.hidden else self.rows.get(pid)
        return None if row is None else row[:2]

    def identity(self, pid: int) -> int | None:
        """Return what changes with the process."""
        self.asked += 1
        return None if pid in self.hidden or pid not in self.rows else hash((pid, self.rows[pid]))

    def marker(self, pid: int) -> str | None:
        """Return the marker."""
        self.asked += 1
        return self.rows[pid][2] if pid in self.rows else None

    def cgroups(self, pid: int) -> tuple[str, ...]:
        """Return no cgroups."""
        del pid
        self.asked += 1
        return ()

    def exists(self, pid: int) -> bool:
        """Say whether it exists."""
        return pid in self.rows

    def in_first_pid_namespace(self) -> bool:
        """Say what the machine was made for."""
        return self._first


def one_job(**more: Any) -> Machine:
    """Return a machine with lease `a`, whose main process is 100."""
    machine = Machine(**more)
    machine.lease("a", machine.start(100))
    return machine
