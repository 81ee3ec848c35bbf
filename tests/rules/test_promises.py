"""Books, leases and waiters that contradict each other are noticed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.rules.ledger import InvariantError
from grn.rules.model import LeaseState
from tests.rules.acting import Stage

if TYPE_CHECKING:
    from collections.abc import Callable


def _busy() -> Stage:
    stage = Stage(8000, 8000)
    stage.ask(memory_mib=1000)
    stage.ask(memory_mib=1000, allowed=frozenset({"GPU-0000"}))
    stage.ask("probe", allowed=frozenset({"GPU-0001"}))
    stage.ask(whole=True)
    stage.machine.check_invariants()
    return stage


def _lease_without_booking(stage: Stage) -> None:
    stage.machine.ledger.remove("t-1", ("GPU-0000",))


def _booking_without_lease(stage: Stage) -> None:
    del stage.machine.leases["t-1"]


def _probe_with_company(stage: Stage) -> None:
    stage.machine.leases["t-1"].state = LeaseState.PROBE


def _device_twice(stage: Stage) -> None:
    stage.machine.leases["t-1"].uuids = ("GPU-0000", "GPU-0000")


def _overbooked(stage: Stage) -> None:
    ledger = stage.machine.ledger
    ledger.restore("t-1", ("GPU-0000",), 9000, alone=False, cpus=0, ram_mib=0, compute=0)


@pytest.mark.parametrize(
    "breaks",
    [
        _lease_without_booking,
        _booking_without_lease,
        _probe_with_company,
        _device_twice,
        _overbooked,
    ],
)
def test_a_broken_promise_is_noticed(breaks: Callable[[Stage], None]) -> None:
    """Each kind of contradiction is found by the check that runs after every step."""
    stage = _busy()
    breaks(stage)
    with pytest.raises(InvariantError):
        stage.machine.check_invariants()


def test_a_waiter_without_a_reason_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits without being able to learn why."""
    stage = _busy()
    monkeypatch.setattr(stage.machine, "reason", lambda _: "")
    with pytest.raises(InvariantError, match="without a reason"):
        stage.machine.check_invariants()
