"""What one look after another makes of a driver's lists: the dead, the doubtful and the strange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.devices.base import DeviceReading, ProcessUse
from grn.rules.model import DeviceState, LeaseState, Owner
from tests.broker.watched import OWNER, Machine, one_job

if TYPE_CHECKING:
    from grn.rules import events as ev


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
    for again in (reading, reading._replace(xids=()), reading._replace(xids=())):
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
