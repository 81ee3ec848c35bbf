"""From pids on devices to leases, and what a device's figures then say."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.attribution import (
    Figures,
    Use,
    Verdict,
    accountable,
    chosen,
    claims,
    figures,
    figures_unseen,
    hides_clients,
    judge,
    largest_together,
    lease_of_cgroups,
    main_processes,
    shows_clients,
)
from grn.rules.model import Lease, LeaseState, Owner, Request


@dataclass
class Row:
    """What is known of one process."""

    start: int
    parent: int
    marker: str | None = None
    cgroups: tuple[str, ...] = ("/",)


@dataclass
class Table:
    """A process table, and how often it was asked for what."""

    rows: dict[int, Row] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(
        self,
        pid: int,
        parent: int,
        *,
        start: int | None = None,
        marker: str | None = None,
        cgroups: tuple[str, ...] = ("/",),
    ) -> Table:
        """Add a process; it began at ten times its pid unless `start` says otherwise."""
        self.rows[pid] = Row(start if start is not None else pid * 10, parent, marker, cgroups)
        return self

    def birth(self, pid: int) -> tuple[int, int] | None:
        """Return start time and parent."""
        self.asked.append("birth")
        row = self.rows.get(pid)
        return None if row is None else (row.start, row.parent)

    def marker(self, pid: int) -> str | None:
        """Return the marker."""
        self.asked.append("marker")
        return self.rows[pid].marker if pid in self.rows else None

    def cgroups(self, pid: int) -> tuple[str, ...]:
        """Return the paths of its cgroup."""
        return self.rows[pid].cgroups if pid in self.rows else ()


def lease(
    name: str,
    main: int | None,
    *,
    owner: int = 50,
    uuids: tuple[str, ...] = ("d0",),
) -> Lease:
    """Return a lease; every process began at ten times its pid."""
    request = Request(1, "job", Owner(owner, owner * 10))
    process = None if main is None else Owner(main, main * 10)
    return Lease(name, 1, request, uuids, 100, LeaseState.RUNNING, 0.0, 1, main=process)


def live(*leases: Lease) -> dict[str, Lease]:
    """Return leases by id."""
    return {each.id: each for each in leases}


A_AND_B = live(lease("a", 100), lease("b", 200))


def table() -> Table:
    """Return init, the owner 50, and the main processes 100 and 200 of its two jobs."""
    return Table().add(1, 0, start=0).add(50, 1).add(100, 50).add(200, 50)


def whose(
    pid: int, leases: dict[str, Lease], processes: Table, *, by_owner: bool = True
) -> tuple[str, ...] | None:
    """Return the leases of a process; `None`: it is gone."""
    verdict = judge(pid, leases, claims(leases.values()), processes, by_owner=by_owner)
    return None if verdict is None else verdict.leases


# -- one process ----------------------------------------------------------------------------------


def test_the_main_process_is_the_leases_own() -> None:
    """What a job's main process holds is its lease's."""
    assert whose(100, A_AND_B, table()) == ("a",)


def test_descendants_belong_to_their_ancestors_lease() -> None:
    """Children of any depth count, each for its own job."""
    processes = table().add(101, 100).add(102, 101).add(201, 200)
    assert whose(102, A_AND_B, processes) == ("a",)
    assert whose(201, A_AND_B, processes) == ("b",)


def test_a_double_fork_is_found_by_its_marker() -> None:
    """A daemon whose parents are gone still carries the lease in its environment."""
    assert whose(300, A_AND_B, table().add(300, 1, marker="b")) == ("b",)


def test_children_of_a_daemon_are_found_through_it() -> None:
    """A process without a marker of its own belongs where its parent belongs."""
    assert whose(301, A_AND_B, table().add(300, 1, marker="b").add(301, 300)) == ("b",)


def test_descendants_of_an_owner_of_one_lease_need_no_marker() -> None:
    """What a job started without its environment is found below its supervisor."""
    leases = live(lease("a", 100))
    assert whose(301, leases, table().add(300, 50).add(301, 300)) == ("a",)


def test_an_owner_of_several_leases_says_nothing_about_which() -> None:
    """An unmarked process below it could be of either: it is foreign."""
    assert whose(300, A_AND_B, table().add(300, 50)) == ()


def test_what_was_there_before_the_job_is_not_the_jobs() -> None:
    """An unmarked process below the owner that is older than the main process is another's."""
    leases = live(lease("a", 100))
    assert whose(90, leases, table().add(90, 50)) == ()
    assert whose(300, leases, table().add(90, 50).add(300, 90)) == ()


def test_what_an_ended_lease_left_is_not_its_owners_next_leases() -> None:
    """A process with the mark of an ended lease stays foreign below an owner of one lease."""
    leases = live(lease("a", 100))
    processes = table().add(300, 50, marker="before").add(301, 300)
    assert whose(300, leases, processes) == ()
    assert whose(301, leases, processes) == ()


def test_descent_from_an_owner_can_be_ruled_out() -> None:
    """A process known to have been another lease's needs better proof; the owner itself does not."""
    leases = live(lease("a", None))
    processes = table().add(300, 50).add(301, 300, marker="a")
    assert whose(300, leases, processes, by_owner=False) == ()
    assert whose(301, leases, processes, by_owner=False) == ("a",)
    assert whose(50, leases, processes, by_owner=False) == ("a",)


def test_a_job_of_another_broker_within_a_job_is_the_jobs() -> None:
    """A mark that this broker does not know does not hide whose descendant a process is."""
    processes = table().add(101, 100, marker="other-1")
    assert whose(101, A_AND_B, processes) == ("a",)


def test_a_marker_of_an_ended_lease_names_nobody() -> None:
    """What outlived its lease is foreign."""
    assert whose(300, A_AND_B, table().add(300, 1, marker="gone")) == ()


def test_a_reused_pid_is_another_process() -> None:
    """A number that was given away again, known by its start time, is foreign."""
    processes = table().add(100, 1, start=9999).add(101, 100, start=10000)
    assert whose(100, A_AND_B, processes) == ()
    assert whose(101, A_AND_B, processes) == ()


def test_a_parent_younger_than_its_child_is_none() -> None:
    """The parent died between two looks and its number was given to another lease's process."""
    processes = table().add(300, 290).add(290, 1, start=5000, marker="b")
    assert whose(300, A_AND_B, processes) == ()


def test_a_number_given_away_during_the_walk_is_not_judged() -> None:
    """Whose process it was is not said of the process that has the number now."""

    class Changing(Table):
        def marker(self, pid: int) -> str | None:
            self.rows[pid].start += 5
            return "a"

    processes = Changing().add(300, 1)
    assert whose(300, A_AND_B, processes) is None


def test_strangers_are_foreign() -> None:
    """Other users' processes belong to no lease; of what does not exist nothing is said."""
    processes = table().add(900, 1)
    assert whose(900, A_AND_B, processes) == ()
    assert whose(645400, A_AND_B, processes) is None


def test_the_client_beside_its_jobs_is_not_a_job() -> None:
    """The supervisor above several main processes is not counted to a lease."""
    assert whose(50, A_AND_B, table()) == ()


def test_the_first_process_of_a_container_can_hold_a_lease() -> None:
    """A program that is init counts for itself; orphans are not its descendants."""
    leases = live(lease("a", 1, owner=1))
    processes = Table().add(1, 0).add(300, 1)
    assert whose(1, leases, processes) == ("a",)
    assert whose(300, leases, processes) == ()


def test_a_lease_inside_a_job_is_told_apart() -> None:
    """The nearest lease upwards counts: a job started from within another job is its own."""
    leases = live(lease("outer", 100), lease("inner", 101))
    processes = table().add(101, 100).add(102, 101).add(103, 100)
    assert whose(102, leases, processes) == ("inner",)
    assert whose(103, leases, processes) == ("outer",)


def test_a_circle_of_parents_ends() -> None:
    """A table that changes while it is read cannot trap the walk."""
    processes = table().add(300, 301, start=7).add(301, 300, start=7)
    assert whose(300, A_AND_B, processes) == ()
    assert len(processes.asked) < 400


def test_a_verdict_names_whom_it_met() -> None:
    """A claim on one of them later is a reason to judge again."""
    verdict = judge(101, A_AND_B, claims(A_AND_B.values()), table().add(101, 100))
    assert verdict == Verdict(1010, ("a",), frozenset({(101, 1010), (100, 1000)}))


def test_changed_claims_name_their_processes() -> None:
    """Who is claimed anew, or no more, is named; the others are not."""
    before = claims([lease("a", 100), lease("b", 200)])
    after = claims([lease("a", 100), lease("c", 300)])
    assert after.changed(before) == {(200, 2000), (300, 3000)}
    assert after.changed(after) == frozenset()


def test_the_newest_main_process_of_a_number_is_told() -> None:
    """Leases without a main process have none to tell."""
    leases = [lease("a", 100), lease("b", 100), lease("c", None)]
    assert main_processes(leases) == {100: (1000, "b")}


# -- cgroups --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("/grn-a",), "a"),
        (("/grn-a/9f86d081884c",), "a"),
        (("/grn.slice/grn-x.slice/grn-a.slice/docker-9f86.scope",), "a"),
        (("/user.slice/grn-b.scope",), "b"),
        (("/", "/docker/9f86", "/grn-b/9f86"), "b"),
        (("/grn-a/grn-b",), "b"),
        (("/grn-a", "/grn-b"), None),
        (("/grn-a1",), None),
        (("/xgrn-a",), None),
        (("/a",), None),
        (("/grn-gone",), None),
        (("/user.slice/user-1000.slice/session-3.scope",), None),
        ((), None),
    ],
)
def test_a_cgroup_belongs_to_the_lease_it_is_named_after(
    paths: tuple[str, ...], expected: str | None
) -> None:
    """A whole part of the path must be the name; two names in two hierarchies say nothing."""
    assert lease_of_cgroups(paths, A_AND_B) == expected


def test_a_container_is_found_by_its_cgroup() -> None:
    """It descends from a daemon and shows its environment to its user only."""
    container = table().add(40, 1).add(400, 40, cgroups=("/grn-b.slice/docker-1.scope",))
    assert whose(400, A_AND_B, container) == ("b",)


def test_its_cgroup_tells_a_container_of_a_daemon_that_another_job_started() -> None:
    """The process's own cgroup counts before its ancestors' leases."""
    container = table().add(101, 100).add(400, 101, cgroups=("/grn-b/1",))
    assert whose(400, A_AND_B, container) == ("b",)


def test_a_cgroup_shared_with_a_job_says_nothing() -> None:
    """That a job's main process sits in the same cgroup does not make a stranger the job's."""
    shared = ("/low-priority",)
    processes = table().add(100, 50, cgroups=shared).add(900, 1, cgroups=shared)
    assert whose(900, A_AND_B, processes) == ()


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


# -- whatever happens to processes ----------------------------------------------------------------

PIDS = st.integers(2, 12)
ROWS = st.dictionaries(
    PIDS,
    st.builds(
        Row,
        st.integers(1, 40),
        st.integers(1, 12),
        st.sampled_from([None, "a", "b", "dead"]),
        st.sampled_from([("/",), ("/grn-a/x",), ("/grn-dead",)]),
    ),
)
OWNERS = st.builds(Owner, PIDS, st.integers(1, 40))


@given(rows=ROWS, pid=PIDS, owner=OWNERS, main_a=OWNERS, main_b=OWNERS, one=st.booleans())
def test_whoever_is_given_memory_can_be_proven(
    *, rows: dict[int, Row], pid: int, owner: Owner, main_a: Owner, main_b: Owner, one: bool
) -> None:
    """Never a dead lease, and no lease without a named process of that very start time."""

    def made(name: str, main: Owner) -> Lease:
        return Lease(name, 1, Request(1, "t", owner), (), 0, LeaseState.RUNNING, 0.0, 1, main=main)

    leases = live(made("a", main_a), *([] if one else [made("b", main_b)]))
    verdict = judge(pid, leases, claims(leases.values()), Table(rows))
    assert (verdict is None) == (pid not in rows)
    for name in verdict.leases if verdict is not None else ():
        assert name in leases
        ancestors, at = [], pid
        while at in rows and at not in ancestors:
            ancestors.append(at)
            at = rows[at].parent
        proof = {leases[name].main, owner}
        assert any(
            Owner(x, rows[x].start) in proof
            or rows[x].marker == name
            or f"/grn-{name}/x" in rows[x].cgroups
            for x in ancestors
        )
