"""A Python action in doit's own process: for a debugger, or for what must change that process.

The lease's environment is in force for the length of the call; what was imported before has read its
environment already, which is warned of. A process that has opened a device keeps it to its end, and gets
no other one later.

Must not: be used beside other threads' actions, see `callables.runs_here`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from doit.exceptions import TaskError

from grn.affinity import bind_here
from grn.applied import Applied, apply, take_back
from grn_plugins.doit.judging import failed, name_of
from grn_plugins.doit.outcome import Ran

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from doit.action import PythonAction

    from grn.grants import Grant

__all__ = ["run"]


def run(
    inner: PythonAction, grant: Grant | None, env: Mapping[str, str], out: Any, err: Any
) -> Ran:
    """Have doit execute its action here, with the lease in force.

    Raises:
        LeaseError: if another lease is in force here that has other devices.
    """
    name = name_of(inner.py_callable)
    with _in_force(grant, env, name):
        try:
            failure = inner.execute(out, err)
        except SystemExit as error:
            failure = TaskError(f"PythonAction Error: {name} called sys.exit({error.code!r})")
    trace = "".join(failure.traceback) if isinstance(failure, TaskError) else ""
    return Ran(failure, failed(failure, trace))


@contextlib.contextmanager
def _in_force(grant: Grant | None, env: Mapping[str, str], name: str) -> Iterator[None]:
    changed = {key: value for key, value in env.items() if os.environ.get(key) != value}
    devices = [] if grant is None else grant.devices
    lease = "none" if grant is None else grant.lease
    applied = Applied(lease, [device["uuid"] for device in devices], changed)
    apply(applied)
    binding = None if grant is None else bind_here(grant, name)
    try:
        yield
    finally:
        if binding is not None:
            binding.take_back()
        take_back(applied)
