"""A lease of which a device does not say what it holds is kept while processes of it live."""

from __future__ import annotations

import pytest

from grn.rules import events as ev
from grn.rules.model import DeviceState, End, Owner, Request
from grn.rules.seeing import unseen
from tests.reliability.histories import fresh_machine

OWNER = Owner(50, 1)


def machine_with_a_lease():
    """Return a machine with one lease, of 1000 MiB on the first device, and its id."""
    machine = fresh_machine()
    machine.step(ev.Asked(0.0, Request(1, "t", OWNER, memory_mib=1000, session="s")))
    machine.step(ev.Settle(0.0))
    return machine, next(iter(machine.leases))


def look(state: DeviceState, used: int | None, left_over: dict[str, tuple[int, ...]]) -> ev.Sampled:
    """Look at the first device, whose driver does not say who holds what."""
    reading = ev.Reading("GPU-0", state, "", used, None, None, {})
    return ev.Sampled(1.0, (reading,), left_over)


@pytest.mark.parametrize("end", ["released", "owner gone", "unclaimed"])
def test_it_drains_until_they_have_ended(end: str) -> None:
    """Also where nothing was ever measured of it: unknown is not nothing."""
    machine, lease = machine_with_a_lease()
    machine.step(look(DeviceState.LOST, None, {}))
    assert unseen(machine, machine.leases[lease])
    event: ev.Event
    if end == "released":
        event = ev.Released(1.0, lease, End(exit_code=0), 9, left_over=(77,))
    elif end == "owner gone":
        event = ev.OwnerGone(1.0, lease, main_alive=False, left_over=(77,))
    else:
        nobody = frozenset[str]()
        event = ev.Returned(1.0, OWNER, "s", nobody, nobody, 9, {lease: (77,)})
    machine.step(event)
    assert machine.leases[lease].state == "draining"
    # It can be read again, and somebody else is there, too: what the lease holds is not known.
    machine.ledger.by_uuid["GPU-0"].bookings[lease].had_company = True
    machine.step(look(DeviceState.OK, 6000, {lease: (77,)}))
    assert unseen(machine, machine.leases[lease])
    assert lease in machine.leases
    machine.step(look(DeviceState.OK, 6000, {}))
    assert lease not in machine.leases
    machine.check_invariants()


def test_the_end_of_its_main_process_is_not_the_end_of_all() -> None:
    """Its workers live on, on a device that does not say what they hold."""
    machine, lease = machine_with_a_lease()
    machine.step(ev.Started(0.5, lease, Owner(60, 2)))
    machine.step(look(DeviceState.LOST, None, {}))
    machine.step(ev.OwnerGone(1.0, lease, main_alive=True, left_over=(60, 77)))
    machine.step(ev.MainGone(2.0, lease, left_over=(77,)))
    assert machine.leases[lease].state == "draining"
    machine.step(ev.MainGone(3.0, lease))
    assert lease not in machine.leases


def test_the_end_of_a_job_within_it_is_not_the_end_of_all() -> None:
    """What ran inside a lease that is over ends; other processes of it live on, unseen."""
    machine, lease = machine_with_a_lease()
    machine.step(ev.Asked(0.0, Request(2, "t", OWNER, memory_mib=100, outer=lease)))
    machine.step(ev.Settle(0.0))
    machine.step(look(DeviceState.LOST, None, {}))
    machine.step(ev.Released(1.0, lease, End(exit_code=0), 9, left_over=(77,)))
    machine.step(ev.Left(2.0, 2))
    assert machine.leases[lease].state == "draining"
    machine.step(look(DeviceState.LOST, None, {}))
    assert lease not in machine.leases


@pytest.mark.parametrize("end", ["released", "owner gone", "unclaimed"])
def test_without_any_it_is_over_at_once(end: str) -> None:
    """Nobody of it lives: what is held there is somebody else's."""
    machine, lease = machine_with_a_lease()
    machine.step(look(DeviceState.LOST, None, {}))
    nobody = frozenset[str]()
    events: dict[str, ev.Event] = {
        "released": ev.Released(1.0, lease, End(exit_code=0), 9),
        "owner gone": ev.OwnerGone(1.0, lease, main_alive=False),
        "unclaimed": ev.Returned(1.0, OWNER, "s", nobody, nobody, 9),
    }
    machine.step(events[end])
    assert machine.leases == {}


def clean(left_over: dict[str, tuple[int, ...]]) -> ev.Sampled:
    """Look at the first device, whose driver says that nobody holds anything."""
    return ev.Sampled(5.0, (ev.Reading("GPU-0", DeviceState.OK, "", 0, 0, {}, {}),), left_over)


@pytest.mark.parametrize("again", [False, True], ids=["one broker", "a successor"])
def test_what_runs_on_after_a_killed_client_keeps_its_lease(*, again: bool) -> None:
    """Nobody saw the job's end: its processes may allocate what is booked at any moment."""
    machine, lease = machine_with_a_lease()
    machine.step(ev.Started(0.5, lease, Owner(60, 2)))
    machine.step(clean({}))
    machine.step(ev.OwnerGone(1.0, lease, main_alive=False, left_over=(77,)))
    if again:
        records, machine = machine.snapshot(), fresh_machine()
        assert machine.restore(records, 1.5) == []
        machine.step(ev.OwnerGone(1.6, lease, main_alive=False, left_over=(77,)))
    assert machine.leases[lease].state == "draining"
    assert machine.ledger.by_uuid["GPU-0"].booked_mib == 1000
    machine.step(clean({lease: (77,)}))
    assert machine.leases[lease].left_over == (77,)
    machine.step(clean({}))
    assert lease not in machine.leases
    machine.check_invariants()


def test_the_end_of_an_orphans_main_process_is_not_the_end_of_all() -> None:
    """The kernel kills a command with its client, a moment later: what it had started lives."""
    machine, lease = machine_with_a_lease()
    machine.step(ev.Started(0.5, lease, Owner(60, 2)))
    machine.step(ev.OwnerGone(1.0, lease, main_alive=True, left_over=(60, 77)))
    machine.step(ev.MainGone(1.1, lease, left_over=(77,)))
    assert machine.leases[lease].left_over == (77,)
    machine.step(ev.MainGone(3.0, lease))
    assert lease not in machine.leases


def test_a_helper_of_a_job_that_ended_does_not_become_an_orphan() -> None:
    """Its end was told: what keeps the lease then is memory, also when the client is gone."""
    machine, lease = machine_with_a_lease()
    machine.step(ev.Started(0.5, lease, Owner(60, 2)))
    held = ev.Reading("GPU-0", DeviceState.OK, "", 500, 0, {lease: 500}, {lease: (77,)})
    machine.step(ev.Sampled(0.6, (held,), {}))
    machine.step(ev.Released(1.0, lease, End(exit_code=0), 9))
    machine.step(ev.OwnerGone(1.1, lease, main_alive=False, left_over=(77,)))
    assert machine.leases[lease].state == "draining"
    machine.step(clean({lease: (77,)}))
    assert lease not in machine.leases


def test_on_devices_that_say_all_nothing_is_unseen() -> None:
    """A clean reading by process is the whole truth."""
    machine, lease = machine_with_a_lease()
    assert not unseen(machine, machine.leases[lease])
    reading = ev.Reading("GPU-0", DeviceState.OK, "", 0, 0, {}, {})
    machine.step(ev.Sampled(1.0, (reading,), {}))
    assert not unseen(machine, machine.leases[lease])
