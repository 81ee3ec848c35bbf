"""How often the kernel has killed in our control group for want of the host's RAM.

A job that ends by SIGKILL says nothing about why; the kernel's count does. Both layouts are read:
the single hierarchy (`memory.events`, which counts the groups below, too) and the older one of a
hierarchy per controller (`memory.oom_control`). In a container the group's path may start above what
is mounted, so the mount's own root is taken off it.

Promises: `None` where there is nothing to read; never an error.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KillCount"]

_KEY = "oom_kill"
_USUAL = "/sys/fs/cgroup"
_ROOT, _MOUNT_POINT = 3, 4  # fields of a line of mountinfo


class KillCount:
    """The counter of the control group in which this process, and so its jobs, began."""

    def __init__(self, proc: str = "/proc/self", usual: str = _USUAL) -> None:
        self._proc = proc
        self._usual = usual
        self._path: str | None = None
        self._sought = False

    def read(self) -> int | None:
        """Return the count as of now."""
        if not self._sought:
            self._sought = True
            self._path = next((path for path in self._paths() if _count_in(path) is not None), None)
        return None if self._path is None else _count_in(self._path)

    def _paths(self) -> Iterator[str]:
        """Name the files that may hold it, the most likely ones first."""
        groups = _groups(_text(f"{self._proc}/cgroup"))
        for controller, path in groups:
            yield _file(os.path.join(self._usual, controller), path, controller)
        for controller, root, point in _mounts(_text(f"{self._proc}/mountinfo")):
            for wanted, path in groups:
                if wanted == controller:
                    yield _file(point, path.removeprefix(root.rstrip("/")), controller)


def _file(mount_point: str, path: str, controller: str) -> str:
    name = "memory.oom_control" if controller else "memory.events"
    return os.path.join(mount_point, path.lstrip("/"), name)


def _groups(text: str) -> list[tuple[str, str]]:
    """Return ("memory" or "" for the single hierarchy, path) for each group that may count."""
    found = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            found.append(("memory" if controllers else "", path))
    return found


def _mounts(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (controller as above, root within the hierarchy, mount point)."""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) <= _MOUNT_POINT or not kind:
            continue
        if kind[0] == "cgroup2":
            yield "", fields[_ROOT], fields[_MOUNT_POINT]
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            yield "memory", fields[_ROOT], fields[_MOUNT_POINT]


def _count_in(path: str) -> int | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == _KEY and value.isdigit():
            return int(value)
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:  # no such hierarchy here, or not ours to read
        return ""
