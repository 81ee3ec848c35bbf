"""From a pid on a device to the lease whose memory it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from grn.rules.attribution import attribute, main_processes, sole_owners, split_use
from grn.rules.model import Lease, LeaseState, Owner, Request


@dataclass
class _Processes:
    """A process table: pid -> (start time, parent, marker)."""

    rows: dict[int, tuple[int, int, str | None]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def add(self, pid: int, parent: int, *, start: int | None = None, marker: str | None = None):
        self.rows[pid] = (start if start is not None else pid * 10, parent, marker)
        return self

    def start_time(self, pid: int) -> int | None:
        return self.rows[pid][0] if pid in self.rows else None

    def parent(self, pid: int) -> int | None:
        self.asked.append(pid)
        return self.rows[pid][1] if pid in self.rows else None

    def marker(self, pid: int) -> str | None:
        return self.rows[pid][2] if pid in self.rows else None


def _lease(name: str, main: Owner | None) -> Lease:
    request = Request(1, "job", Owner(50, 500))
    return Lease(name, 1, request, ("d0",), 100, LeaseState.RUNNING, 0.0, 1, main=main)


def _live(*leases: Lease) -> dict[str, Lease]:
    return {lease.id: lease for lease in leases}


LIVE = _live(_lease("a", Owner(100, 1000)), _lease("b", Owner(200, 2000)))
MAINS = main_processes(LIVE.values())


def _table() -> _Processes:
    return _Processes().add(50, 1).add(100, 50).add(200, 50)


def test_the_main_process_is_the_leases_own() -> None:
    """What a job's main process holds is its lease's."""
    assert attribute(100, LIVE, MAINS, _table()) == "a"


def test_descendants_belong_to_their_ancestors_lease() -> None:
    """Children of any depth count, each for its own job."""
    table = _table().add(101, 100).add(102, 101).add(201, 200)
    assert attribute(102, LIVE, MAINS, table) == "a"
    assert attribute(201, LIVE, MAINS, table) == "b"


def test_a_double_fork_is_found_by_its_marker() -> None:
    """A daemon whose parents are gone still carries the lease in its environment."""
    table = _table().add(300, 1, marker="b")
    assert attribute(300, LIVE, MAINS, table) == "b"


def test_children_of_a_daemon_are_found_through_it() -> None:
    """A process without a marker of its own belongs where its parent belongs."""
    table = _table().add(300, 1, marker="b").add(301, 300)
    assert attribute(301, LIVE, MAINS, table) == "b"


def test_descendants_of_an_owner_of_one_lease_need_no_marker() -> None:
    """What a job started without its environment is found below its supervisor."""
    live = _live(_lease("a", Owner(100, 1000)))
    known = {**sole_owners(live.values()), **main_processes(live.values())}
    table = _table().add(300, 50).add(301, 300)
    assert attribute(301, live, known, table) == "a"


def test_an_owner_of_several_leases_says_nothing_about_which() -> None:
    """An unmarked process below it could be of either: it is foreign."""
    known = {**sole_owners(LIVE.values()), **MAINS}
    assert attribute(300, LIVE, known, _table().add(300, 50)) is None


def test_a_marker_of_an_ended_lease_names_nobody() -> None:
    """What outlived its lease is foreign."""
    table = _table().add(300, 1, marker="gone")
    assert attribute(300, LIVE, MAINS, table) is None


def test_a_reused_pid_is_another_process() -> None:
    """A number that was given away again, known by its start time, is foreign."""
    table = _table().add(100, 1, start=9999).add(101, 100)
    assert attribute(100, LIVE, MAINS, table) is None
    assert attribute(101, LIVE, MAINS, table) is None


def test_strangers_are_foreign() -> None:
    """Other users' processes, and pids of another namespace, belong to no lease."""
    table = _table().add(900, 1)
    assert attribute(900, LIVE, MAINS, table) is None
    assert attribute(645400, LIVE, MAINS, table) is None
    assert attribute(0, LIVE, MAINS, table) is None


def test_the_client_beside_its_job_is_not_the_job() -> None:
    """The supervisor above the main process is not counted to the lease."""
    assert attribute(50, LIVE, MAINS, _table()) is None


def test_a_lease_inside_a_job_is_told_apart() -> None:
    """The nearest lease upwards counts: a job started from within another job is its own."""
    live = _live(_lease("outer", Owner(100, 1000)), _lease("inner", Owner(101, 1010)))
    mains = main_processes(live.values())
    table = _table().add(101, 100).add(102, 101).add(103, 100)
    assert attribute(102, live, mains, table) == "inner"
    assert attribute(103, live, mains, table) == "outer"


def test_a_circle_of_parents_ends() -> None:
    """A table that changes while it is read cannot trap the walk."""
    table = _table().add(300, 301).add(301, 300)
    assert attribute(300, LIVE, MAINS, table) is None
    assert len(table.asked) < 200
    assert attribute(302, LIVE, MAINS, _table().add(302, 302)) is None


def test_the_newest_lease_of_one_process_counts() -> None:
    """A process that took several leases for itself uses the last one."""
    live = _live(_lease("old", Owner(100, 1000)), _lease("new", Owner(100, 1000)))
    assert attribute(100, live, main_processes(live.values()), _table()) == "new"


def test_the_sum_goes_over_the_whole_tree() -> None:
    """A parent with 500 MiB and nine children with 400 each hold 4100 together."""
    table = _table()
    uses: list[tuple[int, int | None]] = [(100, 500)]
    for pid in range(101, 110):
        table.add(pid, 100)
        uses.append((pid, 400))
    held, holders, complete = split_use(uses, LIVE, MAINS, table)
    assert held == {"a": 4100}
    assert holders == {"a": tuple(range(100, 110))}
    assert complete


def test_parent_and_child_both_on_the_card_are_added() -> None:
    """Each process pays for its own context."""
    held, _, _ = split_use([(100, 396), (101, 396)], LIVE, MAINS, _table().add(101, 100))
    assert held == {"a": 792}


def test_jobs_and_strangers_are_kept_apart() -> None:
    """Only memory of leases is handed back; the rest is nobody's."""
    table = _table().add(900, 1)
    held, holders, _ = split_use([(100, 10), (200, 20), (900, 30)], LIVE, MAINS, table)
    assert held == {"a": 10, "b": 20}
    assert holders == {"a": (100,), "b": (200,)}


def test_an_unknown_figure_is_not_nothing() -> None:
    """A process whose use the driver does not tell makes the sum incomplete."""
    held, _, complete = split_use([(100, None), (200, 20)], LIVE, MAINS, _table())
    assert held == {"b": 20}
    assert not complete
