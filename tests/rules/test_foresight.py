"""Which requests would be granted at once."""

from __future__ import annotations

from grn.rules.foresight import answered_at_once
from grn.rules.model import Owner, Request
from tests.rules.acting import Stage


def wish(number: int, job_type: str = "job", **more: object) -> Request:
    """A request that is only thought of."""
    return Request(-number, job_type, Owner(1, 1), **more)  # type: ignore[arg-type]


def foreseen(stage: Stage, *requests: Request) -> list[bool]:
    """Ask, and see that the books are as before."""
    before = [
        (book.free_mib, dict(book.bookings), book.alone) for book in stage.machine.ledger.books
    ]
    told = answered_at_once(stage.machine, requests, stage.now)
    stage.machine.check_invariants()
    after = [
        (book.free_mib, dict(book.bookings), book.alone) for book in stage.machine.ledger.books
    ]
    assert before == after
    return told


def test_as_many_as_fit() -> None:
    """Sizes that are known are placed side by side until no device has room for the next."""
    stage = Stage(8000, 8000)
    stage.know("job", 4000)
    assert foreseen(stage, *(wish(n) for n in range(1, 7))) == [True] * 4 + [False] * 2


def test_what_is_held_counts() -> None:
    """Leases that are held take their room."""
    stage = Stage(8000)
    stage.ask("big", memory_mib=5000)
    assert foreseen(stage, wish(1, memory_mib=4000), wish(2, memory_mib=3000)) == [False, True]


def test_one_of_an_unknown_type() -> None:
    """The first run of a type is alone; the second waits for what it teaches, on a free device too."""
    stage = Stage(8000, 8000)
    assert foreseen(stage, wish(1), wish(2), wish(3, "other"), wish(4, "third")) == [
        True,
        False,
        True,
        False,
    ]


def test_those_that_wait_go_first() -> None:
    """What is in the line already is not overtaken by what would delay it."""
    stage = Stage(8000)
    stage.ask("big", memory_mib=6000)
    stage.ask("next", memory_mib=7000)
    assert foreseen(stage, wish(1, memory_mib=2000), wish(2, memory_mib=500)) == [False, True]


def test_what_is_refused_does_not_wait() -> None:
    """An impossible request is answered at once, too."""
    stage = Stage(8000)
    assert foreseen(stage, wish(1, memory_mib=9000), wish(2, gpus=2), wish(3)) == [True] * 3


def test_jobs_without_a_device() -> None:
    """They do not wait for devices, and wait for CPUs that are booked."""
    stage = Stage(8000, cpus=4)
    stage.ask("whole", whole=True)
    told = foreseen(
        stage, wish(1), wish(2, gpus=None), wish(3, gpus=0, cpus=3), wish(4, gpus=0, cpus=2)
    )
    assert told == [False, True, True, False]
