"""How many CPUs and how much RAM this machine lets us use.

`os.cpu_count()` and MemTotal are wrong in containers, under Slurm and under taskset: what counts is the
smallest of the machine, the CPU affinity and the limits of every control group from our own up to
the root that we can see.

Control groups come in two versions, often both at once, and their mounts are anywhere: the folder
of a group is found through /proc/self/cgroup (which group) and /proc/self/mountinfo (where). A mount
may show only a part of the tree (its `root` field); a group outside that part has its limits at the
mount point, which is what a container sees as its own root.

Promises: at least one CPU; an unknown amount of RAM is None, never 0.
Must not be imported by a job's client: only the broker counts CPUs.
"""

from __future__ import annotations

import os

from grn.rules.cores import Core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["core_map", "memory_total_mib", "usable_cpus"]

_MIB = 1024**2
_NO_LIMIT_BYTES = 2**60  # version 1 writes "no limit" as almost 2^63
_OCTAL_ESCAPE_LENGTH = 4  # mountinfo writes a blank as \040


def usable_cpus(*, reserve: int = 2, root: str = "/") -> int:
    """Count the CPUs that jobs may use: min(affinity, quota) less `reserve`, at least 1.

    A quota of two and a half CPUs counts as two. `root` is where /proc and the mounts are looked
    for, so that tests can bring their own.
    """
    cpus = len(os.sched_getaffinity(0))
    quota = _smallest(_group_folders(root, "cpu"), _cpu_quota)
    if quota is not None:
        cpus = min(cpus, int(quota))
    return max(1, cpus - reserve)


def core_map(root: str = "/") -> list[Core]:
    """List the cores that jobs can be bound to, each with the physical one that it is a part of."""
    return [Core(number, _physical(number, root)) for number in sorted(os.sched_getaffinity(0))]


def _physical(core: int, root: str) -> int:
    """Name a physical core by the first of its threads: the kernel lists them as `0,8` or `0-1`."""
    path = f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    first = _read(_under(root, path)).replace("-", ",").partition(",")[0].strip()
    return int(first) if first.isdecimal() else core


def memory_total_mib(*, reserve_mib: int = 1024, root: str = "/") -> int | None:
    """Count the MiB of RAM that jobs may use: min(machine, limits) less `reserve_mib`."""
    limit_bytes = _smallest(_group_folders(root, "memory"), _memory_limit_bytes)
    known = [size for size in (_machine_bytes(root), limit_bytes) if size is not None]
    return max(0, int(min(known)) // _MIB - reserve_mib) if known else None


def _machine_bytes(root: str) -> int | None:
    for line in _read(_under(root, "/proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _smallest(
    folders: Iterator[tuple[str, bool]], limit: Callable[[str, bool], float | None]
) -> float | None:
    limits = [found for folder, unified in folders if (found := limit(folder, unified)) is not None]
    return min(limits, default=None)


def _cpu_quota(folder: str, unified: bool) -> float | None:  # noqa: FBT001 - called by _smallest only
    """Read how many CPUs' time a group may use, or None if it has no limit of its own."""
    if unified:
        words = _read(f"{folder}/cpu.max").split()
    else:
        words = [
            *_read(f"{folder}/cpu.cfs_quota_us").split(),
            *_read(f"{folder}/cpu.cfs_period_us").split(),
        ]
    match words:
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    return None  # `max`, -1, or a group without this controller


def _memory_limit_bytes(folder: str, unified: bool) -> float | None:  # noqa: FBT001 - the same
    text = _read(f"{folder}/{'memory.max' if unified else 'memory.limit_in_bytes'}").strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT_BYTES else None


def _group_folders(root: str, controller: str) -> Iterator[tuple[str, bool]]:
    """Yield the folders that limit us, own group first, each with whether it is of version 2."""
    groups = _own_groups(root)
    for unified, options, shown, mount_point in _group_mounts(root):
        group = groups.get("" if unified else controller)
        if group is None or not (unified or controller in options):
            continue
        for folder in _upwards(_inside(group, shown)):
            yield _under(root, mount_point + folder), unified


def _own_groups(root: str) -> dict[str, str]:
    """Map each version 1 controller, and "" for version 2, to the path of our group."""
    groups: dict[str, str] = {}
    for line in _read(_under(root, "/proc/self/cgroup")).splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            groups[""] = path
        else:
            groups.update((name, path) for name in controllers.split(",") if name)
    return groups


def _group_mounts(root: str) -> Iterator[tuple[bool, list[str], str, str]]:
    """Yield (version 2, mount options, part of the tree shown, mount point) of each mount.

    A line reads: id parent major:minor root mount-point options [tags…] - type source options.
    """
    for line in _read(_under(root, "/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        match left.split(), right.split():
            case [_, _, _, shown, point, *_], ["cgroup" | "cgroup2" as kind, _, options]:
                yield kind == "cgroup2", options.split(","), _unescape(shown), _unescape(point)
            case _:
                continue


def _inside(group: str, shown: str) -> str:
    """Turn the path of a group into one below a mount that shows the tree from `shown` on."""
    if shown == "/":
        inside = group
    elif group == shown or group.startswith(shown + "/"):
        inside = group[len(shown) :]
    else:
        return ""
    # "/../x" is a group outside our namespace: no folder here is ours but the top one.
    return "" if ".." in inside.split("/") else inside.rstrip("/")


def _upwards(path: str) -> Iterator[str]:
    """Yield `/a/b`, `/a`, and the empty path for the top."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def _unescape(field: str) -> str:
    start, *escaped = field.split("\\")
    digits = _OCTAL_ESCAPE_LENGTH - 1
    return start + "".join(chr(int(part[:digits], 8)) + part[digits:] for part in escaped)


def _under(root: str, path: str) -> str:
    return root.rstrip("/") + path


def _read(path: str) -> str:
    """Read a small file of the kernel; a missing one is no news: it says nothing."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""
