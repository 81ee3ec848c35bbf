"""What the driver itself recorded of processes, and whose that was."""

from __future__ import annotations

from tests.broker.watched import OWNER, Machine, one_job

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
