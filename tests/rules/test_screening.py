"""Screening says "no room" only where a full decision says so, too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grn.rules.model import Owner, Policy, Request
from grn.rules.placing import Placement
from grn.rules.screening import Screen, look_up
from tests.rules.acting import MODEL, Stage

MIB = st.integers(0, 8000)
RUNNING = st.lists(st.tuples(st.integers(0, 2), MIB, st.booleans()), max_size=6)


@given(
    running=RUNNING,
    head=st.one_of(st.none(), st.tuples(MIB, st.integers(1, 3))),
    wish=st.tuples(st.one_of(st.none(), MIB), st.integers(1, 3), st.booleans()),
    ran_s=st.integers(1, 30),
)
def test_what_is_screened_out_would_have_been_refused(
    running: list[tuple[int, int, bool]],
    head: tuple[int, int] | None,
    wish: tuple[int | None, int, bool],
    ran_s: int,
) -> None:
    """For any books, any head and any wish."""
    stage = Stage(8000, 8000, 6000)
    for job_type in ("known", "runs"):
        for _ in range(3):
            stage.profiles.of(job_type, MODEL).succeeded(500, float(ran_s), "sampled")
    ledger, placer = stage.machine.ledger, stage.machine.placer
    for number, (device, mib, alone) in enumerate(running):
        book = ledger.books[device]
        if book.alone or mib > book.free_mib or (alone and book.bookings):
            continue
        ledger.place(f"l{number}", (book.device.uuid,), mib, alone=alone)
    placer.now = 5.0
    kept = None
    if head is not None:
        asked = Request(1, "head", Owner(1, 1), gpus=head[1], memory_mib=head[0])
        kept = placer.reserve(asked, None)
    mib, gpus, whole = wish
    request = Request(
        2, "known", Owner(1, 1), gpus=gpus, memory_mib=mib, whole=whole, policy=Policy.PACK
    )
    stage.machine.line.add(request)
    (kind,) = stage.machine.line.kinds()
    look_up(kind, placer)
    if Screen(ledger, kept, placer.now).rejects(kind):
        assert not isinstance(placer.place(request, kept), Placement)
