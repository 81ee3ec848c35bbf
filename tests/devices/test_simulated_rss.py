"""Resident memory in place of device memory."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from grn.devices.rss import SCAN_EVERY_S, RssMeter
from tests.devices.machines import wait_until

if TYPE_CHECKING:
    from tests.devices.machines import Jobs, OpenSim


class FakeTable:
    """Root 1 with child 2; process 9 left the tree and carries the mark of lease 'a'."""

    def __init__(self) -> None:
        self.rss = {1: 100, 2: 10, 9: 5}
        self.marked = {"a": [1, 2, 9]}
        self.scans = 0

    def descendants(self, pid: int) -> list[int]:
        """Below 1 is 2."""
        return [2] if pid == 1 else []

    def rss_mib(self, pid: int) -> int | None:
        """Return the table's figure."""
        return self.rss.get(pid)

    def with_marker(self) -> dict[str, list[int]]:
        """Count the scan."""
        self.scans += 1
        return self.marked


def test_tree_and_marked_processes_count_once() -> None:
    """A process found in two ways is one process."""
    found = RssMeter(FakeTable(), lambda: 0.0).measure({"a": [1]}, {"a": ["U"]})
    assert {use.pid: use.mib for use in found["a"]} == {1: 100, 2: 10, 9: 5}


def test_all_processes_are_scanned_once_a_second_at_most() -> None:
    """Looking for marks is dear; the clock decides."""
    table, now = FakeTable(), [0.0]
    meter = RssMeter(table, lambda: now[0])
    for now[0] in (0.0, 0.1, 0.9 * SCAN_EVERY_S, SCAN_EVERY_S):
        meter.measure({"a": [1]}, {"a": ["U"]})
    assert table.scans == 2


def test_a_root_that_vanishes_is_followed_at_once() -> None:
    """Its children are reparented: only their mark tells whose they are."""
    table = FakeTable()
    meter = RssMeter(table, lambda: 0.0)
    meter.measure({"a": [1]}, {"a": ["U"]})
    found = meter.measure({"a": []}, {"a": ["U"]})
    assert table.scans == 2
    assert [use.pid for use in found["a"]] == [1, 2, 9]


def test_a_lease_without_a_device_is_not_measured() -> None:
    """There is no place to put the figure."""
    assert RssMeter(FakeTable(), lambda: 0.0).measure({"a": [1]}, {"a": []}) == {}


def test_the_memory_of_real_processes_shows_on_the_lease_device(sim: OpenSim, jobs: Jobs) -> None:
    """Main process and children count on the lease's first device, and on no other."""
    backend = sim("sim:2x4GiB,meter=rss")
    job = jobs.holding(backend, "--memory", "96MiB", "--children", "1", "--child-memory", "64MiB")
    place = [backend.devices[1].uuid, backend.devices[0].uuid]
    first, second = backend.read({"a": [job.pid]}, {"a": place})
    assert first.used_mib == 0
    assert second.used_mib is not None
    assert 160 <= second.used_mib < 300
    assert len(second.processes or ()) == 2


def test_a_process_that_left_its_tree_is_found_by_its_mark(sim: OpenSim) -> None:
    """A daemon of its own session still counts for the lease that it came from."""
    backend = sim("sim:1x4GiB,meter=rss")
    lease = f"lost-child-{os.getpid()}"  # another run of the tests has others
    daemon = (
        "import os\nif os.fork(): os._exit(0)\nos.setsid(); print(os.getpid(), flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", daemon],
        env={**os.environ, "GRN_LEASE": lease},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    pid = int(process.stdout.readline())
    process.wait()
    (reading,) = backend.read({lease: []}, {lease: [backend.devices[0].uuid]})
    assert [use.pid for use in reading.processes or ()] == [pid]
    process.communicate()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_resident_memory_is_never_called_unchanged(sim: OpenSim) -> None:
    """Nothing is written when a process grows."""
    backend = sim("sim:1x4GiB,meter=rss")
    backend.read({}, {})
    assert not backend.unchanged_since_last_read()
