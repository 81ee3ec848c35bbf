"""How many CPUs and how much RAM jobs may use, with a machine made of files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from grn.hostcpu import core_map, memory_total_mib, usable_cpus
from grn.rules.cores import Core

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024**2
V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_SYSTEMD_MOUNT = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd"
HYBRID_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw"


class Machine:
    """A root folder with /proc and control groups as a test describes them."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder)
        self._folder = folder

    def write(self, path: str, text: str) -> None:
        """Write one file of the kernel."""
        file = self._folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def groups(self, cgroup: str, *mounts: str) -> None:
        """Describe our groups, as in /proc/self/cgroup, and the mounts that show them."""
        other = "23 20 0:20 / /proc rw,nosuid - proc proc rw"
        self.write("/proc/self/cgroup", cgroup + "\n")
        self.write("/proc/self/mountinfo", "\n".join([other, *mounts]) + "\n")

    def memory(self, mib: int) -> None:
        """Give the machine this much RAM."""
        self.write("/proc/meminfo", f"MemTotal:       {mib * 1024} kB\nMemFree:  1 kB\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Give a machine of 32 cores that tells nothing else yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(32)))
    return Machine(tmp_path)


def cpus(machine: Machine) -> int:
    """Count what jobs may use without the reserve."""
    return usable_cpus(reserve=0, root=machine.root)


def test_without_limits_the_affinity_less_the_reserve_counts(machine: Machine) -> None:
    """Two cores are left to the rest of the machine."""
    assert usable_cpus(root=machine.root) == 30


def test_the_affinity_counts_and_not_the_cores(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is pinned to four cores has four."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 5, 8, 9})
    assert cpus(machine) == 4


def test_at_least_one_core_is_left(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve larger than the machine still lets one job run."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert usable_cpus(root=machine.root) == 1


def test_a_quota_of_version_2_counts(machine: Machine) -> None:
    """Thirty-two cores with a quota for two are two."""
    machine.groups("0::/job", V2_MOUNT)
    machine.write("/sys/fs/cgroup/job/cpu.max", "200000 100000\n")
    assert cpus(machine) == 2
    assert usable_cpus(root=machine.root) == 1


def test_the_smallest_quota_on_the_way_up_counts(machine: Machine) -> None:
    """A limit of a group above ours binds us, too; `max` and missing files are no limits."""
    machine.groups("0::/slice/job/step", V2_MOUNT)
    machine.write("/sys/fs/cgroup/slice/job/step/cpu.max", "max 100000\n")
    machine.write("/sys/fs/cgroup/slice/job/cpu.max", "800000 100000\n")
    machine.write("/sys/fs/cgroup/slice/cpu.max", "350000 100000\n")
    assert cpus(machine) == 3


def test_half_a_core_is_one(machine: Machine) -> None:
    """There is never less than one CPU."""
    machine.groups("0::/", V2_MOUNT)
    machine.write("/sys/fs/cgroup/cpu.max", "50000 100000\n")
    assert cpus(machine) == 1


def test_a_quota_of_version_1_counts(machine: Machine) -> None:
    """The quota is found under the mount that carries the cpu controller."""
    machine.groups("2:cpuacct,cpu:/a/b\n9:name=systemd:/s", V1_SYSTEMD_MOUNT, V1_CPU_MOUNT)
    machine.write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n")
    machine.write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n")
    machine.write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n")
    machine.write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n")
    assert cpus(machine) == 6


def test_both_versions_at_once_are_both_asked(machine: Machine) -> None:
    """On a hybrid machine the smaller limit of the two trees counts."""
    machine.groups("1:cpu:/one\n4:memory:/m\n0::/two", V1_CPU_MOUNT, V1_MEMORY_MOUNT, HYBRID_MOUNT)
    machine.write("/sys/fs/cgroup/cpu/one/cpu.cfs_quota_us", "900000")
    machine.write("/sys/fs/cgroup/cpu/one/cpu.cfs_period_us", "100000")
    machine.write("/sys/fs/cgroup/unified/two/cpu.max", "700000 100000")
    assert cpus(machine) == 7
    machine.memory(64 * 1024)
    machine.write("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", str(4096 * MIB))
    assert memory_total_mib(reserve_mib=0, root=machine.root) == 4096


def test_a_mount_that_shows_a_part_of_the_tree(machine: Machine) -> None:
    """In a container the mount starts at its own group, whose path is left out below it."""
    part = "30 20 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw"
    machine.groups("0::/docker/abc/inner", part)
    machine.write("/sys/fs/cgroup/inner/cpu.max", "max 100000")
    machine.write("/sys/fs/cgroup/cpu.max", "500000 100000")
    assert cpus(machine) == 5


@pytest.mark.parametrize("group", ["/../../other", "/docker/abcdef", "/elsewhere"])
def test_a_group_that_the_mount_does_not_show_is_limited_at_the_mount(
    machine: Machine, group: str
) -> None:
    """The mount point is all that can be known of a group outside our view."""
    shown = "/docker/abc" if group.startswith("/docker") else "/"
    machine.groups(f"0::{group}", f"30 20 0:26 {shown} /cg rw - cgroup2 cgroup2 rw")
    machine.write("/cg/cpu.max", "500000 100000")
    machine.write("/cgdef/cpu.max", "100000 100000")
    assert cpus(machine) == 5


def test_a_mount_point_with_a_blank_is_found(machine: Machine) -> None:
    """The kernel writes a blank as an escape."""
    machine.groups("0::/", r"30 20 0:26 / /my\040groups rw - cgroup2 cgroup2 rw")
    machine.write("/my groups/cpu.max", "400000 100000")
    assert cpus(machine) == 4


@pytest.mark.parametrize("text", ["", "garbage", "1 0", "-1 100000", "max max"])
def test_an_unreadable_quota_is_no_quota(machine: Machine, text: str) -> None:
    """What makes no sense binds nobody."""
    machine.groups("0::/", V2_MOUNT)
    machine.write("/sys/fs/cgroup/cpu.max", text)
    assert cpus(machine) == 32


def test_the_machines_ram_less_the_reserve_counts(machine: Machine) -> None:
    """A GiB is left to the rest of the machine."""
    machine.memory(16 * 1024)
    assert memory_total_mib(root=machine.root) == 15 * 1024


def test_unknown_ram_is_unknown(machine: Machine) -> None:
    """No figure is None, never 0."""
    assert memory_total_mib(root=machine.root) is None


def test_a_memory_limit_above_ours_counts(machine: Machine) -> None:
    """The smallest limit on the way up binds; `max` does not."""
    machine.memory(64 * 1024)
    machine.groups("0::/slice/job", V2_MOUNT)
    machine.write("/sys/fs/cgroup/slice/job/memory.max", "max\n")
    machine.write("/sys/fs/cgroup/slice/memory.max", f"{8192 * MIB}\n")
    assert memory_total_mib(root=machine.root) == 7168


def test_a_limit_larger_than_the_machine_changes_nothing(machine: Machine) -> None:
    """A generous limit adds no RAM."""
    machine.memory(2048)
    machine.groups("0::/", V2_MOUNT)
    machine.write("/sys/fs/cgroup/memory.max", str(10**15))
    assert memory_total_mib(reserve_mib=0, root=machine.root) == 2048


def test_the_almost_endless_number_of_version_1_is_no_limit(machine: Machine) -> None:
    """Version 1 has no word for "none" but a number near 2^63."""
    machine.groups("4:memory:/m", V1_MEMORY_MOUNT)
    machine.write("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_total_mib(root=machine.root) is None
    machine.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", str(3000 * MIB))
    assert memory_total_mib(reserve_mib=0, root=machine.root) == 3000


def test_a_reserve_larger_than_the_machine_leaves_nothing(machine: Machine) -> None:
    """Less than nothing is nothing."""
    machine.memory(512)
    assert memory_total_mib(root=machine.root) == 0


def test_the_real_machine_answers() -> None:
    """Whatever this machine is, there is a CPU and some RAM."""
    assert 1 <= usable_cpus(reserve=0) <= (os.cpu_count() or 1)
    assert (memory_total_mib(reserve_mib=0) or 1) > 0


def test_cores_know_with_whom_they_share_a_physical_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lists the threads of a physical core in either of two ways, or says nothing."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {9, 1, 4, 5})
    for core, siblings in {1: "1,9", 9: "1,9", 4: "4-5", 5: "4-5"}.items():
        machine.write(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list", siblings)
    assert core_map(machine.root) == [Core(1, 1), Core(4, 4), Core(5, 4), Core(9, 1)]


def test_cores_of_which_nothing_is_known_are_physical_ones(machine: Machine) -> None:
    """Where the kernel does not say, each core is one of its own."""
    assert core_map(machine.root) == [Core(number, number) for number in range(32)]
