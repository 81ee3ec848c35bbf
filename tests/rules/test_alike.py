"""Where all devices are alike decisions go a shorter way, to the same end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from grn.rules.model import Owner, Policy, Request
from grn.rules.placing import Placement, Placer
from grn.rules.screening import Screen, look_up
from tests.rules.acting import MODEL, Stage

MIB = st.integers(0, 8000)
RUNNING = st.lists(st.tuples(st.integers(0, 2), MIB, st.booleans(), st.booleans()), max_size=6)
WISHES = st.builds(
    Request,
    st.just(2),
    st.sampled_from(["small", "large", "huge", "unknown"]),
    st.just(Owner(1, 1)),
    gpus=st.integers(1, 3),
    memory_mib=st.one_of(st.none(), MIB),
    whole=st.booleans(),
    policy=st.sampled_from(Policy),
    largest=st.booleans(),
    compute=st.one_of(st.none(), st.integers(1, 100)),
)


def _placer(running: list[tuple[int, int, bool, bool]]) -> tuple[Stage, Placer]:
    """Return a machine of three equal devices, with leases, and with one whose use may be unknown."""
    stage = Stage(8000, 8000, 8000)
    for job_type, peak_mib in (("small", 500), ("large", 5000), ("huge", 9000)):
        for _ in range(3):
            stage.profiles.of(job_type, MODEL).succeeded(peak_mib, 4.0, "sampled")
    ledger, placer = stage.machine.ledger, stage.machine.placer
    for number, (device, mib, alone, unknown) in enumerate(running):
        book = ledger.books[device]
        book.usage_known = not unknown
        if not (book.alone or mib > book.free_mib or (alone and book.bookings)):
            ledger.place(f"l{number}", (book.device.uuid,), mib, alone=alone)
    placer.now = 5.0
    assert placer.plain
    return stage, placer


@given(RUNNING, st.one_of(st.none(), WISHES), WISHES, st.sampled_from([0.0, 3.0, 60.0]))
def test_both_ways_come_to_the_same_end(
    running: list[tuple[int, int, bool, bool]],
    head: Request | None,
    wish: Request,
    later_s: float,
) -> None:
    """For any leases, any head, soon or late, and any wish."""
    _, placer = _placer(running)
    kept = placer.reserve(replace(head, ticket=1), None) if head is not None else None
    if kept is not None:
        kept = kept._replace(starts_s=placer.now + later_s)
    short = placer.place(wish, kept, in_words=False)
    again = placer.reserve(wish, None), placer.reserve(wish, placer.reserve(wish, None))
    placer.plain = False
    long = placer.place(wish, kept)
    assert long == short if isinstance(long, Placement) else not isinstance(short, Placement)
    assert (placer.reserve(wish, None), placer.reserve(wish, placer.reserve(wish, None))) == again


@given(RUNNING, st.one_of(st.none(), WISHES), st.lists(WISHES, max_size=5), st.floats(0, 60))
def test_what_is_let_through_is_what_is_not_rejected(
    running: list[tuple[int, int, bool, bool]],
    head: Request | None,
    wishes: list[Request],
    later_s: float,
) -> None:
    """What is told at a glance is told by all that is known, too; and both would be refused."""
    stage, placer = _placer(running)
    kept = placer.reserve(replace(head, ticket=1), None) if head is not None else None
    if kept is not None:
        kept = kept._replace(starts_s=placer.now + later_s)
    line = stage.machine.line
    for ticket, wish in enumerate(wishes, start=2):
        line.add(replace(wish, ticket=ticket))
    for kind in line.taken_fresh():
        look_up(kind, placer)
    screen = Screen(stage.machine.ledger, kept, placer.now)
    through = [kind for _, kind in screen.let_through(line.heads())]
    assert through == [kind for kind in line.kinds() if not screen.rejects(kind)]
    for kind in line.kinds():
        if kind not in through:
            assert not isinstance(placer.place(kind.request, kept), Placement)


def test_a_kind_is_fresh_until_it_was_looked_up_and_when_its_type_was_touched() -> None:
    """Whoever looks kinds up finds all that need it, each once, and none that is gone."""
    line = Stage(8000).machine.line
    for ticket, job_type in enumerate(("a", "a", "b", "c"), start=1):
        line.add(Request(ticket, job_type, Owner(1, 1), memory_mib=ticket))
    line.remove(4)
    assert {kind.request.ticket for kind in line.taken_fresh()} == {1, 2, 3}
    assert line.taken_fresh() == []
    line.remove(2)
    line.renew({"a", "c"})
    assert [kind.request.ticket for kind in line.taken_fresh()] == [1]
    line.renew(None)
    assert {kind.request.ticket for kind in line.taken_fresh()} == {1, 3}
