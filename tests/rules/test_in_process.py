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


# -- groups -----------------------------------------------------------------------------------------


def _rank(stage: Stage, owner: Owner | None = None, **wish: Any) -> Job:
    return ask(stage, owner, group="step", group_size=2, **{"memory_mib": 6000, **wish})


def _two_ranks(stage: Stage) -> list[Job]:
    ranks = [_rank(stage), _rank(stage)]
    for rank in ranks:
        stage.hold(rank, 5000)
    for rank in ranks:
        give_back(stage, rank)
    assert len(stage.machine.leases) == 2
    return ranks


def test_ranks_need_not_wait_for_themselves() -> None:
    """Each of a group's processes holds memory on: together they go on where they are."""
    stage = Stage(8000, 8000)
    first, second = _two_ranks(stage)
    again = [_rank(stage, job.request.owner) for job in (second, first)]
    assert [job.runs for job in again] == [True, True]
    assert [job.at for job in again] == [second.at, first.at]
    assert len(stage.machine.leases) == 2
    assert [stage.free(0), stage.free(1)] == [2000, 2000]


def test_a_rank_whose_device_others_use_too_waits_for_them() -> None:
    """What is beside its own memory is not its own: nobody is granted over the device's size."""
    stage = Stage(8000, 8000)
    first, second = _two_ranks(stage)
    beside = stage.ask("other", memory_mib=2000)
    again = [_rank(stage, job.request.owner, memory_mib=7000) for job in (first, second)]
    assert [job.waits for job in again] == [True, True]
    stage.finish(beside)
    assert [job.runs for job in again] == [True, True]


def test_ranks_that_share_a_device_wait_for_their_memory() -> None:
    """What one of them gives up is not counted for the other."""
    stage = Stage(16000)
    ranks = [_rank(stage), _rank(stage)]
    for rank in ranks:
        stage.hold(rank, 5000)
    for rank in ranks:
        give_back(stage, rank)
    again = [_rank(stage, job.request.owner, memory_mib=7000) for job in ranks]
    assert [job.waits for job in again] == [True, True]
    for rank in ranks:
        rank.held.clear()
    stage.look()
    assert [job.runs for job in again] == [True, True]


def test_a_rank_that_wants_more_devices_than_it_holds_waits_for_its_memory() -> None:
    """It goes where its request leads, and that may be elsewhere."""
    stage = Stage(8000, 8000, 8000)
    first, second = _two_ranks(stage)
    again = [_rank(stage, first.request.owner, gpus=2), _rank(stage, second.request.owner)]
    assert [job.waits for job in again] == [True, True]
    for job in (first, second):
        job.held.clear()
    stage.look()
    assert [job.runs for job in again] == [True, True]
