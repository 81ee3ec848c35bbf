"""How busy devices and leases are: told to people, and never older than it looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.devices.base import BusyReading, DeviceReading, ProcessUse
from grn.rules import events as ev
from grn.rules.model import DeviceState
from grn.rules.report import status_report
from tests.broker.watched import one_job
from tests.rules.acting import Stage

if TYPE_CHECKING:
    from grn.rules.events import Busy


def told(stage: Stage) -> tuple[int | None, list[int | None]]:
    """What a status tells: of the device, and of its leases."""
    report = status_report(stage.machine, stage.now, [])
    leases = [lease["utilization"] for lease in report["leases"]]
    return report["devices"][0]["utilization"], leases


def look(stage: Stage, busy: Busy | None, state: DeviceState = DeviceState.OK) -> None:
    """Look at the device; nobody holds anything."""
    reading = ev.Reading("GPU-0000", state, "", 0, 0, {}, {}, busy=busy)
    stage.step(ev.Sampled(stage.now, (reading,), {}))


def test_the_last_word_stays_until_the_next() -> None:
    """Not every look asks; a lease that is not named did nothing."""
    stage = Stage(10000)
    first, _ = stage.ask("a", memory_mib=10), stage.ask("b", memory_mib=10)
    assert first.lease is not None
    assert told(stage) == (None, [None, None])
    look(stage, ev.Busy(80, {first.lease.id: 70}))
    assert told(stage) == (80, [70, 0])
    look(stage, None)
    assert told(stage) == (80, [70, 0])
    look(stage, ev.Busy(5, None))
    assert told(stage) == (5, [None, None])


def test_what_nobody_looks_at_is_not_known() -> None:
    """A device that is lost, or that nobody has leased."""
    stage = Stage(10000)
    job = stage.ask("a", memory_mib=10)
    look(stage, ev.Busy(80, {}))
    look(stage, None, DeviceState.LOST)
    assert told(stage) == (None, [None])
    look(stage, ev.Busy(80, {}))
    assert told(stage) == (80, [0])
    stage.finish(job)
    assert told(stage) == (None, [])


def test_the_busiest_device_of_a_lease_counts() -> None:
    """As with its memory."""
    stage = Stage(10000, 10000)
    job = stage.ask("a", memory_mib=10, gpus=2)
    assert job.lease is not None
    shares = {"GPU-0000": 30, "GPU-0001": 90}
    readings = tuple(
        ev.Reading(x, DeviceState.OK, "", 0, 0, {}, {}, busy=ev.Busy(99, {job.lease.id: share}))
        for x, share in shares.items()
    )
    stage.step(ev.Sampled(0.0, readings, {}))
    assert told(stage) == (99, [90])


@pytest.mark.parametrize(
    ("busy", "wanted"),
    [
        (None, None),
        (BusyReading(50, None), ev.Busy(50, None)),
        (BusyReading(50, ((100, 20), (101, 15), (999, 60))), ev.Busy(50, {"a": 35})),
        (BusyReading(None, ((100, 80), (101, 70))), ev.Busy(None, {"a": 100})),
        (BusyReading(0, ()), ev.Busy(0, {"a": 0})),
    ],
)
def test_processes_are_summed_up_by_lease(busy: BusyReading | None, wanted: Busy | None) -> None:
    """Those of a lease together, at most the whole; those of others are nobody's."""
    machine = one_job()
    machine.start(101, 100)
    reading = DeviceReading(
        "d0", "ok", "", 30, (ProcessUse(100, 10), ProcessUse(101, 20)), busy=busy
    )
    (seen,) = machine.whose.readings([reading], machine.leases)
    assert seen.holders == {"a": (100, 101)}
    assert seen.busy == wanted
