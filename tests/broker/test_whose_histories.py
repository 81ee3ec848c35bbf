"""Whatever processes do, and however they are listed: no lease is given what is not its own."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.watched import Machine

# -- whatever happens -----------------------------------------------------------------------------

PIDS = st.integers(300, 302)
STEPS = st.lists(
    st.tuples(st.just("start"), PIDS, PIDS, st.booleans())
    | st.tuples(st.sampled_from(["end", "grant", "close", "list", "unlist"]), PIDS),
    max_size=40,
)


class History:
    """A machine to which things happen, and the truth about whose each process is."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.began = 10_000
        self.truth: dict[int, str | None] = {}
        """The lease below which the last process of a number was born."""
        self.listed: set[int] = set(range(300, 303))

    def start(self, pid: int, parent: int, marked: bool) -> None:  # noqa: FBT001 - drawn so
        """Start a process below another one, or below init; it may lose the marker."""
        rows = self.machine.rows
        if pid in rows:
            return
        self.began += 1
        parent = parent if parent in rows else 1
        self.truth[pid] = self.truth.get(parent) if parent in rows else None
        marker = self.truth[pid] if marked else None
        self.machine.start(pid, parent, began=self.began, marker=marker or "")

    def end(self, pid: int) -> None:
        """End a process."""
        if pid in self.machine.rows:
            self.machine.end(pid)

    def grant(self, pid: int) -> None:
        """Start an owner and the main process of a new lease."""
        if pid in self.machine.rows:
            return
        self.began += 2
        name = f"lease-{self.began}"
        owner = self.machine.start(self.began, 1, began=self.began - 1)
        self.machine.start(pid, owner, began=self.began, marker=name)
        self.truth[pid] = self.truth[owner] = name
        self.machine.lease(name, pid, owner=owner)

    def close(self, pid: int) -> None:
        """End the lease of a process, which may live on."""
        self.machine.leases.pop(self.truth.get(pid) or "", None)

    def list(self, pid: int) -> None:
        """Let the driver name a number again."""
        self.listed.add(pid)

    def unlist(self, pid: int) -> None:
        """Let the driver name a number no more."""
        self.listed.discard(pid)

    def look(self) -> None:
        """Look, and compare with the truth."""
        told = self.machine.look(10 * len(self.listed), *((pid, 10) for pid in self.listed))
        for lease, pids in told.holders.items():
            assert lease in self.machine.leases
            assert {self.truth.get(pid) for pid in pids} == {lease}
        assert set(told.leases or ()) <= set(self.machine.leases)
        if told.foreign_mib is not None and told.leases is not None:
            assert told.foreign_mib + sum(told.leases.values()) >= 10 * len(self.listed)


@settings(max_examples=400)
@given(STEPS)
def test_no_lease_is_given_what_is_not_its_own(steps: list[tuple[Any, ...]]) -> None:
    """Whoever starts, dies, loses parents or marker, or takes over a number: never a guess."""
    history = History()
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
        history.look()
