"""`grn run`: run commands in leases, and end as they ended.

Promises: one command ends this process exactly as it ended itself, with its status or by its signal;
several end it with 0 only if all ended with 0; a Ctrl-C ends it by SIGINT. Standard output belongs
to the commands (with --json: to the one JSON object); all that is said goes to standard error.
"""

from __future__ import annotations

import os
import signal
import sys

from grn import settings as settings_module
from grn.client import connect_or_start
from grn.errors import BrokerUnavailable, UsageError
from grn.cli.runargs import RunOptions, help_text, parse
from grn.rules.jobtype import command_type, shell_command_type
from grn.supervise import outputs as outputs_module
from grn.supervise.batch import Batch
from grn.supervise.job import Conduct, Job
from grn.supervise.loop import Loop
from grn.supervise.outputs import Outputs
from grn.supervise.report import Reporter
from grn.supervise.signals import Signals, die_by
from grn.supervise.spawn import hold_standard_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from grn.client import Connection
    from grn.settings import Settings
