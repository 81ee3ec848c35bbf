"""What a card tells, through the real binding: memory, processes, accounting, events, health."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.devices.base import HealthReading, ProcessUse
from tests.devices.nvml_machine import opened
from tests.fakenvml.box import NO_FUNCTION, NO_PERMISSION, NOT_SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]

ELSEWHERE = 4_000_000
"""A pid that no process here has."""

INSUFFICIENT_SIZE = 7


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that can be said to hold memory."""
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_card_as_it_is_found(new_box: NewBox) -> None:
    """Full UUID, place, name, size, reserve and bus come from the driver."""
    box = new_box("2x24GiB,model=Toy", reserved=600)
    with opened(box) as cards:
        first, second = cards.backend.devices
        assert [first.uuid, second.uuid] == box.uuids
        assert (first.index, second.index) == (0, 1)
        assert (first.name, first.total_mib, first.reserve_mib) == ("Toy", 24576, 600)
        assert first.bus_id == "00000000:01:00.0"
        assert not first.shares_ram
        assert cards.backend.headroom_default.of(81920) == 1638
        assert (cards.backend.spec, cards.backend.note) == ("nvml", "")


def test_capabilities_say_what_can_be_asked(new_box: NewBox) -> None:
    """Each figure that will be missing later is explained from the start."""
    box = new_box(acct=1, migmode=None)
    with opened(box) as cards:
        said = dict(cards.backend.devices[0].capabilities)
    assert (said["memory"], said["accounting"], said["events"]) == ("v2", "on", "Xid")
    assert (said["process memory"], said["MIG"]) == ("listed", "not supported")
    assert (said["driver"], said["CUDA"]) == ("570.124.06", "12.8")
    assert said["compute mode"] == "default"
    assert {"utilisation", "ECC", "persistence"} <= said.keys()


def test_used_leaves_the_reserve_out(new_box: NewBox) -> None:
    """What the driver keeps for itself is no use of anybody."""
    with opened(new_box(reserved=600, base=100)) as cards:
        assert cards.ask()[0].used_mib == 100


def test_an_old_driver_counts_its_reserve_as_used(new_box: NewBox) -> None:
    """Without the second version of memory figures the reserve is unknown, and that is said."""
    box = new_box(reserved=600, base=100)
    box.fail("nvmlDeviceGetMemoryInfo_v2", code=NO_FUNCTION)
    with opened(box) as cards:
        info = cards.backend.devices[0]
        assert (info.total_mib, info.reserve_mib) == (10000, 0)
        assert dict(info.capabilities)["memory"].startswith("v1")
        assert cards.ask()[0].used_mib == 700


def test_memory_that_is_the_hosts(new_box: NewBox) -> None:
    """A device without memory of its own has the machine's, as far as it is free."""
    with opened(new_box(total=None)) as cards:
        info = cards.backend.devices[0]
        with open("/proc/meminfo", encoding="ascii") as file:
            total_kib = int(file.readline().split()[1])
        assert info.shares_ram
        assert info.total_mib == total_kib // 1024
        reading = cards.ask()[0]
        assert reading.state == "ok"
        assert reading.used_mib is not None
        assert 0 < reading.used_mib < info.total_mib
        assert reading.processes == ()


def test_a_figure_that_is_not_available_is_not_zero(new_box: NewBox) -> None:
    """N/A stays unknown."""
    box = new_box(used="N/A")
    with opened(box) as cards:
        assert cards.ask()[0].used_mib is None


def test_processes_of_all_lists_are_one_each(
    new_box: NewBox, sleeper: subprocess.Popen[bytes]
) -> None:
    """A process that is listed twice holds what it holds once; the larger figure counts."""
    box = new_box()
    me = os.getpid()
    box.add_process(0, 300, pid=me, kind="C")
    box.add_process(0, 500, pid=me, kind="G")
    box.add_process(0, 200, pid=sleeper.pid, kind="M")
    box.add_process(0, 50, pid=ELSEWHERE, kind="CM")
    with opened(box) as cards:
        held = {use.pid: use.mib for use in cards.ask()[0].processes or ()}
    assert held == {me: 500, sleeper.pid: 200, ELSEWHERE: 50}


def test_a_process_without_a_figure(new_box: NewBox) -> None:
    """Where the driver has no figure for a process, it is listed and unknown."""
    box = new_box()
    box.add_process(0, None, pid=os.getpid())
    with opened(box) as cards:
        assert cards.ask()[0].processes == (ProcessUse(os.getpid(), None),)
        said = dict(cards.backend.devices[0].capabilities)
        assert said["process memory"] == "listed, without figures"


def test_no_list_of_processes_is_not_an_empty_one(new_box: NewBox) -> None:
    """Nobody is said to hold nothing where the driver does not say who holds what."""
    with opened(new_box(procs="no", base=70)) as cards:
        reading = cards.ask()[0]
        assert (reading.state, reading.used_mib, reading.processes) == ("ok", 70, None)
        assert "no list of processes" in reading.reason


def test_an_old_driver_lists_processes_the_old_way(new_box: NewBox) -> None:
    """Without the third version of the lists the second one is read."""
    box = new_box()
    box.add_process(0, 300, pid=os.getpid())
    for what in ("Compute", "Graphics", "MPSCompute"):
        box.fail(f"nvmlDeviceGet{what}RunningProcesses_v3", code=NO_FUNCTION)
    with opened(box) as cards:
        assert cards.ask()[0].processes == (ProcessUse(os.getpid(), 300),)


def test_a_driver_without_the_other_lists(new_box: NewBox) -> None:
    """Computing processes are known even where no others can be."""
    box = new_box()
    box.add_process(0, 300, pid=os.getpid())
    box.fail("nvmlDeviceGetGraphicsRunningProcesses", code=NOT_SUPPORTED)
    box.fail("nvmlDeviceGetMPSComputeRunningProcesses", code=NO_FUNCTION)
    with opened(box) as cards:
        assert cards.ask()[0].processes == (ProcessUse(os.getpid(), 300),)


def test_a_list_that_grows_is_read_whole(new_box: NewBox) -> None:
    """However many processes there are, all are listed."""
    box = new_box()
    with opened(box) as cards:
        assert cards.ask()[0].processes == ()
        names = [box.add_process(0, 1, pid=ELSEWHERE + i) for i in range(100)]
        cards.until(lambda readings: len(readings[0].processes or ()) == 100)
        box.remove_process(names[0])
        cards.until(lambda readings: len(readings[0].processes or ()) == 99)


def test_a_list_that_never_fits_is_unknown(new_box: NewBox) -> None:
    """Trying again has an end, and the rest of the reading stands."""
    box = new_box(base=70)
    with opened(box) as cards:
        token = box.fail("nvmlDeviceGetComputeRunningProcesses", code=INSUFFICIENT_SIZE)
        reading = cards.ask()[0]
        assert (reading.state, reading.used_mib, reading.processes) == ("ok", 70, None)
        box.heal(token)
        assert cards.ask()[0].processes == ()


def test_pids_that_cannot_be_pids(new_box: NewBox) -> None:
    """A driver whose records are laid out differently is found out by its pids."""
    box = new_box()
    box.add_process(0, 300, pid=4_294_967_295)
    with opened(box) as cards:
        reading = cards.ask()[0]
        assert reading.processes is None
        assert "unreadable" in reading.reason
        box.add_process(0, 300, pid=ELSEWHERE)
        assert cards.ask()[0].processes == (ProcessUse(ELSEWHERE, 300),)


def test_an_mps_server_is_marked(new_box: NewBox) -> None:
    """It holds memory for others, who are listed beside it."""
    name = "/usr/bin/nvidia-cuda-mps-server"
    argv = [name, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE) as server:
        box = new_box()
        box.add_process(0, 30, pid=server.pid)
        box.add_process(0, 300, pid=os.getpid(), kind="CM")
        with opened(box) as cards:
            cards.until(lambda r: ProcessUse(server.pid, 30, server=True) in (r[0].processes or ()))
            uses = cards.ask()[0].processes or ()
        assert ProcessUse(os.getpid(), 300) in uses


def test_the_largest_use_is_told_after_the_end_of_a_process(
    new_box: NewBox, sleeper: subprocess.Popen[bytes]
) -> None:
    """What the driver recorded of a process is told while it runs and once it is over."""
    box = new_box(acct=1)
    held = box.add_process(0, 100, pid=sleeper.pid)
    with opened(box) as cards:
        box.account(0, sleeper.pid, 900)
        assert cards.ask()[0].accounted == ((sleeper.pid, 900),)
        box.account(0, sleeper.pid, 950)
        box.remove_process(held)
        assert cards.ask()[0].accounted == ((sleeper.pid, 950),)
        assert cards.ask()[0].accounted == ()


def test_a_process_between_two_readings_leaves_its_record(new_box: NewBox) -> None:
    """What came and went unseen is told; what was over before we looked is not."""
    box = new_box(acct=1)
    box.account(0, ELSEWHERE, 100)
    with opened(box) as cards:
        assert cards.ask()[0].accounted == ()
        box.account(0, ELSEWHERE + 1, 200)
        assert cards.ask()[0].accounted == ((ELSEWHERE + 1, 200),)


def test_nothing_is_accounted_where_it_is_off(new_box: NewBox) -> None:
    """Accounting that is off, or not known at all, is no error."""
    box = new_box("2x10000MiB")
    box.set(0, acct=0)
    box.set(1, acct=None)
    with opened(box) as cards:
        assert [reading.accounted for reading in cards.ask()] == [(), ()]
        said = [dict(info.capabilities)["accounting"] for info in cards.backend.devices]
    assert said == ["off", "not supported"]


def test_error_events_are_told_once_and_of_their_card_only(new_box: NewBox) -> None:
    """Each Xid comes with one reading, in order."""
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        box.xid(1, 31)
        box.xid(1, 13)
        assert [reading.xids for reading in cards.ask()] == [(), (31, 13)]
        assert [reading.xids for reading in cards.ask()] == [(), ()]


def test_a_card_without_events(new_box: NewBox) -> None:
    """It is read like any other one, and its capabilities say so."""
    box = new_box()
    box.fail("nvmlDeviceRegisterEvents", code=NOT_SUPPORTED)
    with opened(box) as cards:
        assert dict(cards.backend.devices[0].capabilities)["events"] == "not supported"
        assert cards.states() == ["ok"]


def test_health_is_told_when_asked(new_box: NewBox) -> None:
    """Remapped rows, memory errors and the recovery action; None where a card has no such thing."""
    box = new_box("2x10000MiB")
    box.set(0, remap="1,2,1,0", ecc=3, recovery=1)
    box.set(1, remap=None, ecc=None, recovery=None)
    with opened(box) as cards:
        assert [reading.health for reading in cards.ask()] == [None, None]
        first, second = (reading.health for reading in cards.ask(health=True))
    assert first == HealthReading(
        remap_pending=True, remap_failed=False, uncorrectable_ecc=3, recovery=1
    )
    assert second is not None
    assert (second.remap_pending, second.recovery) == (None, None)


def test_slices_are_read_each_for_itself(new_box: NewBox) -> None:
    """Holes in their numbers lose none of them; each tells its own memory and processes."""
    box = new_box("2x40GiB,mig=1:20GiB+10GiB")
    box.set(1, 1, index=5)
    box.add_process(1, 300, pid=os.getpid(), slice_index=1)
    with opened(box) as cards:
        infos = cards.backend.devices
        assert [(info.uuid, info.total_mib) for info in infos] == [
            (box.uuid(0), 40960),
            (box.uuid(1, 0), 20480),
            (box.uuid(1, 1), 10240),
        ]
        assert [info.parent for info in infos] == [None, box.uuid(1), box.uuid(1)]
        assert "MIG" in infos[1].name
        readings = cards.ask()
        assert [reading.state for reading in readings] == ["ok", "ok", "ok"]
        assert [reading.used_mib for reading in readings] == [0, 0, 300]
        assert readings[2].processes == (ProcessUse(os.getpid(), 300),)


def test_a_figure_that_we_may_not_read_is_unknown(new_box: NewBox) -> None:
    """No permission for one question leaves the others."""
    box = new_box()
    with opened(box) as cards:
        box.fail("nvmlDeviceGetMemoryInfo", code=NO_PERMISSION)
        reading = cards.ask()[0]
        assert (reading.state, reading.used_mib, reading.processes) == ("ok", None, ())


def test_cards_tell_how_far_they_are_apart(new_box: NewBox) -> None:
    """NVLink is nearest; else the level of what two cards have in common."""
    box = new_box("3x24GiB")
    box.link(0, 2, nvlink=True)
    box.link(1, 2, level=20)
    first, second, third = box.uuids
    with opened(box, mask="2,0,1") as cards:
        links = {info.uuid: dict(info.links) for info in cards.backend.devices}
    assert links == {
        first: {third: 0, second: 50},
        second: {third: 20, first: 50},
        third: {first: 0, second: 20},
    }


def test_pairs_that_are_not_told_cost_nothing_else(new_box: NewBox) -> None:
    """A driver without the question, or that hangs on it, has cards all the same."""
    box = new_box("2x24GiB")
    box.link(0, 1, nvlink=True)
    box.fail("nvmlDeviceGetTopologyCommonAncestor", code=NOT_SUPPORTED)
    box.fail("nvmlDeviceGetP2PStatus", code=NO_FUNCTION)
    with opened(box) as cards:
        assert [info.links for info in cards.backend.devices] == [(), ()]
    box.heal()
    box.fail("nvmlDeviceGetP2PStatus", delay_s=60.0)
    with opened(box) as cards:
        assert [info.links for info in cards.backend.devices] == [(), ()]
        assert cards.states() == ["ok", "ok"]
