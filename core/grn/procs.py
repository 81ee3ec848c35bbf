"""What the kernel says of processes, read from `/proc`.

Promises: a process counts as gone only on proof (no such process, another start time under the same
number, or a zombie); whatever cannot be read is `None`, never a guess. Each function reads as few
files as it can, because brokers and supervisors call them often.

Must not: signal anything (signal 0 asks, it does not signal), keep state, or import psutil.
"""

from __future__ import annotations

import os

__all__ = [
    "BROKER_SIGN",
    "ProcessTable",
    "ancestors",
    "birth",
    "cgroups",
    "children",
    "descendants",
    "exists",
    "identity",
    "in_first_pid_namespace",
    "is_alive",
    "is_broker",
    "marker",
    "parent",
    "rss_mib",
    "start_time",
    "uid",
    "with_marker",
]

BROKER_SIGN = "GRN_BROKER"
_PROC = "/proc"
_MARKER = b"GRN_LEASE="
_DEEPEST = 128
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO: a constant of the kernel
_STAT_BYTES = 1024  # a stat line has 52 numbers and a name of at most 64 bytes

_EXEC_LOOKS = 1000  # exec is done after a few; the bound is for what we did not think of

# Positions in /proc/<pid>/stat after the last ')', where field 3 (the state) comes first.
_STATE, _PPID, _FLAGS, _THREADS, _START = 0, 1, 6, 17, 19
_START_CODE, _ENV_START, _ENV_END = 23, 47, 48
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags


def start_time(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None when it is gone."""
    fields = _stat(pid)
    return None if fields is None or _is_dead(fields) else int(fields[_START])


def parent(pid: int) -> int | None:
    """Return the parent's pid; None when the process is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_PPID])


def identity(pid: int) -> int | None:
    """Return a number that changes when another process has the pid; None when there is none.

    A quarter of the cost of `start_time`. It may also change for no reason: then ask that one.
    """
    try:
        return os.stat(f"{_PROC}/{pid}").st_ino
    except OSError:
        return None


def ancestors(pid: int) -> tuple[int, ...]:
    """Return the pids above a process, its parent first, init left out."""
    found: list[int] = []
    above = parent(pid)
    while above is not None and above > 1 and len(found) < _DEEPEST:
        found.append(above)
        above = parent(above)
    return tuple(found)


def birth(pid: int) -> tuple[int, int] | None:
    """Return start time and parent's pid, in one read; None: no such process, or hidden from us.

    A zombie has them too: until it is waited for, its number is nobody else's.
    """
    fields = _stat(pid)
    return None if fields is None else (int(fields[_START]), int(fields[_PPID]))


def exists(pid: int) -> bool:
    """Say whether the number names a process in our pid namespace: a zombie and a hidden one too."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(pid: int, start: int | None) -> bool:
    """Say whether the process that began at `start` still lives (any start for `start=None`).

    EPERM means alive: a process that we may not signal is somebody's running process.
    """
    if pid <= 0:
        return False
    fields = _stat(pid)
    if fields is not None:
        return not _is_dead(fields) and (start is None or int(fields[_START]) == start)
    # No stat to read: either gone, or hidden from us (the mount option hidepid). Only kill can tell.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # It answered although it had just been missing, so this number was given away in between.
    again = start_time(pid)
    return again is not None and (start is None or again == start)


def is_broker(pid: int) -> bool:
    """Say whether the process is a broker that was started on demand: nobody's left-over."""
    block = _environment(pid)
    sign = f"{BROKER_SIGN}=1\0".encode()
    return block is not None and (block.startswith(sign) or b"\0" + sign in block)


def marker(pid: int) -> str | None:
    """Return the lease id in the process's initial environment; None if absent or unreadable."""
    block = _environment(pid)
    if not block:
        return None
    at = 0 if block.startswith(_MARKER) else block.find(b"\0" + _MARKER) + 1
    if not block.startswith(_MARKER, at):
        return None
    value = block[at + len(_MARKER) :].partition(b"\0")[0]
    return os.fsdecode(value) or None


def cgroups(pid: int) -> tuple[str, ...]:
    """Return the paths of the process's cgroup, one if all hierarchies agree; () if it is gone.

    Everybody may read them, whoever's process it is.
    """
    lines = (_read(f"{_PROC}/{pid}/cgroup") or b"").splitlines()
    return tuple({os.fsdecode(line.split(b":", 2)[2]): None for line in lines})


def in_first_pid_namespace() -> bool:
    """Say whether we see every process of this machine under its own number."""
    try:
        return os.readlink(f"{_PROC}/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Return the pids of the direct children, started by any of the process's threads."""
    try:
        threads = os.listdir(f"{_PROC}/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        block = _read(f"{_PROC}/{pid}/task/{thread}/children")
        if block is None and not _kernel_lists_children():
            return [child for child in _pids() if parent(child) == pid]
        found.extend(int(word) for word in (block or b"").split())
    return found


def descendants(pid: int) -> list[int]:
    """Return children, their children and so on, nearest first; the process itself is left out."""
    found: list[int] = []
    seen = {pid}
    queue = [pid]
    while queue:
        fresh = [child for child in children(queue.pop(0)) if child not in seen]
        seen.update(fresh)
        found.extend(fresh)
        queue.extend(fresh)
    return found


def rss_mib(pid: int) -> int | None:
    """Return the resident memory in MiB, rounded up; None when the process is gone."""
    block = _read(f"{_PROC}/{pid}/statm")
    if not block:
        return None
    return -(-int(block.split()[1]) * _PAGE // _MIB)


def uid(pid: int) -> int | None:
    """Return the real user id; None when the process is gone.

    Read from `status`: the owner of the `/proc/<pid>` folder is root for non-dumpable processes.
    """
    for line in (_read(f"{_PROC}/{pid}/status") or b"").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return None


def with_marker() -> dict[str, list[int]]:
    """Map each lease id to the pids that carry it, in one scan.

    Sees the caller's own processes; for root, whose broker serves several users, everybody's.
    """
    found: dict[str, list[int]] = {}
    for pid in _pids():
        lease = marker(pid)
        if lease is not None:
            found.setdefault(lease, []).append(pid)
    return found


class ProcessTable:
    """The functions of this module as one object, so that rules and tests can be given another."""

    start_time = staticmethod(start_time)
    parent = staticmethod(parent)
    ancestors = staticmethod(ancestors)
    birth = staticmethod(birth)
    exists = staticmethod(exists)
    identity = staticmethod(identity)
    is_alive = staticmethod(is_alive)
    is_broker = staticmethod(is_broker)
    marker = staticmethod(marker)
    cgroups = staticmethod(cgroups)
    in_first_pid_namespace = staticmethod(in_first_pid_namespace)
    children = staticmethod(children)
    descendants = staticmethod(descendants)
    rss_mib = staticmethod(rss_mib)
    uid = staticmethod(uid)
    with_marker = staticmethod(with_marker)


def _stat(pid: int) -> list[bytes] | None:
    # os.open and one read: half the time of open(), and /proc gives a whole line to one read.
    try:
        fd = os.open(f"{_PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        line = os.read(fd, _STAT_BYTES)
    except ProcessLookupError:  # it was reaped between open and read
        return None
    finally:
        os.close(fd)
    # A program may have blanks and brackets in its name: only the last ')' ends it.
    fields = line[line.rfind(b")") + 2 :].split()
    return fields if len(fields) > _START else None


def _is_dead(fields: list[bytes]) -> bool:
    # A process whose first thread ended while others run on looks like a zombie, but lives.
    return fields[_STATE] in (b"Z", b"X", b"x") and int(fields[_THREADS]) <= 1


def _environment(pid: int) -> bytes | None:
    # In the instant of exec a process has no environment yet. Without looking again, a scan would
    # now and then miss a living process of a lease.
    for _ in range(_EXEC_LOOKS):
        block = _read(f"{_PROC}/{pid}/environ")
        if block != b"" or _has_no_environment(pid):
            return block
        os.sched_yield()
    return None


def _has_no_environment(pid: int) -> bool:
    fields = _stat(pid)
    if fields is None or _is_dead(fields) or int(fields[_FLAGS]) & _KERNEL_THREAD:
        return True
    if len(fields) <= _ENV_END:  # a kernel before 3.5 does not say
        return True
    # binfmt_elf sets the start of the code last: before that, "empty" only means "not there yet".
    return int(fields[_START_CODE]) != 0 and fields[_ENV_START] == fields[_ENV_END]


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # gone, or not ours to read: both are "unknown"
        return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def _kernel_lists_children() -> bool:
    # The file needs CONFIG_PROC_CHILDREN, which a few kernels and sandboxes lack.
    return os.path.exists(f"{_PROC}/self/task/{os.getpid()}/children")
