"""What one look after another makes of a driver's lists: the dead, the doubtful and the strange."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from grn.broker.whose import Whose
from grn.devices.base import DeviceReading, ProcessUse
from grn.rules.model import DeviceState, Lease, LeaseState, Owner, Request

if TYPE_CHECKING:
    from grn.rules import events as ev

OWNER = 50


class Machine:
    """Processes that live and die, leases, and a device `d0` that lists some of the processes."""

    def __init__(self, *, first_namespace: bool = True) -> None:
        self.rows: dict[int, tuple[int, int, str | None]] = {1: (0, 0, None), OWNER: (500, 1, None)}
        self.hidden: set[int] = set()
        self.asked = 0
        self.leases: dict[str, Lease] = {}
        self.whose = Whose(self)
        self._first = first_namespace

    def start(self, pid: int, parent: int = OWNER, *, began: int = 0, marker: str = "") -> int:
        """Start a process; it begins at ten times its pid unless told otherwise."""
        self.rows[pid] = (began or pid * 10, parent, marker or None)
        return pid

    def end(self, pid: int) -> None:
        """End a process; its children become init's."""
        del self.rows[pid]
        for child, (began, parent, marker) in self.rows.items():
            if parent == pid:
                self.rows[child] = (began, 1, marker)

    def lease(
        self, name: str, main: int | None, *uuids: str, owner: int = OWNER, mib: int = 1000
    ) -> None:
        """Grant a lease, of `d0` if nothing is said."""
        request = Request(1, "t", Owner(owner, self.rows[owner][0]))
        process = None if main is None else Owner(main, self.rows[main][0])
        self.leases[name] = Lease(
            name, 1, request, uuids or ("d0",), mib, LeaseState.RUNNING, 0.0, 1, main=process
        )

    def look(self, used: int | None, *uses: tuple[int, int | None], **more: Any) -> ev.Reading:
        """Look at `d0`."""
        processes = tuple(ProcessUse(pid, mib) for pid, mib in uses)
        reading = DeviceReading("d0", "ok", "", used, processes, **more)
        (told,) = self.whose.readings([reading], self.leases)
        return told

    def birth(self, pid: int) -> tuple[int, int] | None:
        """Return start time and parent."""
        self.asked += 1
        row = None if pid in self.hidden else self.rows.get(pid)
        return None if row is None else row[:2]

    def identity(self, pid: int) -> int | None:
        """Return what changes with the process."""
        self.asked += 1
        return None if pid in self.hidden or pid not in self.rows else hash((pid, self.rows[pid]))

    def marker(self, pid: int) -> str | None:
        """Return the marker."""
        self.asked += 1
        return self.rows[pid][2] if pid in self.rows else None

    def cgroups(self, pid: int) -> tuple[str, ...]:
        """Return no cgroups."""
        del pid
        self.asked += 1
        return ()

    def exists(self, pid: int) -> bool:
        """Say whether it exists."""
        return pid in self.rows

    def in_first_pid_namespace(self) -> bool:
        """Say what the machine was made for."""
        return self._first


def one_job(**more: Any) -> Machine:
    """Return a machine with lease `a`, whose main process is 100."""
    machine = Machine(**more)
    machine.lease("a", machine.start(100))
    return machine


# -- strangers ------------------------------------------------------------------------------------


def test_a_pid_that_does_not_exist_here_is_a_stranger_at_the_second_look() -> None:
    """The first look concludes nothing; then nobody can say what the lease holds."""
    machine = one_job()
    assert machine.look(0).leases == {}
    first = machine.look(1800, (645400, 1800))
    assert (first.leases, first.foreign_mib, first.strangers) == ({}, None, ())
    second = machine.look(1800, (645400, 1800))
    assert (second.leases, second.strangers) == (None, (645400,))


def test_a_stranger_is_one_for_as_long_as_it_is_listed() -> None:
    """A process here that gets its number changes nothing; when it is gone all is known again."""
    machine = one_job()
    for _ in range(2):
        machine.look(1800, (645400, 1800))
    machine.start(645400, 100)
    told = machine.look(1900, (645400, 1900))
    assert (told.leases, told.holders, told.strangers) == (None, {}, (645400,))
    told = machine.look(10, (100, 10))
    assert (told.leases, told.strangers) == ({"a": 10}, ())


def test_a_device_that_empties_makes_no_strangers() -> None:
    """While the total falls a pid that is gone may be one whose memory is just being freed."""
    machine = one_job()
    machine.look(0)
    for used in (900, 600, 300):
        told = machine.look(used, (777, used))
        assert (told.leases, told.strangers) == ({}, ())
    assert machine.look(300, (777, 300)).strangers == (777,)


def test_an_answer_that_is_told_twice_is_one_look() -> None:
    """A late driver's last answer stands in for a while: it proves nothing new."""
    machine = one_job()
    reading = DeviceReading("d0", "ok", "", 1800, (ProcessUse(645400, 1800),), xids=(31,))
    for again in (reading, replace(reading, xids=()), replace(reading, xids=())):
        (told,) = machine.whose.readings([again], machine.leases)
        assert told.strangers == ()


def test_what_a_lease_held_stays_at_a_doubtful_look() -> None:
    """Its last process may have died between the driver's answer and ours."""
    machine = one_job()
    machine.look(700, (100, 700))
    machine.end(100)
    machine.leases["a"].main = None
    told = machine.look(900, (100, 0), (101, 900))
    assert told.leases == {"a": 700}
    assert told.foreign_mib is None


def test_a_short_process_is_never_a_stranger() -> None:
    """It was listed once after its death; what the lease holds was known throughout."""
    machine = one_job()
    assert machine.look(10, (100, 10)).leases == {"a": 10}
    assert machine.look(90, (100, 10), (101, 80)).leases == {"a": 10}
    told = machine.look(10, (100, 10))
    assert (told.leases, told.strangers, told.foreign_mib) == ({"a": 10}, (), 0)


def test_in_a_pid_namespace_strangers_spoil_all_numbers() -> None:
    """The driver counts in another namespace: a process of that number here is not the one meant."""
    for first, expected in ((True, {"a": 50}), (False, None)):
        machine = one_job(first_namespace=first)
        told = [
            machine.whose.readings(
                [
                    DeviceReading("d0", "ok", "", 50, (ProcessUse(100, 50),)),
                    DeviceReading("d1", "ok", "", 1800, (ProcessUse(645400, 1800),)),
                ],
                machine.leases,
            )
            for _ in range(2)
        ]
        assert told[1][0].leases == expected


def test_another_users_hidden_process_is_foreign() -> None:
    """A mount option may hide it from /proc; it exists, so it is no stranger."""
    machine = one_job()
    machine.start(900, 1)
    machine.hidden.add(900)
    for _ in range(3):
        told = machine.look(510, (900, 500), (100, 10))
        assert (told.leases, told.foreign_mib, told.strangers) == ({"a": 10}, 500, ())


def test_a_holder_without_a_number_is_foreign() -> None:
    """Pid 0 is somebody whom nobody here can see."""
    machine = one_job()
    for _ in range(3):
        told = machine.look(500, (0, 490), (100, 10))
        assert (told.leases, told.foreign_mib, told.strangers) == ({"a": 10}, 490, ())


# -- the dead -------------------------------------------------------------------------------------


def test_memory_under_a_dead_parents_number_stays_its_leases() -> None:
    """Children that inherited its files keep it; the driver lists the parent until they end."""
    machine = one_job()
    machine.look(700, (100, 700))
    machine.end(100)
    machine.leases["a"].main = None
    machine.leases["a"].state = LeaseState.DRAINING
    for _ in range(3):
        told = machine.look(700, (100, 700))
        assert (told.leases, told.holders, told.strangers) == ({"a": 700}, {"a": (100,)}, ())
    assert machine.look(0).leases == {}


def test_a_dead_foreign_process_is_foreign() -> None:
    """It was seen here, so nobody wonders whose it is."""
    machine = one_job()
    machine.start(900, 1)
    machine.look(700, (900, 700))
    machine.end(900)
    for _ in range(3):
        told = machine.look(700, (900, 700))
        assert (told.leases, told.foreign_mib, told.strangers) == ({}, 700, ())


def test_a_dead_process_on_another_device_is_no_stranger_there() -> None:
    """It was seen alive a look ago, wherever that was."""
    machine = one_job()
    machine.look(700, (100, 700))
    machine.end(100)
    readings = [
        DeviceReading("d0", "ok", "", 0, ()),
        DeviceReading("d1", "ok", "", 30, (ProcessUse(100, 30),)),
    ]
    told = machine.whose.readings(readings, machine.leases)
    assert told[1].leases == {"a": 30}


def test_a_reused_number_is_foreign() -> None:
    """Its lease does not get what a later process of that number holds."""
    machine = one_job()
    machine.look(700, (100, 700))
    machine.end(100)
    machine.start(100, 1, began=99999)
    told = machine.look(700, (100, 700))
    assert (told.leases, told.foreign_mib) == ({}, 700)


def test_a_process_stays_its_leases_when_its_parents_die() -> None:
    """It has no marker, but it was seen below the lease's main process."""
    machine = one_job()
    machine.lease("b", machine.start(200))
    machine.start(101, 100)
    machine.look(700, (101, 700))
    machine.end(100)
    machine.leases["a"].main = None
    assert machine.look(700, (101, 700)).leases == {"a": 700}


def test_what_an_ended_lease_left_is_not_its_owners_next_leases() -> None:
    """A process that was seen under one lease needs proof to be another's."""
    machine = one_job()
    machine.start(101, 100)
    machine.look(700, (101, 700))
    machine.rows[101] = (1010, OWNER, None)  # its parent died; the supervisor adopts orphans
    del machine.rows[100]
    del machine.leases["a"]
    machine.lease("b", None)
    told = machine.look(700, (101, 700))
    assert (told.leases, told.foreign_mib) == ({}, 700)
    machine.leases["b"].main = Owner(101, 1010)
    assert machine.look(700, (101, 700)).leases == {"b": 700}


def test_a_process_can_become_a_leases_while_it_holds_memory() -> None:
    """A program that takes a lease for itself was foreign until then, and so were its children."""
    machine = Machine()
    machine.start(300, 1)
    machine.start(301, 300)
    assert machine.look(90, (300, 50), (301, 40)).foreign_mib == 90
    machine.lease("a", 300, owner=300)
    told = machine.look(90, (300, 50), (301, 40))
    assert (told.leases, told.foreign_mib) == ({"a": 90}, 0)
    del machine.leases["a"]
    machine.lease("b", 300, owner=300)
    assert machine.look(90, (300, 50), (301, 40)).leases == {"b": 90}


def test_two_leases_of_one_process_are_told_apart_by_device() -> None:
    """Each has what the process holds on the device that it was given."""
    machine = Machine()
    machine.lease("x", OWNER, "d0")
    machine.lease("y", OWNER, "d1")
    told = machine.whose.readings(
        [
            DeviceReading("d0", "ok", "", 40, (ProcessUse(OWNER, 30),)),
            DeviceReading("d1", "ok", "", 20, (ProcessUse(OWNER, 20),)),
        ],
        machine.leases,
    )
    assert [reading.leases for reading in told] == [{"x": 30}, {"y": 20}]


# -- what is passed on ----------------------------------------------------------------------------


def test_a_server_is_nobodys_even_if_a_job_started_it() -> None:
    """Its own share makes no profile."""
    machine = one_job()
    machine.start(70, 100, marker="a")
    processes = (ProcessUse(70, 30, server=True),)
    for _ in range(2):
        reading = DeviceReading("d0", "ok", "", 30, processes)
        (told,) = machine.whose.readings([reading], machine.leases)
        assert (told.leases, told.holders, told.foreign_mib) == ({}, {}, 30)


def test_a_server_that_was_seen_beside_a_client_hides_none() -> None:
    """When the client has gone, what a big server holds is its own."""
    machine = one_job()
    machine.start(70, 1)
    server = ProcessUse(70, 400, server=True)

    def look(*others: ProcessUse) -> ev.Reading:
        reading = DeviceReading("d0", "ok", "", 1000, (server, *others))
        return machine.whose.readings([reading], machine.leases)[0]

    assert look().leases is None
    assert look(ProcessUse(100, 600)).leases == {"a": 600}
    assert look().leases == {}


def test_a_device_that_lists_nobody_counts_bookings() -> None:
    """Foreign is what exceeds them; xids and health pass through, as state and reason do."""
    machine = one_job()
    reading = DeviceReading("d0", "ok", "", 1500, None, xids=(31,))
    (told,) = machine.whose.readings([reading], machine.leases)
    assert (told.leases, told.foreign_mib, told.xids) == (None, 500, (31,))
    stale = DeviceReading("d0", "stale", "no answer", None, None)
    (told,) = machine.whose.readings([stale], machine.leases)
    assert (told.state, told.reason, told.foreign_mib) == (DeviceState.STALE, "no answer", None)


def test_a_silent_device_does_not_make_the_dead_strange() -> None:
    """What was known before it fell silent is known after."""
    machine = one_job()
    machine.look(700, (100, 700))
    machine.end(100)
    machine.whose.readings([DeviceReading("d0", "stale", "slow")], machine.leases)
    told = machine.look(700, (100, 700))
    assert (told.leases, told.strangers) == ({"a": 700}, ())


# -- what the driver recorded ---------------------------------------------------------------------


def test_records_of_finished_processes_are_their_leases() -> None:
    """The driver keeps a process's maximum after its end; we keep whose it was."""
    machine = one_job()
    machine.start(101, 100)
    machine.look(60, (100, 20), (101, 40))
    machine.end(101)
    told = machine.look(20, (100, 20), accounted=((100, 25), (101, 90), (900, 7000)))
    assert told.accounted == {"a": 115}


def test_records_of_steps_one_after_another_are_not_added() -> None:
    """A script never held the sum of what its steps held."""
    machine = one_job()
    for pid in (101, 102, 103):
        machine.start(pid, 100)
        machine.look(40, (pid, 40))
        machine.end(pid)
    told = machine.look(0, accounted=((101, 50), (102, 70), (103, 60)))
    assert told.accounted == {"a": 70}


def test_a_main_process_that_was_over_before_it_was_listed_is_accounted() -> None:
    """The driver saw it, and its client had named it."""
    machine = one_job()
    machine.end(100)
    assert machine.look(0, accounted=((100, 50),)).accounted == {"a": 50}


def test_of_processes_between_two_looks_the_largest_counts() -> None:
    """It may have met what is listed now; nothing says that it met the others."""
    machine = one_job()
    for pid in (101, 102):
        machine.start(pid, 100)
    told = machine.look(20, (100, 20), accounted=((100, 25), (101, 50), (102, 70)))
    assert told.accounted == {"a": 95}


def test_records_that_may_be_of_others_are_left_out() -> None:
    """The number was given to another process since, or nobody ever saw its process."""
    machine = one_job()
    machine.start(101, 100)
    machine.look(40, (101, 40))
    machine.end(101)
    machine.start(101, 1, began=99999)
    assert machine.look(0, accounted=((101, 7000), (777, 7000))).accounted == {}


def test_records_of_a_process_that_uses_leases_itself_are_left_out() -> None:
    """They cover what it did under its leases before."""
    machine = Machine()
    machine.lease("a", OWNER)
    told = machine.look(10, (OWNER, 10), accounted=((OWNER, 7000),))
    assert (told.leases, told.accounted) == ({"a": 10}, {})


def test_what_is_remembered_goes_with_its_lease() -> None:
    """A broker that lives for months keeps nothing of what is over."""
    machine = one_job()
    machine.start(900, 1)
    machine.look(700, (100, 700), (900, 10))
    machine.look(0)
    assert set(machine.whose._known) == {100}
    machine.leases.clear()
    machine.look(0)
    assert not machine.whose._known


# -- cost -----------------------------------------------------------------------------------------


def test_a_known_process_costs_one_read() -> None:
    """Whatever their number, ancestors and environments are not read again."""
    machine = one_job()
    uses = [(machine.start(pid, 100), 10) for pid in range(101, 151)]
    uses += [(machine.start(pid, 1), 10) for pid in range(901, 951)]
    machine.look(1000, *uses)
    machine.asked = 0
    machine.look(1000, *uses)
    assert machine.asked == 100


def test_leases_that_come_and_go_cost_known_processes_nothing() -> None:
    """Only who descends from a process that is claimed anew is judged again."""
    machine = one_job()
    uses = [(machine.start(pid, 100), 10) for pid in range(101, 151)]
    machine.look(500, *uses)
    machine.start(60, 1)
    machine.lease("b", machine.start(200, 60), owner=60)
    machine.asked = 0
    machine.look(500, *uses)
    assert machine.asked == 50


# -- whatever happens -----------------------------------------------------------------------------

PIDS = st.integers(300, 302)
STEPS = st.lists(
    st.tuples(st.just("start"), PIDS, PIDS, st.booleans())
    | st.tuples(st.sampled_from(["end", "grant", "close", "list", "unlist"]), PIDS),
    max_size=40,
)


class History:
    """A machine to which things happen, and the truth about whose each process is."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.began = 10_000
        self.truth: dict[int, str | None] = {}
        """The lease below which the last process of a number was born."""
        self.listed: set[int] = set(range(300, 303))

    def start(self, pid: int, parent: int, marked: bool) -> None:  # noqa: FBT001 - drawn so
        """Start a process below another one, or below init; it may lose the marker."""
        rows = self.machine.rows
        if pid in rows:
            return
        self.began += 1
        parent = parent if parent in rows else 1
        self.truth[pid] = self.truth.get(parent) if parent in rows else None
        marker = self.truth[pid] if marked else None
        self.machine.start(pid, parent, began=self.began, marker=marker or "")

    def end(self, pid: int) -> None:
        """End a process."""
        if pid in self.machine.rows:
            self.machine.end(pid)

    def grant(self, pid: int) -> None:
        """Start an owner and the main process of a new lease."""
        if pid in self.machine.rows:
            return
        self.began += 2
        name = f"lease-{self.began}"
        owner = self.machine.start(self.began, 1, began=self.began - 1)
        self.machine.start(pid, owner, began=self.began, marker=name)
        self.truth[pid] = self.truth[owner] = name
        self.machine.lease(name, pid, owner=owner)

    def close(self, pid: int) -> None:
        """End the lease of a process, which may live on."""
        self.machine.leases.pop(self.truth.get(pid) or "", None)

    def list(self, pid: int) -> None:
        """Let the driver name a number again."""
        self.listed.add(pid)

    def unlist(self, pid: int) -> None:
        """Let the driver name a number no more."""
        self.listed.discard(pid)

    def look(self) -> None:
        """Look, and compare with the truth."""
        told = self.machine.look(10 * len(self.listed), *((pid, 10) for pid in self.listed))
        for lease, pids in told.holders.items():
            assert lease in self.machine.leases
            assert {self.truth.get(pid) for pid in pids} == {lease}
        assert set(told.leases or ()) <= set(self.machine.leases)
        if told.foreign_mib is not None and told.leases is not None:
            assert told.foreign_mib + sum(told.leases.values()) >= 10 * len(self.listed)


@settings(max_examples=400)
@given(STEPS)
def test_no_lease_is_given_what_is_not_its_own(steps: list[tuple[Any, ...]]) -> None:
    """Whoever starts, dies, loses parents or marker, or takes over a number: never a guess."""
    history = History()
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
        history.look()
