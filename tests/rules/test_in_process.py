"""Leases that one process uses one after the other: it must not wait for what it holds itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules import events as ev
from grn.rules.model import End, Request
from tests.rules.acting import Job, Stage

if TYPE_CHECKING:
    from grn.rules.model import Owner


def ask(stage: Stage, owner: Owner | None = None, **wish: Any) -> Job:
    """Let a process ask for a lease that it uses itself; the same one again, if it is named."""
    if owner is None:
        return stage.ask(in_process=True, **wish)
    ticket = next(stage._numbers)
    request = Request(ticket, "job", owner, **{"in_process": True, **wish})
    job = stage.jobs[ticket] = Job(request, None, 0, 0.0, End(exit_code=0))
    stage.step(ev.Asked(stage.now, request))
    stage.settle()
    return job


def give_back(stage: Stage, job: Job) -> None:
    """Give a lease back; the process lives, and holds on what it holds."""
    assert job.lease is not None
    ticket = next(stage._numbers)
    stage.jobs[ticket] = job
    end = End(exit_code=0)
    stage.step(ev.Released(stage.now, job.lease.id, end, ticket, main_alive=True))
    job.ended_s = stage.now
    stage.settle()


def test_a_process_need_not_wait_for_itself() -> None:
    """Its next lease takes the place of the one that drains since it holds memory on."""
    stage = Stage(10000)
    first = ask(stage)
    stage.hold(first, 3000)
    give_back(stage, first)
    assert len(stage.machine.leases) == 1
    second = ask(stage, first.request.owner)
    assert second.runs
    assert list(stage.machine.leases.values()) == [second.lease]
    assert second.booked_mib == 3000


def test_what_it_holds_is_no_room_for_others() -> None:
    """Another process waits for that memory, and is not helped by the first one's asking."""
    stage = Stage(10000)
    first = ask(stage, memory_mib=6000)
    stage.hold(first, 6000)
    give_back(stage, first)
    other = stage.ask(memory_mib=6000)
    assert other.waits
    assert ask(stage, first.request.owner, memory_mib=6000).runs
    assert other.waits


def test_a_child_is_not_the_process_itself() -> None:
    """A lease for a child waits for what its parent holds: it cannot use that."""
    stage = Stage(10000)
    first = ask(stage, memory_mib=6000)
    stage.hold(first, 6000)
    give_back(stage, first)
    assert ask(stage, first.request.owner, memory_mib=6000, in_process=False).waits


def test_on_another_device_the_old_lease_goes_on_draining() -> None:
    """What is held on one device is no matter of the other."""
    stage = Stage(10000, 10000)
    first = ask(stage, memory_mib=8000)
    stage.hold(first, 500)
    give_back(stage, first)
    second = ask(stage, first.request.owner, memory_mib=8000)
    assert second.at in {(0,), (1,)}
    kept = [lease for lease in stage.machine.leases.values() if lease is not second.lease]
    assert bool(kept) == (second.at != first.at)


def test_what_it_holds_counts_in_the_next_lease_at_once() -> None:
    """No look is needed before others are told how much is left beside it."""
    stage = Stage(10000)
    first = ask(stage, memory_mib=6000)
    stage.hold(first, 5000)
    give_back(stage, first)
    second = ask(stage, first.request.owner, memory_mib=1000)
    assert second.runs
    assert stage.free() == 5000


def test_a_part_of_what_it_holds_is_not_taken_over() -> None:
    """A lease of two devices drains on as a whole while its process wants one of them only."""
    stage = Stage(10000, 10000)
    first = ask(stage, gpus=2, memory_mib=6000)
    stage.hold(first, 3000)
    give_back(stage, first)
    second = ask(stage, first.request.owner, memory_mib=4000)
    assert second.runs
    assert [stage.free(0), stage.free(1)] in ([0, 4000], [4000, 0])
    assert ask(stage, first.request.owner, memory_mib=5000).waits
