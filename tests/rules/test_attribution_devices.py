"""From what each process uses to what a device's figures then say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.attribution import (
    Figures,
    Use,
    accountable,
    chosen,
    figures,
    figures_unseen,
    hides_clients,
    largest_together,
    shows_clients,
)
from tests.rules.processes import lease, live, table, whose

# -- several leases of one process ----------------------------------------------------------------


def test_one_process_claims_all_leases_it_uses_itself() -> None:
    """Which of them it is depends on the device."""
    leases = live(lease("old", 100, owner=100), lease("new", 100, owner=100))
    assert whose(100, leases, table()) == ("old", "new")


@pytest.mark.parametrize(("uuid", "expected"), [("d0", "x"), ("d1", "z"), ("d2", "y"), ("d9", "z")])
def test_memory_belongs_to_the_lease_that_was_given_the_device(uuid: str, expected: str) -> None:
    """Of several the newest; where none was given the device the newest of all, which strays."""
    leases = live(
        lease("x", 100, uuids=("d0",)),
        lease("y", 100, uuids=("d1", "d2")),
        lease("z", 100, uuids=("d1",)),
    )
    assert chosen(("x", "y", "z"), uuid, leases) == expected


def test_ended_leases_of_a_process_are_passed_over() -> None:
    """What they held is the living ones', or foreign."""
    leases = live(lease("x", 100))
    assert chosen(("x", "ended"), "d0", leases) == "x"
    assert chosen(("ended",), "d0", leases) is None
    assert chosen((), "d0", leases) is None


# -- one device -----------------------------------------------------------------------------------


def test_the_sum_goes_over_the_whole_tree() -> None:
    """A parent with 500 MiB and nine children with 400 each hold 4100 together."""
    uses = [Use(100, 500, "a"), *(Use(pid, 400, "a") for pid in range(101, 110))]
    assert figures(uses, 5000, {"a": 100}, {}) == Figures(
        900, {"a": 4100}, {"a": tuple(range(100, 110))}
    )


def test_jobs_and_strangers_are_kept_apart() -> None:
    """Only memory of leases is handed back; the rest is nobody's, the driver's contexts too."""
    uses = [Use(100, 10, "a"), Use(200, 20, "b"), Use(900, 30)]
    told = figures(uses, 77, {"a": 100, "b": 100}, {})
    assert told == Figures(47, {"a": 10, "b": 20}, {"a": (100,), "b": (200,)})


def test_foreign_memory_is_never_negative() -> None:
    """A driver whose total lags behind its processes does not make room."""
    assert figures([Use(100, 50, "a")], 20, {"a": 10}, {}).foreign_mib == 0
    assert figures([Use(100, 50, "a")], None, {"a": 10}, {}).foreign_mib is None


def test_a_lease_whose_use_is_not_told_makes_all_unknown() -> None:
    """Unknown is not nothing: neither its figure nor that of its neighbours can be relied on."""
    uses = [Use(100, None, "a"), Use(200, 20, "b"), Use(900, 300)]
    told = figures(uses, 2000, {"a": 100, "b": 100}, {})
    assert told.leases is None
    assert told.holders == {"a": (100,), "b": (200,)}
    assert told.foreign_mib == 1800  # more than the 300 that are surely foreign


def test_unknown_use_of_others_is_what_leases_leave() -> None:
    """A foreign process, or a lease that strays here, does not hide what the others hold."""
    for lease_of_it in (None, "stray"):
        told = figures([Use(100, 10, "a"), Use(900, None, lease_of_it)], 77, {"a": 100}, {})
        assert told.leases == {"a": 10}
        assert told.foreign_mib == 67


def test_a_stray_is_named_even_if_its_use_is_not_told() -> None:
    """A lease's process on a device that it was not given is among the holders."""
    assert figures([Use(100, None, "stray")], 77, {}, {}).holders == {"stray": (100,)}


def test_a_stranger_that_holds_memory_makes_all_unknown() -> None:
    """It may be any lease's of this device."""
    for mib in (1800, None):
        told = figures([Use(645400, mib, stranger=True)], 1800, {"a": 1000}, {})
        assert told == Figures(800, None, {})


def test_a_stranger_without_memory_hides_nothing() -> None:
    """One driver call may answer in another pid namespace with 0 MiB."""
    uses = [Use(645400, 0, stranger=True), Use(100, 10, "a")]
    assert figures(uses, 10, {"a": 100}, {}).leases == {"a": 10}


def test_where_no_lease_is_strangers_are_foreign() -> None:
    """A device that nobody was given is all others'."""
    assert figures([Use(645400, 1800, stranger=True)], 1800, {}, None) == Figures(1800, {}, {})


def test_numbers_of_another_namespace_are_not_trusted() -> None:
    """Where the driver counts otherwise, what looks like a lease's process may be another."""
    uses = [Use(100, 10, "a")]
    assert figures(uses, 10, {"a": 100}, {}, other_numbers=True).leases is None
    assert figures([Use(100, 0, "a")], 10, {"a": 100}, {}, other_numbers=True).leases == {"a": 0}


def test_one_doubtful_reading_changes_nothing() -> None:
    """Foreign memory stays as it was and no lease has less, since it may be one's that just died."""
    uses = [Use(4711, 500, doubtful=True), Use(200, 20, "b")]
    told = figures(uses, 520, {"a": 100, "b": 10}, {"a": 500, "b": 10})
    assert told == Figures(None, {"a": 500, "b": 20}, {"b": (200,)})
    assert figures(uses, 520, {"a": 100}, None).leases is None


def test_without_a_list_what_exceeds_the_bookings_is_foreign() -> None:
    """Nobody says who holds what."""
    assert figures_unseen(5000, {"a": 3000, "b": 500}) == Figures(1500, None, {})
    assert figures_unseen(500, {"a": 3000}) == Figures(0, None, {})
    assert figures_unseen(None, {"a": 3000}) == Figures(None, None, {})


USES = st.lists(
    st.builds(
        Use,
        st.integers(1, 50),
        st.none() | st.integers(0, 500),
        st.sampled_from([None, "a", "b", "stray"]),
        server=st.just(value=False),
    )
    | st.builds(
        Use, st.integers(1, 50), st.none() | st.integers(0, 500), server=st.just(value=True)
    )
    | st.builds(
        lambda pid, mib, stranger: Use(pid, mib, stranger=stranger, doubtful=not stranger),
        st.integers(1, 50),
        st.none() | st.integers(0, 500),
        st.booleans(),
    ),
    max_size=6,
)
BOOKED = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 800))


@given(
    uses=USES,
    used=st.integers(0, 4000),
    booked=BOOKED,
    old_server=st.booleans(),
    other=st.booleans(),
)
def test_nothing_that_is_used_is_handed_out(
    *, uses: list[Use], used: int, booked: dict[str, int], old_server: bool, other: bool
) -> None:
    """What leases hold or have booked, and what is foreign, is never less than what is used."""
    told = figures(uses, used, booked, {}, old_server=old_server, other_numbers=other)
    known = told.leases or {}
    assert all(mib >= 0 for mib in known.values())
    if told.foreign_mib is None:
        assert booked
        assert any(use.doubtful for use in uses)
        return
    assert told.foreign_mib >= 0
    if told.leases is not None:
        assert told.foreign_mib + sum(known.values()) >= used
        return
    held = {x: sum(u.mib or 0 for u in uses if u.lease == x) for x in booked}
    assert told.foreign_mib + sum(max(mib, held[x]) for x, mib in booked.items()) >= used


# -- MPS ------------------------------------------------------------------------------------------


def test_a_servers_own_share_is_foreign() -> None:
    """Clients are listed with what is theirs; the 30 MiB of the server are nobody's profile."""
    uses = [Use(70, 30, server=True), Use(100, 1000, "a")]
    assert shows_clients(uses, {"a": 100})
    assert not hides_clients(uses, {"a": 100})
    assert figures(uses, 1040, {"a": 100}, {}) == Figures(40, {"a": 1000}, {"a": (100,)})


@pytest.mark.parametrize(
    ("uses", "booked", "expected"),
    [
        ([Use(70, 2000, server=True)], {"a": 100}, True),
        ([Use(70, None, server=True)], {"a": 100}, True),
        ([Use(70, 2000, server=True), Use(900, 50)], {"a": 100}, True),
        ([Use(70, 2000, server=True), Use(100, 50, "a")], {"a": 100}, False),
        ([Use(70, 30, server=True)], {"a": 100}, False),
        ([Use(70, 2000, server=True)], {}, False),
        ([Use(900, 2000)], {"a": 100}, False),
    ],
)
def test_a_server_listed_alone_may_hold_its_clients_memory(
    *, uses: list[Use], booked: dict[str, int], expected: bool
) -> None:
    """Before Volta clients were not listed: what a lease holds is then unknown, not 0."""
    assert hides_clients(uses, booked) is expected
    told = figures(uses, 2050, booked, {}, old_server=hides_clients(uses, booked))
    assert (told.leases is None) is expected


# -- what the driver recorded ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(1, 3, 100), (2, 5, 40)], 140),
        ([(1, 3, 100), (3, 5, 40)], 140),
        ([(1, 2, 100), (3, 5, 40)], 100),
        ([(1, 9, 10), (2, 3, 100), (4, 5, 90), (6, 7, 200)], 210),
    ],
)
def test_maxima_add_up_if_the_processes_met(
    spans: list[tuple[int, int, int]], expected: int
) -> None:
    """Steps one after another never held the sum; what was there together may have."""
    assert largest_together(spans) == expected


def test_a_record_of_a_process_older_than_its_lease_is_not_the_leases() -> None:
    """The driver's maximum covers the process's whole life, with other leases and without."""
    assert accountable((101, 1010), lease("a", 100))
    assert accountable((100, 1000), lease("a", 100))
    assert not accountable((50, 500), lease("a", None))
    assert not accountable((101, 1010), lease("a", 100, owner=100))
