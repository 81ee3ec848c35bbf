"""From pids on devices to leases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.attribution import (
    Verdict,
    claims,
    judge,
    lease_of_cgroups,
    main_processes,
)
from grn.rules.model import Lease, LeaseState, Owner, Request
from tests.rules.processes import A_AND_B, Row, Table, lease, live, table, whose

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
