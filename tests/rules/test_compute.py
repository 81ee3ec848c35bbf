"""Parts of a device's multiprocessors: booked beside its memory, and held by MPS where it answers."""

from __future__ import annotations

from typing import Any

import pytest

from grn.errors import UsageError
from grn.rules import events as ev
from grn.rules.ledger import InvariantError
from grn.rules.messages import request_from
from grn.rules.model import Owner, Policy, Request
from tests.rules.acting import Stage

MINE = 1000


def stage(*sizes_mib: int, **more: Any) -> Stage:
    """Make a machine on which `job` is known to take 1000 MiB."""
    here = Stage(*(sizes_mib or (8000,)), **more)
    here.know("job", MINE)
    return here


def asked(**fields: Any) -> Request:
    """Read an `acquire` with these fields."""
    return request_from(
        {"op": "acquire", "id": 1, "type": "job", "gpus": 1, **fields},
        ticket=1,
        owner=Owner(10, 20, 30),
        session="",
        now=0.0,
        devices=(),
        policy=Policy.SPREAD,
    )


# -- the books --------------------------------------------------------------------------------------


def test_parts_of_one_device_add_up_to_the_whole() -> None:
    """What does not fit waits, with the figures, however much memory is free."""
    here = stage()
    first, second, third = (here.ask(compute=part) for part in (60, 40, 1))
    assert first.runs
    assert second.runs
    assert third.waits
    assert "1 % of the multiprocessors" in here.reason(third)
    assert "100 % of its multiprocessors booked" in here.reason(third)
    here.finish(second)
    assert third.runs


def test_who_declares_none_is_not_held_up_by_those_who_do() -> None:
    """A job without a figure books nothing, and takes what is idle."""
    here = stage()
    here.ask(compute=100)
    assert here.ask().runs


def test_another_device_has_parts_of_its_own() -> None:
    """The part is of each device that is leased."""
    here = stage(8000, 8000)
    assert [here.ask(compute=60).at for _ in range(2)] == [(0,), (1,)]
    assert here.ask(compute=40, gpus=2).runs
    assert here.ask(compute=1, gpus=2).waits


def test_a_first_run_books_its_part_for_later() -> None:
    """While it is alone it does not matter; once others come beside it, it does."""
    here = Stage(8000)
    probe = here.ask("new", compute=70)
    here.run_until(0)
    assert probe.lease is not None
    assert here.machine.ledger.by_uuid["GPU-0000"].compute_booked == 70


def test_the_head_of_the_queue_is_not_starved_of_multiprocessors() -> None:
    """Small parts that come later do not overtake a large one that waits for theirs."""
    here = stage()
    running = here.ask(compute=50)
    head = here.ask(compute=80)
    late = here.ask(compute=50)
    assert head.waits
    assert late.waits
    assert "kept for" in here.reason(late)
    beside = here.ask(compute=20)
    assert beside.runs, "beside either of them it would fit all the same"
    here.finish(running)
    assert head.runs
    assert late.waits


def test_the_device_where_least_must_end_is_kept_for_the_head() -> None:
    """Of two devices with room for memory, that one where one end makes room for the part."""
    here = stage(8000, 8000)
    for part in (30, 30, 30, 90):
        here.ask(compute=part, policy=Policy.PACK)
    here.ask(compute=60)
    head = here.machine.reservation
    assert head is not None
    assert list(head.needs_mib) == ["GPU-0001"]


def test_parts_survive_the_broker() -> None:
    """A successor books what its predecessor had booked."""
    before, after = stage(), stage()
    before.ask(compute=60, processes=3)
    after.machine.restore(before.journal, 0.0)
    (lease,) = after.machine.leases.values()
    assert (lease.request.compute, lease.request.processes) == (60, 3)
    assert after.ask(compute=50).waits
    assert after.ask(compute=40).runs


def test_the_books_refuse_more_than_the_whole() -> None:
    """A decision that would break the promise is a defect, and is caught."""
    ledger = stage().machine.ledger
    ledger.place("a", ("GPU-0000",), 10, compute=60)
    with pytest.raises(InvariantError, match="60 %"):
        ledger.place("b", ("GPU-0000",), 10, compute=41)


# -- the request ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compute", [0, 101, -1, 1.5, "30", True])
def test_only_percentages_are_parts(compute: object) -> None:
    """Anything else is the client's mistake."""
    with pytest.raises(UsageError):
        asked(compute=compute)


def test_what_is_not_said_is_no_part_and_one_process() -> None:
    """The usual job."""
    request = asked()
    assert (request.compute, request.processes, request.affinity, request.core_ids) == (
        None,
        1,
        False,
        None,
    )


def test_a_part_processes_and_cores_are_read() -> None:
    """All of it, as it was said."""
    request = asked(compute=30, processes=2, affinity=True, core_ids=[1, 0])
    assert (request.compute, request.processes, request.affinity) == (30, 2, True)
    assert request.core_ids == frozenset({0, 1})


@pytest.mark.parametrize("cores", [7, "0", [-1], [True], ["0"], [1 << 40], list(range(70_000))])
def test_only_core_numbers_are_cores(cores: object) -> None:
    """Anything else is the client's mistake."""
    with pytest.raises(UsageError):
        asked(affinity=True, core_ids=cores)


# -- who holds a lease to it ------------------------------------------------------------------------


def test_a_daemon_that_answers_limits_leases_from_then_on() -> None:
    """What runs keeps what it was told; the next one is told of the daemon, until it is gone."""
    here = stage()
    before = here.ask()
    here.step(ev.MpsSeen(0.0, "/run/mps"))
    during = here.ask()
    here.step(ev.MpsSeen(0.0, ""))
    after = here.ask()
    leases = [job.lease for job in (before, during, after)]
    assert [lease and lease.mps for lease in leases] == ["", "/run/mps", ""]
    assert [lease and lease.enforced_by for lease in leases] == [
        "cooperative",
        "mps",
        "cooperative",
    ]


def test_no_device_no_enforcement() -> None:
    """A job without a device has nothing to be held to."""
    here = stage()
    here.step(ev.MpsSeen(0.0, "/run/mps"))
    lease = here.ask(gpus=None).lease
    assert lease is not None
    assert (lease.mps, lease.enforced_by) == ("", None)


def test_who_is_alone_is_only_held_to_a_part_of_the_multiprocessors() -> None:
    """A first run and a whole device have no share of memory."""
    here = Stage(8000, 8000, 8000)
    here.step(ev.MpsSeen(0.0, "/run/mps"))
    probe, whole, part = here.ask("a"), here.ask("b", whole=True), here.ask("c", compute=9)
    leases = [job.lease for job in (probe, whole, part)]
    assert [lease and lease.mps for lease in leases] == ["", "", "/run/mps"]


@pytest.mark.parametrize(("uid", "limited"), [(0, True), (7, True), (8, False)])
def test_a_users_daemon_serves_that_user_alone(uid: int, limited: bool) -> None:  # noqa: FBT001
    """Another user's jobs are not sent to it; root's serves everybody."""
    here = stage()
    here.step(ev.MpsSeen(0.0, "/run/mps", uid))
    request = Request(99, "job", Owner(5, 5, uid=7))
    effects = here.machine.step(ev.Asked(0.0, request)) + here.machine.step(ev.Settle(0.0))
    (granted,) = [effect for effect in effects if isinstance(effect, ev.Granted)]
    assert bool(granted.lease.mps) is limited


def test_a_successor_still_knows_what_holds_a_lease() -> None:
    """`grn status` says the same before and after the death of a broker."""
    before, after = stage(), stage()
    before.step(ev.MpsSeen(0.0, "/run/mps"))
    before.ask()
    after.machine.restore(before.journal, 0.0)
    (lease,) = after.machine.leases.values()
    assert lease.enforced_by == "mps"
