"""The line is ordered by priority, then arrival; nobody overtakes who could delay the head."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from grn.rules.model import Owner, Request
from grn.rules.waiting import RUN_TIME, STRETCH, WaitingLine, largest_sum_within, would_delay

PARTS = st.lists(st.integers(0, 40), max_size=8)


def _request(ticket: int, *, priority: int = 0, arrived_s: float = 0.0) -> Request:
    return Request(ticket, "job", Owner(1, 1), priority=priority, arrived_s=arrived_s)


def _sums(parts: list[int]) -> set[int]:
    return {sum(some) for n in range(len(parts) + 1) for some in combinations(parts, n)}


def test_arrival_decides_among_equals() -> None:
    """Who came first is considered first, whatever the ticket's number."""
    line = WaitingLine()
    for ticket, arrived_s in ((1, 5.0), (2, 3.0), (3, 4.0)):
        line.add(_request(ticket, arrived_s=arrived_s))
    assert [request.ticket for request in line] == [2, 3, 1]


def test_priority_goes_before_arrival() -> None:
    """A higher priority is considered before all lower ones."""
    line = WaitingLine()
    line.add(_request(1, arrived_s=0.0))
    line.add(_request(2, priority=5, arrived_s=9.0))
    line.add(_request(3, priority=-1, arrived_s=0.0))
    assert [request.ticket for request in line] == [2, 1, 3]


def test_same_instant_goes_by_ticket() -> None:
    """Requests of one instant keep the order in which the broker read them."""
    line = WaitingLine()
    for ticket in (3, 1, 2):
        line.add(_request(ticket))
    assert [request.ticket for request in line] == [1, 2, 3]


def test_removal_takes_one_request_only() -> None:
    """Withdrawing a request changes nothing for the others; withdrawing it twice is harmless."""
    line = WaitingLine()
    for ticket in (1, 2, 3):
        line.add(_request(ticket))
    removed = line.remove(2)
    assert removed is not None
    assert removed.ticket == 2
    assert line.remove(2) is None
    assert 2 not in line
    assert [request.ticket for request in line] == [1, 3]


def test_the_line_may_change_while_it_is_walked() -> None:
    """Grants take requests out while the line is being considered."""
    line = WaitingLine()
    for ticket in range(5):
        line.add(_request(ticket))
    for request in line:
        line.remove(request.ticket)
    assert len(line) == 0


def test_line_agrees_with_a_sorted_list() -> None:
    """After many random arrivals and withdrawals the order is that of a plain sort."""
    dice = random.Random(7)  # noqa: S311 - a fixed series, not a secret
    line, plain = WaitingLine(), {}
    for ticket in range(500):
        request = _request(ticket, priority=dice.randint(-2, 2), arrived_s=dice.random())
        line.add(request)
        plain[ticket] = request
        if dice.random() < 0.4:
            gone = dice.choice(list(plain))
            line.remove(gone)
            del plain[gone]
    expected = sorted(plain.values(), key=lambda r: (-r.priority, r.arrived_s, r.ticket))
    assert list(line) == expected


@given(parts=PARTS, limit=st.integers(0, 120))
def test_largest_sum_is_that_of_all_subsets(parts: list[int], limit: int) -> None:
    """The bit trick finds the same sum as trying every subset."""
    assert largest_sum_within(parts, limit) == max(s for s in _sums(parts) if s <= limit)


def test_no_room_means_no_sum() -> None:
    """Below zero nothing fits."""
    assert largest_sum_within([1, 2], -5) == 0


@given(
    held=PARTS,
    room_mib=st.integers(0, 160),
    head_share=st.floats(0, 1),
    newcomer_mib=st.integers(0, 60),
)
def test_delay_is_decided_for_every_order_of_ends(
    held: list[int], room_mib: int, head_share: float, newcomer_mib: int
) -> None:
    """A newcomer delays iff some set of jobs could stay beside which the head fits, but not both."""
    head_mib = int(room_mib * head_share)
    delays = any(
        left + head_mib <= room_mib < left + head_mib + newcomer_mib for left in _sums(held)
    )
    found = would_delay(room_mib=room_mib, held=held, head_mib=head_mib, newcomer_mib=newcomer_mib)
    assert found == delays


def test_a_device_of_80_gib_with_fifty_leases_is_decided_at_once() -> None:
    """Deciding about a crowded large device is a matter of shifts, not of subsets."""
    held = [1000 + 7 * n for n in range(50)]
    assert would_delay(room_mib=81920, held=held, head_mib=40960, newcomer_mib=8000)
    assert not would_delay(room_mib=81920, held=[1000] * 10, head_mib=40960, newcomer_mib=8000)


def _timed_line(ran_s: dict[str, float]) -> WaitingLine:
    line = WaitingLine(order=RUN_TIME)
    line.expected_s = ran_s.get
    return line


def _of_type(ticket: int, job_type: str, arrived_s: float, priority: int = 0) -> Request:
    return Request(ticket, job_type, Owner(1, 1), priority=priority, arrived_s=arrived_s)


def test_by_run_time_who_is_over_soon_goes_first() -> None:
    """A type of which nothing is known is tried at once; priority goes before all that."""
    line = _timed_line({"long": 100.0, "short": 1.0})
    for ticket, job_type in ((1, "long"), (2, "short"), (3, "new")):
        line.add(_of_type(ticket, job_type, 0.0))
    line.add(_of_type(4, "long", 5.0, priority=1))
    assert [request.ticket for request in line] == [4, 3, 2, 1]


def test_by_run_time_nobody_is_overtaken_for_ever() -> None:
    """Who comes later than `STRETCH` run times after a job stays behind it."""
    line = _timed_line({"long": 100.0, "short": 1.0})
    line.add(_of_type(1, "long", 0.0))
    line.add(_of_type(2, "short", 99.0 * STRETCH - 1))
    line.add(_of_type(3, "short", 99.0 * STRETCH + 1))
    assert [request.ticket for request in line] == [2, 1, 3]


def test_what_is_learnt_changes_the_order_of_those_that_wait() -> None:
    """A kind that turned out to be long goes back."""
    ran_s = {"a": 1.0, "b": 2.0}
    line = _timed_line(ran_s)
    line.add(_of_type(1, "a", 0.0))
    line.add(_of_type(2, "b", 0.0))
    assert [request.ticket for request in line] == [1, 2]
    ran_s["a"] = 9.0
    line.renew({"a"})
    assert [request.ticket for request in line] == [2, 1]


REQUESTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 50)), max_size=12
)


@given(REQUESTS, st.sampled_from([None, 10.0]), st.data())
def test_kinds_keep_the_order_of_all(
    asked: list[tuple[str, int, int]], aging_s: float | None, data: st.DataObject
) -> None:
    """Walking by kind, the first of each and then what follows, gives the order of all."""
    line = WaitingLine(aging_s=aging_s, order=RUN_TIME)
    line.expected_s = {"a": 1.0, "b": 2.5}.get
    for ticket, (job_type, priority, arrived_s) in enumerate(asked):
        line.add(_of_type(ticket, job_type, float(arrived_s), priority))
    for ticket in data.draw(st.sets(st.integers(0, max(0, len(asked) - 1)))) if asked else ():
        line.remove(ticket)
    walked: list[int] = []
    list(line.kinds())  # reckons how long they are expected to run
    heads = {kind: key for key, kind in line.heads()}
    while heads:
        kind = min(heads, key=heads.__getitem__)
        key = heads.pop(kind)
        walked.append(key[2])
        following = line.after(kind, line.entry(key[2])[0])
        if following is not None:
            heads[kind] = following
    assert walked == [request.ticket for request in line]
    assert walked == sorted(walked, key=line.key)
