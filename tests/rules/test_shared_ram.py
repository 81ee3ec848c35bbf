"""Where a device's memory is the host's RAM, one pool serves both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.estimate import Margin
from grn.rules.machine import Machine
from grn.rules.model import Device
from grn.rules.profiles import ProfileBook
from tests.rules.acting import Stage

if TYPE_CHECKING:
    from grn.rules.ledger import Pool


def _stage(ram_mib: int = 10000) -> Stage:
    stage = Stage(10000, ram_mib=ram_mib)
    stage.devices = [Device("GPU-0000", 0, "GB10", total_mib=10000, shares_ram=True)]
    stage.machine = Machine(
        stage.devices,
        cpus=8,
        ram_mib=ram_mib,
        profiles=ProfileBook(Margin(0, 0)),
        token="t",  # noqa: S106 - names leases, opens nothing
    )
    return stage


def _ram(stage: Stage) -> Pool:
    return stage.machine.ledger.ram


def test_device_memory_is_booked_as_ram() -> None:
    """What a lease books on the device is missing for jobs that declare RAM, until it ends."""
    stage = _stage()
    first = stage.ask(memory_mib=6000)
    assert _ram(stage).booked == 6000
    cpu_job = stage.ask(gpus=0, ram_mib=5000)
    assert cpu_job.waits
    stage.finish(first)
    assert cpu_job.runs
    assert stage.free() == 5000


def test_ram_is_missing_on_the_device() -> None:
    """What a job books of RAM is not given out as device memory; both of one request are added."""
    stage = _stage()
    assert stage.ask(gpus=0, ram_mib=4000).runs
    assert stage.ask(memory_mib=7000).waits
    assert stage.ask(gpus=0, ram_mib=0).runs
    both = _stage()
    never = both.ask(memory_mib=6000, ram_mib=4001)
    assert never.refused is not None
    assert "10001 MiB asked" in never.refused.message
    assert both.ask(memory_mib=6000, ram_mib=4000).waits is False
    assert both.free() == 0


def test_a_first_run_takes_what_is_left_of_both() -> None:
    """Alone on the device, beside its own RAM; what drains keeps its device memory only."""
    stage = _stage()
    probe = stage.ask("new", ram_mib=2000)
    assert probe.booked_mib == 8000
    assert _ram(stage).booked == 10000
    stage.hold(probe, 3000)
    stage.finish(probe, holds_on=True)
    assert _ram(stage).booked == 8000
    probe.held.clear()
    stage.look()
    assert _ram(stage).booked == 0


def test_what_a_first_run_turns_out_to_need_frees_the_rest_of_both() -> None:
    """Booked anew with less, a lease gives back what the device and the host share."""
    books = _stage().machine.ledger
    books.place("a", ("GPU-0000",), 8000, alone=True, ram_mib=500)
    books.rebook("a", ("GPU-0000",), 3000)
    books.check_invariants()
    assert (books.ram.booked, books.books[0].free_mib) == (3500, 6500)
    books.remove("a", ("GPU-0000",))
    books.check_invariants()
    assert (books.ram.booked, books.books[0].free_mib) == (0, 10000)
