"""The kernel's count of what it killed for want of the host's RAM, as control groups show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.supervise.hostram import KillCount

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = "low 0\nhigh 4\nmax 17\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


class Kernel:
    """A `/proc/self` and a tree of control groups, written for one test."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.groups = folder / "groups"
        self.proc.mkdir()
        self.groups.mkdir()

    def count(self) -> KillCount:
        """Return the counter that is found there."""
        return KillCount(str(self.proc), str(self.groups))

    def says(self, name: str, text: str) -> None:
        """Write a file of `/proc/self`."""
        (self.proc / name).write_text(text)

    def group(self, path: str, name: str, text: str) -> None:
        """Write a file of a control group."""
        (self.groups / path).mkdir(parents=True, exist_ok=True)
        (self.groups / path / name).write_text(text)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """Return a machine without control groups."""
    return Kernel(tmp_path)


def test_the_single_hierarchy_is_read(kernel: Kernel) -> None:
    """`memory.events` of our own group, each time anew."""
    kernel.says("cgroup", "0::/user.slice/session-1.scope\n")
    kernel.group("user.slice/session-1.scope", "memory.events", EVENTS.format(2))
    count = kernel.count()
    assert count.read() == 2
    kernel.group("user.slice/session-1.scope", "memory.events", EVENTS.format(3))
    assert count.read() == 3


def test_the_hierarchy_of_the_memory_controller_is_read(kernel: Kernel) -> None:
    """`memory.oom_control`, where each controller has a hierarchy of its own."""
    kernel.says("cgroup", "9:cpu,cpuacct:/elsewhere\n4:memory:/jobs/1\n0::/\n")
    kernel.group("memory/jobs/1", "memory.oom_control", CONTROL.format(7))
    assert kernel.count().read() == 7


def test_the_place_of_the_mount_is_found(kernel: Kernel) -> None:
    """In a container the path starts above what is mounted, and the mount may be anywhere."""
    kernel.says("cgroup", "4:memory:/docker/abc/inner\n")
    point = kernel.groups / "own"
    kernel.says(
        "mountinfo",
        "22 27 0:21 / /proc rw - proc proc rw\n"
        f"35 31 0:32 /docker/abc {point} ro,nosuid shared:9 - cgroup cgroup rw,memory\n",
    )
    kernel.group("own/inner", "memory.oom_control", CONTROL.format(1))
    assert kernel.count().read() == 1


@pytest.mark.parametrize("cgroup", ["", "0::/\n", "0::/gone\n4:memory:/gone\n"])
def test_where_nothing_counts_nothing_is_claimed(kernel: Kernel, cgroup: str) -> None:
    """No control groups, the root group (which has no such file), or a group that is gone."""
    kernel.says("cgroup", cgroup)
    assert kernel.count().read() is None


def test_a_file_that_goes_away_is_no_error(kernel: Kernel) -> None:
    """The group may be removed, or the file of an old kernel lack the line."""
    kernel.says("cgroup", "0::/a\n")
    kernel.group("a", "memory.events", EVENTS.format(2))
    count = kernel.count()
    assert count.read() == 2
    kernel.group("a", "memory.events", "low 0\n")
    assert count.read() is None
