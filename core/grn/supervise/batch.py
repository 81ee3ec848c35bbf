"""A run: its jobs, their requests, processes and ends, on one event loop.

Design note. Everything that happens is one of four: a message from the broker, a signal (the end of
a child is one), bytes from a job, a timer. Each moves one job along the states of `job.py`. All
requests are sent at the start in one write (a broker that knows them all can divide the CPUs), at
most 256 of them outstanding; each grant starts its job at once.

When the connection to the broker ends, running jobs go on. On a new one we say which leases live,
send the releases that nobody confirmed and ask again for what waits, in one write.

Promises: nothing is started after a signal told us to stop; a lease is released only after its job
has ended; the run does not wait for a background process that merely holds a pipe.
Must not decide what the whole run's exit status is, nor how anything looks.
"""

from __future__ import annotations

import os
import signal
from collections import deque

from grn import procs
from grn.rules import outcome
from grn.rules.environment import job_environment
from grn.supervise import interrupts
from grn.supervise.job import (
    GRN_FAILED_STATUS,
    LEAVING,
    NOT_GRANTED_STATUS,
    OVER,
    RELEASING,
    RUNNING,
    WAITING,
)
from grn.supervise.kernel import become_subreaper
from grn.supervise.link import Link
from grn.supervise.loop import READABLE
from grn.supervise.outputs import LABEL
from grn.supervise.spawn import NOT_EXECUTABLE, NOT_FOUND, exec_failure
from grn.supervise.stopping import Stopper
from grn.supervise.tree import Census, Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from grn.client import Connection
    from grn.settings import Settings
    from grn.supervise.job import Conduct, Job
    from grn.supervise.loop import Loop
    from grn.supervise.outputs import Outputs
    from grn.supervise.report import Reporter
    from grn.supervise.signals import Signals
    from grn.supervise.spawn import Spawner

__all__ = ["Batch"]

_MOST_REQUESTS = 256
_NOTICE_AFTER_S = 2.0
_ANSWER_WITHIN_S = 5.0  # a broker that hangs must not hold a finished job's caller
_CANCEL_WITHIN_S = 2.0
_BROKER_BACK_WITHIN_S = 60.0
_LAST_RELEASE_WITHIN_S = 1.0
_LINGER_S = 0.1
_LOOK_AT_LEFTOVERS_S = 0.2


class Batch:
    """One or several jobs under supervision."""
