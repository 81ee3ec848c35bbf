"""A stand-in driver and stand-in jobs act as one machine, seen through the real binding."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually
from tests.fakenvml.asking import Driver
from tests.fakenvml.box import LOST, UNKNOWN, VERSION_MISMATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]
    NewDriver = Callable[[Box], Driver]

INIT = "N.nvmlInit()"


@pytest.fixture
def new_driver(clean_environ: None) -> Iterator[Callable[[Box], Driver]]:
    """Return a function that starts a program which has the driver of a box initialised."""
    del clean_environ
    started: list[Driver] = []

    def start(box: Box) -> Driver:
        started.append(Driver(box, dict(os.environ)))
        started[-1](INIT)
        return started[-1]

    yield start
    for driver in started:
        driver.close()


class Jobs:
    """Stand-in jobs on a box, ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, box: Box, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start a job in bus order, as GRN does."""
        env = {**os.environ, **box.job_environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environ}
        argv = [sys.executable, "-m", "grn.testing.job", *words]
        job = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)
        self.started.append(job)
        return job

    def holding(self, box: Box, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start a job and return once it holds its memory; it runs until the end of the test."""
        held = self.folder / f"held{len(self.started)}"
        job = self.start(box, *words, f"--hold-file={held}", "--seconds=600", **environ)
        eventually(held.exists, what="a job holds memory")
        return job


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Start stand-in jobs."""
    started = Jobs(tmp_path)
    yield started
    for job in started.started:
        job.kill()
        job.communicate()


def test_two_boxes_have_no_device_in_common(new_box: NewBox, new_driver: NewDriver) -> None:
    """Each machine's UUIDs are its own, and the driver says those that the box says."""
    one, other = new_box("2x8GiB"), new_box("2x8GiB")
    assert not set(one.uuids) & set(other.uuids)
    driver = new_driver(one)
    assert [driver(f"N.nvmlDeviceGetUUID(h({i}))") for i in range(2)] == one.uuids
    assert driver("N.nvmlDeviceGetMemoryInfo(h(1)).total >> 20") == 8192


@pytest.mark.parametrize("style", ["index", "uuid"])
def test_a_job_shows_up_where_its_mask_says(
    new_box: NewBox, new_driver: NewDriver, jobs: Jobs, style: str
) -> None:
    """By number in bus order and by full UUID: the driver lists the job's pid and its memory."""
    box = new_box("3x8GiB,speed=0:5")
    job = jobs.holding(
        box, "--memory=3000MiB", CUDA_VISIBLE_DEVICES="2" if style == "index" else box.uuid(2)
    )
    driver = new_driver(box)
    assert driver("[used(h(i)) for i in range(3)]") == [{}, {}, {job.pid: 3000}]
    assert driver("N.nvmlDeviceGetMemoryInfo(h(2)).used >> 20") == 3000
    job.kill()
    eventually(lambda: driver("used(h(2))") == {}, what="the memory of a killed job is free")


def test_a_job_in_a_slice_is_seen_in_that_slice(
    new_box: NewBox, new_driver: NewDriver, jobs: Jobs
) -> None:
    """A MIG UUID gives the job that slice and no other."""
    box = new_box("1x80GiB,mig=0:20GiB+10GiB")
    job = jobs.holding(box, "--memory=9GiB", CUDA_VISIBLE_DEVICES=box.uuid(0, 1))
    driver = new_driver(box)
    seen = [driver(f"used(slice_({box.uuid(0, k)!r}))") for k in range(2)]
    assert seen == [{}, {job.pid: 9216}]
    over = jobs.start(box, "--memory=2GiB", CUDA_VISIBLE_DEVICES=box.uuid(0, 1))
    assert "CUDA out of memory" in over.communicate(timeout=PATIENCE_S)[1]


def test_a_full_card_refuses_a_job(new_box: NewBox, jobs: Jobs) -> None:
    """Memory of others, seen or not, leaves less for a job, which fails as a framework does."""
    box = new_box("1x8GiB,foreign=0:3GiB")
    box.add_process(0, 3000, pid=os.getpid())
    job = jobs.start(box, "--memory=2200MiB")
    assert "CUDA out of memory" in job.communicate(timeout=PATIENCE_S)[1]
    assert job.returncode == 1


def test_an_exclusive_card_refuses_a_second_process(new_box: NewBox, jobs: Jobs) -> None:
    """In exclusive-process mode the second finds all cards busy."""
    box = new_box("1x8GiB,mode=exclusive")
    jobs.holding(box, "--memory=1GiB")
    second = jobs.start(box, "--memory=1GiB")
    assert "busy or unavailable" in second.communicate(timeout=PATIENCE_S)[1]


def test_accounting_remembers_a_spike(new_box: NewBox, new_driver: NewDriver, jobs: Jobs) -> None:
    """The largest use of a process stays in the driver's accounts after its end."""
    box = new_box("1x8GiB", acct=1)
    job = jobs.start(box, "--memory=1GiB", "--spike=0.05:4GiB:0.01", "--seconds=0.1")
    job.communicate(timeout=PATIENCE_S)
    driver = new_driver(box)
    assert driver("used(h(0))") == {}
    assert driver("N.nvmlDeviceGetAccountingPids(h(0))") == [job.pid]
    account = f"N.nvmlDeviceGetAccountingStats(h(0), {job.pid})"
    assert driver(f"{account}.maxMemoryUsage >> 20") == 5120
    assert driver(f"{account}.isRunning") == 0


def test_a_figure_may_be_missing(new_box: NewBox, new_driver: NewDriver, jobs: Jobs) -> None:
    """Where the driver gives no figure for a process, the card's own figure is still right."""
    box = new_box("1x8GiB", procmem="N/A")
    job = jobs.holding(box, "--memory=1GiB")
    driver = new_driver(box)
    assert driver("used(h(0))") == {job.pid: None}
    assert driver("N.nvmlDeviceGetMemoryInfo(h(0)).used >> 20") == 1024
    box.set(0, procs="no")
    assert driver("used(h(0))") == ("error", 3)
    box.set(0, total=None)
    assert driver("N.nvmlDeviceGetMemoryInfo(h(0))") == ("error", 3)


def test_pids_may_be_those_of_another_namespace(
    new_box: NewBox, new_driver: NewDriver, jobs: Jobs
) -> None:
    """Inside a container the host's pids are shown, or none; the memory counts in both."""
    box = new_box()
    job = jobs.holding(box, "--memory=1GiB")
    driver = new_driver(box)
    box.shift_pids(100_000_000)
    assert driver("used(h(0))") == {100_000_000 + job.pid: 1024}
    box.hide_pids()
    assert driver("used(h(0))") == {}
    assert driver("N.nvmlDeviceGetMemoryInfo(h(0)).used >> 20") == 1024


def test_a_client_of_mps_is_listed_in_both_ways(new_box: NewBox, new_driver: NewDriver) -> None:
    """An MPS client is a compute process and an MPS one; its server is only the first."""
    box = new_box()
    box.add_process(0, 500, pid=os.getpid(), kind="CM")
    box.add_process(0, 30, pid=os.getppid())
    driver = new_driver(box)
    assert set(driver("used(h(0))")) == {os.getpid(), os.getppid()}
    clients = driver("[p.pid for p in N.nvmlDeviceGetMPSComputeRunningProcesses(h(0))]")
    assert clients == [os.getpid()]


def test_memory_of_a_process_goes_with_it(new_box: NewBox, new_driver: NewDriver) -> None:
    """Somebody else's memory is free once their process has ended, or is taken away by hand."""
    box = new_box()
    other = subprocess.Popen(["sleep", "600"])
    box.add_process(0, 700, pid=other.pid)
    unseen = box.add_process(0, 100)
    driver = new_driver(box)
    assert driver("used(h(0))") == {other.pid: 700}
    other.kill()
    other.wait()
    assert driver("used(h(0))") == {}
    assert driver("N.nvmlDeviceGetMemoryInfo(h(0)).used >> 20") == 100
    box.remove_process(unseen)
    assert driver("N.nvmlDeviceGetMemoryInfo(h(0)).used") == 0


def test_a_lost_card_disturbs_no_other(new_box: NewBox, new_driver: NewDriver, jobs: Jobs) -> None:
    """Each call on it and each program on it fails until it is found."""
    box = new_box("2x8GiB")
    driver = new_driver(box)
    box.lose(1)
    assert driver("N.nvmlDeviceGetCount()") == 2
    assert driver("h(1)") == ("error", LOST)
    assert driver("used(h(0))") == {}
    job = jobs.start(box, "--memory=1GiB", CUDA_VISIBLE_DEVICES="1")
    assert "GPU is lost" in job.communicate(timeout=PATIENCE_S)[1]
    box.find(1)
    assert driver("used(h(1))") == {}


def test_error_events_reach_who_listened_before(new_box: NewBox, new_driver: NewDriver) -> None:
    """An event is told once to a set that was there; a later set does not hear of it."""
    box = new_box("2x8GiB")
    driver = new_driver(box)
    register = "[N.nvmlDeviceRegisterEvents(h(i), 8, s) for i in (0, 1)]"  # 8: Xid errors
    new_set = f"(s := N.nvmlEventSetCreate()) and {register} and None"
    driver(new_set)
    box.xid(1, 31)
    wait = "(e := N.nvmlEventSetWait_v2(s, {})) and (e.eventData, N.nvmlDeviceGetIndex(e.device))"
    assert driver(wait.format(20000)) == (31, 1)
    assert driver(wait.format(20)) == ("error", 10)
    driver(new_set)
    assert driver(wait.format(20)) == ("error", 10)


def test_health_can_be_asked_for(new_box: NewBox, new_driver: NewDriver) -> None:
    """Remapped rows, uncorrected errors and the recovery action are as the box has them."""
    box = new_box(remap="0,1,1,0", ecc=3, recovery=2)
    driver = new_driver(box)
    assert driver("N.nvmlDeviceGetRemappedRows(h(0))") == (0, 1, 1, 0)
    assert driver("N.nvmlDeviceGetTotalEccErrors(h(0), 1, 0)") == 3
    fields = driver(
        "[(v.nvmlReturn, v.value.uiVal) for v in N.nvmlDeviceGetFieldValues(h(0), [230, 144, 999])]"
    )
    assert fields == [(0, 2), (0, 1), (3, 0)]


def test_a_delay_ends_when_it_is_healed(new_box: NewBox, new_driver: NewDriver) -> None:
    """A call that would take ten minutes answers once the driver is well again."""
    box = new_box()
    driver = new_driver(box)
    stuck = box.fail("nvmlDeviceGetMemoryInfo", delay_s=600, hold=False)
    driver.ask("N.nvmlDeviceGetMemoryInfo(h(0)).used")
    box.heal(stuck)
    assert driver.answer() == 0


def test_a_stuck_driver_holds_up_every_card(new_box: NewBox, new_driver: NewDriver) -> None:
    """While a call on one card does not return, no call on another does."""
    box = new_box("2x8GiB")
    driver = new_driver(box)
    stuck = box.fail(card=0, delay_s=600)
    driver("(slow := later(lambda: used(h(0)))) and None")
    assert driver("blocked(1)")
    box.heal(stuck)
    assert driver("slow.result()") == {}


def test_a_stuck_card_may_be_the_only_one(new_box: NewBox, new_driver: NewDriver) -> None:
    """With `hold=False` calls on another card return at once."""
    box = new_box("2x8GiB")
    driver = new_driver(box)
    stuck = box.fail(card=0, delay_s=600, hold=False)
    driver("(slow := later(lambda: used(h(0)))) and None")
    assert driver("blocked(0)")
    assert driver("used(h(1))") == {}
    assert driver("slow.done()") is False
    box.heal(stuck)
    assert driver("slow.result()") == {}


def test_a_driver_may_go_and_come_back(new_box: NewBox, new_driver: NewDriver) -> None:
    """Without it calls say so; once it is back, who had it initialised must do so anew."""
    box = new_box()
    driver = new_driver(box)
    box.remove_driver()
    assert driver("N.nvmlDeviceGetCount()") == ("error", 9)
    assert driver(INIT) == ("error", 9)
    box.restore_driver()
    assert driver("N.nvmlDeviceGetCount()") == ("error", UNKNOWN)
    assert driver(f"N.nvmlShutdown() or {INIT} or N.nvmlDeviceGetCount()") == 1


def test_a_library_may_not_match_its_driver(new_box: NewBox, new_driver: NewDriver) -> None:
    """The first call says that the versions differ."""
    box = new_box()
    mismatch = box.fail("nvmlInit", code=VERSION_MISMATCH)
    driver = new_driver(box)
    assert driver(INIT) == ("error", VERSION_MISMATCH)
    box.heal(mismatch)
    assert driver(INIT) is None
