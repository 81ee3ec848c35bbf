"""The processes of queued jobs, as others see them: who is one, whether it lives, and how to tell it to end.

Promises: no signal reaches a process that only has the number of a runner that has ended.
"""

from __future__ import annotations

import os
import signal

from grn import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.queue.entry import Entry

__all__ = ["identity", "tell_runner", "watched"]


def identity(pid: int) -> tuple[int, str] | None:
    """Return what names a process for good: its pid, with boot and start time; `None` if it is gone."""
    start = procs.start_time(pid)
    return None if start is None else (pid, f"{_boot()}:{start}")


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def watched(entry: Entry) -> int | None:
    """Return a descriptor of a job's runner that is readable once it has ended; `None` if it has."""
    if entry.runner is None:
        return None
    pid, _ = entry.runner
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if identity(pid) != entry.runner:  # looked at under the descriptor: no other takes its number
        os.close(pidfd)
        return None
    return pidfd


def tell_runner(entry: Entry, number: int) -> bool:
    """Signal the runner of a job; `False` if it has gone."""
    pidfd = watched(entry)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
