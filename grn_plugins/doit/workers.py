"""doit's worker processes: they end with doit.

doit's own do not: killed, doit leaves them behind, waiting for ever for the next task. So a worker asks
the kernel for SIGTERM at the death of the process that has started it: as soon as it is forked or has
loaded its tasks, or else at its first action of ours.

Must not: touch any other process that somebody's dodo file starts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import util

__all__ = ["end_with_doit", "is_worker"]

_WORK = "execute_task_subprocess"
_armed_pid = 0


def is_worker() -> bool:
    """Whether this process is one of doit's workers."""
    if multiprocessing.parent_process() is None:
        return False
    target = getattr(multiprocessing.current_process(), "_target", None)
    return getattr(target, "__name__", "") == _WORK


def end_with_doit() -> None:
    """Have this process ended when doit has ended, if it is a worker of doit's."""
    global _armed_pid  # noqa: PLW0603 - once for each process
    if _armed_pid == os.getpid() or not is_worker():
        return
    _armed_pid = os.getpid()
    from grn.supervise.kernel import die_with_parent  # noqa: PLC0415 - not needed in doit itself

    # Of a fork server's child the parent is the server, which ends with doit.
    die_with_parent(signal.SIGTERM)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before the line above
        os.kill(os.getpid(), signal.SIGTERM)


class _Anchor:
    """`multiprocessing` keeps what is called after a fork as long as an object lives."""


_anchor = _Anchor()
util.register_after_fork(_anchor, lambda _: end_with_doit())
