"""The simulated backend: its devices, what it reads, and who may open it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from grn import procs
from grn.devices import simfolder
from grn.devices.base import ProcessUse
from grn.devices.simulated import SETTLED_NS
from grn.errors import BrokerUnavailable, PathError
from tests.devices.machines import used, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from grn.devices.simulated import SimulatedBackend
    from tests.devices.machines import Jobs, OpenSim

UUID = "GPU-51d00000-0000-4000-8000-00000000000"


def add_process(backend: SimulatedBackend, pid: int, mib: int, start: int | None = None) -> str:
    """Write the record that a process would write of itself."""
    began = procs.start_time(pid) if start is None else start
    path = os.path.join(simfolder.procs_path(backend.directory), f"{pid}-{began}")
    simfolder.write_file(path, simfolder.Holding((0, -1), pid, mib, began, live=True).record())
    return path


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("-1", []),
        ("0,1,2,1", []),
        ("1gpu2,2ampere", [1, 2]),
        (f"{UUID}3,{UUID}1", [3, 1]),
        ("GPU-51d", []),
        ("NoDevFiles", []),
    ],
)
def test_the_mask_narrows_and_orders(sim: OpenSim, mask: str | None, indices: list[int]) -> None:
    """Devices are those of the mask in its order, each with its place in bus order."""
    backend = sim("sim:8x8000", mask=mask)
    assert [device.index for device in backend.devices] == indices
    assert [device.uuid for device in backend.devices] == [f"{UUID}{i}" for i in indices]
    assert [reading.uuid for reading in backend.read({}, {})] == [f"{UUID}{i}" for i in indices]
    assert backend.note or indices


def test_a_card_is_described(sim: OpenSim) -> None:
    """Model, size, reserve and compute mode reach the broker."""
    plain, odd = sim("sim:1x16GiB,1x8113,reserve=512MiB,mode=1:exclusive").devices
    assert (plain.name, plain.total_mib, plain.reserve_mib) == ("Simulated 16 GiB", 16384, 512)
    assert (odd.name, odd.exclusive_process) == ("Simulated 8113 MiB", True)
    assert not plain.exclusive_process


def test_a_divided_card_is_no_device_but_its_slices_are(sim: OpenSim) -> None:
    """Slices carry their own UUIDs and their card's index."""
    devices = sim("sim:2x80GiB,mig=0:20GiB+40GiB").devices
    assert [(d.index, d.total_mib) for d in devices] == [(0, 20480), (0, 40960), (1, 81920)]
    assert [d.parent for d in devices] == [f"{UUID}0", f"{UUID}0", None]
    assert len({d.uuid for d in devices}) == 3


def test_a_mask_can_name_one_slice(sim: OpenSim) -> None:
    """MIG UUIDs select slices."""
    whole = sim("sim:2x80GiB,mig=0:20GiB+40GiB")
    whole.close()
    second = whole.devices[1]
    assert sim("sim:2x80GiB,mig=0:20GiB+40GiB", mask=second.uuid).devices == (second,)


def test_a_number_means_the_first_slice(sim: OpenSim) -> None:
    """A divided card's number stands for its first slice, as in CUDA."""
    devices = sim("sim:2x80GiB,mig=0:20GiB+40GiB", mask="1,0").devices
    assert [(d.index, d.total_mib) for d in devices] == [(1, 81920), (0, 20480)]


def test_prohibited_cards_are_left_out_and_said(sim: OpenSim) -> None:
    """A card that no program may use is not offered."""
    backend = sim("sim:2x8GiB,mode=0:prohibited")
    assert [device.index for device in backend.devices] == [1]
    assert "prohibited" in backend.note


def test_two_brokers_cannot_have_one_folder(sim: OpenSim) -> None:
    """The second is turned away with the folder and what to do."""
    first = sim("sim:1x8GiB")
    with pytest.raises(BrokerUnavailable) as caught:
        sim("sim:1x8GiB")
    assert first.directory in caught.value.message
    assert str(os.getpid()) in caught.value.message
    first.close()
    sim("sim:1x8GiB")


def test_a_folder_that_cannot_be_made_is_named(sim: OpenSim) -> None:
    """The reason and the cure, not a traceback."""
    with pytest.raises(PathError, match=r"/dev/null/x.*dir="):
        sim("sim:1x8GiB,dir=/dev/null/x")


def test_faults_outlive_the_broker(sim: OpenSim) -> None:
    """Opened again with the same text, the machine is as it was left."""
    first = sim("sim:2x8GiB")
    simfolder.set_device(first.directory, 1, state="lost")
    simfolder.add_foreign(first.directory, 0, 100, "colleague")
    first.close()
    again = sim("sim:2x8GiB")
    assert [r.state for r in again.read({}, {})] == ["ok", "lost"]
    assert used(again) == [100, None]


def test_another_text_makes_another_machine(sim: OpenSim) -> None:
    """No card and no foreign memory of the old description stays."""
    sim("sim:3x8GiB,foreign=0:1GiB,lost=1").close()
    again = sim("sim:2x16GiB")
    assert [device.total_mib for device in again.devices] == [16384, 16384]
    assert simfolder.card_indices(again.directory) == [0, 1]
    assert used(again) == [0, 0]


def test_foreign_memory_stays_until_it_is_removed(sim: OpenSim) -> None:
    """Holders without a pid are no process's and count all the same."""
    backend = sim("sim:2x24GiB,foreign=1:18GiB")
    assert used(backend) == [0, 18432]
    simfolder.add_foreign(backend.directory, 0, 5, "x")
    simfolder.remove_foreign(backend.directory, "spec0")
    assert used(backend) == [5, 0]


def test_a_pid_that_nobody_here_knows_is_shown(sim: OpenSim) -> None:
    """As a driver does that reports the pids of another namespace."""
    backend = sim("sim:1x10000")
    simfolder.add_foreign(backend.directory, 0, 1800, "ghost", pid=4_100_000)
    (reading,) = backend.read({}, {})
    assert reading.processes == (ProcessUse(4_100_000, 1800),)


def test_processes_of_a_device_are_summed(sim: OpenSim) -> None:
    """Base memory and every live process count."""
    backend = sim("sim:1x10000")
    simfolder.set_device(backend.directory, 0, base=50)
    add_process(backend, os.getpid(), 700)
    add_process(backend, os.getppid(), 300)
    (reading,) = backend.read({}, {})
    assert reading.used_mib == 1050
    assert set(reading.processes or ()) == {
        ProcessUse(os.getpid(), 700),
        ProcessUse(os.getppid(), 300),
    }


def test_another_process_under_the_same_pid_holds_nothing(sim: OpenSim) -> None:
    """A record counts only for the process that wrote it, and is tidied away after it."""
    backend = sim("sim:1x10000")
    path = add_process(backend, os.getpid(), 700, start=1)
    assert used(backend) == [0]
    assert not os.path.exists(path)


def test_a_zombie_holds_nothing(sim: OpenSim) -> None:
    """Its memory went when it died, not when its parent looks after it."""
    backend = sim("sim:1x10000")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    add_process(backend, child.pid, 700)
    assert used(backend) == [700]
    child.kill()
    wait_until(lambda: used(backend) == [0])  # not waited for: it is a zombie
    child.communicate()


def test_a_process_of_unknown_size_is_listed(sim: OpenSim) -> None:
    """Unknown stays unknown, never 0."""
    backend = sim("sim:1x10000")
    path = os.path.join(simfolder.procs_path(backend.directory), "na")
    simfolder.write_file(path, f"proc gpu=0 pid={os.getpid()} mem=N/A type=C live=1\n")
    (reading,) = backend.read({}, {})
    assert reading.processes == (ProcessUse(os.getpid(), None),)


@pytest.mark.parametrize(
    ("option", "used_mib", "processes"),
    [
        ("procs=no", 500, None),
        ("totals=no", None, (ProcessUse(0, 500),)),
        ("procs=no,totals=no", None, None),
    ],
)
def test_what_the_driver_does_not_say_is_unknown(
    sim: OpenSim, option: str, used_mib: int | None, processes: tuple[ProcessUse, ...] | None
) -> None:
    """Missing figures are None."""
    (reading,) = sim(f"sim:1x8000,foreign=0:500,{option}").read({}, {})
    assert (reading.state, reading.used_mib, reading.processes) == ("ok", used_mib, processes)


def test_faults_can_be_injected_while_it_runs(sim: OpenSim) -> None:
    """A rewritten card shows at the next look, with its reason, and heals the same way."""
    backend = sim("sim:2x8000")
    simfolder.set_device(backend.directory, 1, state="lost", reason="fell off the bus")
    assert [(r.state, r.reason) for r in backend.read({}, {})][1] == ("lost", "fell off the bus")
    simfolder.set_device(backend.directory, 1, state="stale", reason=None)
    assert backend.read({}, {})[1].state == "stale"
    simfolder.set_device(backend.directory, 1, state=None, used=4321)
    assert used(backend) == [0, 4321]


def test_one_slice_can_be_changed(sim: OpenSim) -> None:
    """A slice's record is its own."""
    backend = sim("sim:1x80GiB,mig=0:20GiB+40GiB,foreign=0.0:7")
    simfolder.set_slice(backend.directory, 0, 1, base=9)
    assert used(backend) == [7, 9]


def test_a_lost_card_of_the_description_is_lost(sim: OpenSim) -> None:
    """`lost=` marks a card that is there and cannot be reached."""
    assert [r.state for r in sim("sim:2x8000,lost=0").read({}, {})] == ["lost", "ok"]


def test_a_removed_card_and_a_garbled_card_harm_only_themselves(sim: OpenSim) -> None:
    """Faults are values of one reading."""
    backend = sim("sim:3x8000")
    os.unlink(simfolder.card_path(backend.directory, 0))
    simfolder.write_file(simfolder.card_path(backend.directory, 1), "gpu total=lots\n")
    readings = backend.read({}, {})
    assert [r.state for r in readings] == ["lost", "lost", "ok"]
    assert all(r.reason for r in readings[:2])


def test_a_garbled_record_harms_only_itself(sim: OpenSim, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and the others count."""
    backend = sim("sim:1x8000")
    add_process(backend, os.getpid(), 70)
    simfolder.write_file(
        os.path.join(simfolder.procs_path(backend.directory), "junk"), "proc gpu=zero\n"
    )
    assert used(backend) == [70]
    assert "record-unreadable" in caplog.text


def test_a_removed_folder_loses_every_device(sim: OpenSim) -> None:
    """The broker hears of it as a state, not as an exception."""
    backend = sim("sim:2x8000")
    shutil.rmtree(backend.directory)
    assert [r.state for r in backend.read({}, {})] == ["lost", "lost"]
    assert not backend.unchanged_since_last_read()


def test_a_removed_folder_can_be_made_again(sim: OpenSim) -> None:
    """The cards are there again, and what living processes held; what a dead one held is not."""
    backend = sim("sim:2x8000,foreign=1:500MiB")
    add_process(backend, os.getpid(), 70)
    with subprocess.Popen(["sleep", "60"]) as other:
        add_process(backend, other.pid, 30)
        assert used(backend) == [100, 500]
        other.kill()
    assert backend.in_place()
    shutil.rmtree(backend.directory)
    assert not backend.in_place()
    backend.restore()
    assert backend.in_place()
    assert used(backend) == [70, 500]
    with pytest.raises(BrokerUnavailable, match=f"pid {os.getpid()}"):
        sim("sim:2x8000")


def test_what_a_process_wrote_since_counts(sim: OpenSim) -> None:
    """A folder that is made again does not go back behind a newer record."""
    backend = sim("sim:1x8000")
    add_process(backend, os.getpid(), 70)
    assert used(backend) == [70]
    shutil.rmtree(backend.directory)
    os.makedirs(simfolder.procs_path(backend.directory))
    add_process(backend, os.getpid(), 90)
    backend.restore()
    assert used(backend) == [90]


def test_a_folder_that_the_user_named_is_not_made_again(sim: OpenSim, tmp_path: Path) -> None:
    """To remove it is how the loss of all devices is played."""
    backend = sim(f"sim:1x8000,dir={tmp_path}/cards")
    shutil.rmtree(backend.directory)
    assert backend.kept_files == ()
    assert backend.in_place()


def test_a_slow_driver_takes_its_time(sim: OpenSim) -> None:
    """`slow=` delays each look."""
    backend = sim("sim:1x8000,slow=0.2")
    began = time.monotonic()
    backend.read({}, {})
    assert time.monotonic() - began >= 0.2


def age(backend: SimulatedBackend) -> None:
    """Wait until the folder's times can be told from later ones."""
    folders = (backend.directory, simfolder.procs_path(backend.directory))
    wait_until(lambda: time.time_ns() - max(os.stat(f).st_mtime_ns for f in folders) > SETTLED_NS)


def test_an_idle_folder_need_not_be_read_again(sim: OpenSim) -> None:
    """Nothing written since the last look means nothing new to see."""
    backend = sim("sim:1x8000")
    assert not backend.unchanged_since_last_read()
    age(backend)
    backend.read({}, {})
    assert backend.unchanged_since_last_read()


def test_a_young_folder_counts_as_changed(sim: OpenSim) -> None:
    """File times tick coarsely: a second write in the same tick must not be missed."""
    backend = sim("sim:1x8000")
    now = time.time() + 3600
    os.utime(simfolder.procs_path(backend.directory), (now, now))
    backend.read({}, {})
    assert not backend.unchanged_since_last_read()


def test_every_write_shows_as_a_change(sim: OpenSim, tmp_path: Path) -> None:
    """A new holder, a rewritten one, a removed one and a changed card all show."""
    backend = sim("sim:1x8000")
    where = backend.directory
    for change in (
        lambda: simfolder.add_foreign(where, 0, 1, "x"),
        lambda: simfolder.add_foreign(where, 0, 2, "x"),
        lambda: simfolder.remove_foreign(where, "x"),
        lambda: simfolder.set_device(where, 0, base=5),
    ):
        age(backend)
        backend.read({}, {})
        assert backend.unchanged_since_last_read()
        change()
        assert not backend.unchanged_since_last_read()
    assert tmp_path.exists()


def test_a_young_record_is_read_again(sim: OpenSim) -> None:
    """Same inode, size and time tick, another figure: the newest is read all the same."""
    backend = sim("sim:1x8000")
    path = simfolder.add_foreign(backend.directory, 0, 100, "x")
    young = time.time_ns() + 3600 * 10**9
    for mib in (100, 200):
        text = simfolder.read_file(path).replace("mem=100M", f"mem={mib}M")
        with open(path, "r+", encoding="utf-8") as file:
            file.write(text)
        os.utime(path, ns=(young, young))
        assert used(backend) == [mib]


def test_cards_tell_how_near_they_are(sim: OpenSim) -> None:
    """As the description says, by UUID; of a pair that it does not name nothing is known."""
    backend = sim("sim:3x8GiB,link=0-1:nvlink,link=1-2:40")
    _, second, third = (info.uuid for info in backend.devices)
    assert [info.links for info in backend.devices] == [((second, 0),), ((third, 40),), ()]


def test_processes_say_how_busy_they_keep_a_device(sim: OpenSim, jobs: Jobs) -> None:
    """What they say is added up, to at most all of it; a device of which nobody says so is unknown."""
    backend = sim("sim:2x8GiB")
    for _ in range(2):
        jobs.holding(backend, "--memory", "1GiB", "--busy", "40")
    assert [reading.busy.percent for reading in backend.read({}, {}) if reading.busy] == [80, None]
    jobs.holding(backend, "--memory", "1GiB", "--busy", "40")
    busy = backend.read({}, {})[0].busy
    assert busy is not None
    assert busy.percent == 100
    assert [share for _, share in busy.processes or ()] == [40, 40, 40]
    simfolder.set_device(backend.directory, 1, util=30)
    assert [r.busy.percent for r in backend.read({}, {}) if r.busy] == [100, 30]
