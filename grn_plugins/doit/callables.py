"""Python actions under a lease: doit's own arguments and rules, around a process of the callable's own.

    doit's process                                   the callable's process
    prepare the arguments (doit's method)   ---->    environment in place, then the callable's module
    pass output on, as verbosity says       <----    standard output and error
    judge what came of it (doit's method)   <----    value, or traceback, or how the process died

Where it runs (`isolate`): `True`, in a fresh process of the fork server; `"fork"`, in a copy of doit's process
(`forks.py`); `False`, in doit's process itself (`inplace.py`), where `--pdb` puts it too.

Promises: whatever the callable does, doit lives on and is told a `TaskFailed` or a `TaskError`; its process
is gone when `run_callable` returns or raises, and when doit dies.
Must not: ask for a lease, or give one back.
"""

from __future__ import annotations

import atexit
import copy
import multiprocessing
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any

from doit.exceptions import InvalidTask
from doit.runner import MThreadRunner
from doit.tools import PythonInteractiveAction

from grn.affinity import cores_of
from grn.errors import GrnError, UsageError
from grn.isolate import ForkServer, Unpicklable
from grn_plugins.doit import inplace
from grn_plugins.doit.bodies import Body, TaskView
from grn_plugins.doit.forks import fork
from grn_plugins.doit.judging import judged, name_of, not_begun
from grn_plugins.doit.served import Served
from grn_plugins.doit.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from doit.action import PythonAction

    from grn.grants import Grant, Used
    from grn.isolate import Outcome
    from grn_plugins.doit.action import GrnAction
    from grn_plugins.doit.options import Options
    from grn_plugins.doit.outcome import Ran

    class Running(Protocol):
        """A process that runs a body."""

        @property
        def pid(self) -> int:
            """Its number."""
            ...

        def fileno(self) -> int:
            """Return what is readable when it is over."""
            ...

        def outcome(self) -> Outcome:
            """Tell how it ended."""
            ...

        @property
        def used(self) -> Used:
            """What it took, once its outcome is known."""
            ...

        def interrupt(self) -> None:
            """Do what Ctrl-C would do."""
            ...

        def stop(self, grace_s: float) -> None:
            """End it and what it has started."""
            ...

        def see_off(self, streams: Streams) -> None:
            """Do with what it has left behind as the options say."""
            ...

        def close(self) -> None:
            """Let go of it; what lives still is killed."""
            ...


__all__ = ["run_callable", "runs_here", "warm_up"]

_PRELOAD = ("grn_plugins.doit.bodies",)
_NEEDS_NO_COPY = 'isolate="fork" needs no copy of it (without -P thread)'


def runs_here(inner: PythonAction, options: Options) -> bool:
    """Whether the callable runs in doit's own process.

    Raises:
        UsageError: if the options want it where it would be wrong.
    """
    beside = isinstance(threading.current_thread(), MThreadRunner.DaemonThread)
    if inner.pm_pdb and not beside and multiprocessing.parent_process() is None:
        return True
    if options.isolate is True or not beside:
        return options.isolate is False
    if options.isolate is False:
        raise UsageError(
            "isolate=False is wrong beside threads: they share one environment, so all would have the mask of the"
            " last one. Leave it out, or run doit without -P thread"
        )
    raise UsageError(
        'isolate="fork" is wrong beside threads: a copy of this process can hang on what another thread had'
        " locked. Leave it out, or run doit without -P thread"
    )


def warm_up() -> None:
    """Have the fork server started, without waiting for it."""
    try:
        ForkServer.shared(_PRELOAD).warm_up()
    except GrnError:  # the call that needs it says so
        return


def run_callable(
    action: GrnAction,
    inner: PythonAction,
    grant: Grant | None,
    env: Mapping[str, str],
    out: Any,
    err: Any,
) -> Ran:
    """Run a Python action under its lease.

    Args:
        action: what doit has.
        inner: doit's own action; its `out`, `err`, `result` and `values` are set as doit sets them.
        grant: the lease; `None`: there is none.
        env: the complete environment.
        out: where standard output is shown; `None`: nowhere.
        err: the same for standard error.
    """
    try:
        if runs_here(inner, action.options):
            return inplace.run(inner, grant, env, out, err)
        kwargs = _arguments(inner)
    except GrnError as error:
        return not_begun(error)
    except (InvalidTask, TypeError, ValueError) as error:  # what doit says of a signature
        return not_begun(error)
    with Streams(*_shown(inner, out, err), keep=_keeps(inner)) as streams:
        try:
            running = _start(action, inner, kwargs, grant, env, streams)
        except Unpicklable as error:
            return not_begun(UsageError(f"{error}. {_NEEDS_NO_COPY}"))
        except GrnError as error:
            return not_begun(error)
        streams.given()
        outcome = _attended(running, streams, action.options.grace_s)
        kept = (streams.out.kept, streams.err.kept)
    inner.out, inner.err = (None if one is None else one.getvalue() for one in kept)
    ran = judged(inner, outcome)
    return ran._replace(ending={**ran.ending, **running.used})


# -- before -----------------------------------------------------------------------------------------


def _arguments(inner: PythonAction) -> dict[str, Any]:
    """Have doit find the arguments; a task among them becomes one that can travel."""
    kwargs: dict[str, Any] = inner._prepare_kwargs()  # noqa: SLF001 - doit's rules are doit's
    task = kwargs.get("task")
    if task is not None and task is inner.task:
        kwargs["task"] = _portable(task)
    return kwargs


def _portable(task: Any) -> Any:
    twin = copy.copy(task)
    return twin if _can_travel(twin) else TaskView.of(task, _can_travel)


def _can_travel(value: Any) -> bool:
    from grn.isolate import pickling  # noqa: PLC0415 - few callables ask for their task

    try:
        with open(os.devnull, "wb") as nowhere:
            pickling.dump_value(value, nowhere, lambda _: True)
    except Exception:  # noqa: BLE001 - any class's own code ran
        return False
    return True


def _keeps(inner: PythonAction) -> bool:
    capture = inner.task.io.capture if inner.task else True
    return bool(capture) and not isinstance(inner, PythonInteractiveAction)


def _shown(inner: PythonAction, out: Any, err: Any) -> tuple[Any, Any]:
    return (None, None) if isinstance(inner, PythonInteractiveAction) else (out, err)


def _start(
    action: GrnAction,
    inner: PythonAction,
    kwargs: Mapping[str, Any],
    grant: Grant | None,
    env: Mapping[str, str],
    streams: Streams,
) -> Running:
    options = action.options
    name = inner.task.name if inner.task else name_of(inner.py_callable)
    cores = [] if grant is None else cores_of(grant, name)
    lease = None if grant is None or grant.nested else grant.lease
    body, ends = Body(inner.py_callable), (streams.out.theirs, streams.err.theirs)
    running: Running
    if options.isolate == "fork":
        running = fork(
            lambda: body(*inner.args, **kwargs),
            env=env, ends=ends, cores=cores, lease=lease, leftovers=options.leftovers, grace_s=options.grace_s,
        )  # fmt: skip
    else:
        child = ForkServer.shared(_PRELOAD).run(
            body, tuple(inner.args), kwargs,
            env=env, stdin=_input(), stdout=ends[0], stderr=ends[1], affinity=cores or None, name=name,
        )  # fmt: skip
        running = Served(child, options.leftovers, options.grace_s)
    if grant is not None and lease is not None:
        grant.hub.started(lease, running.pid)
    return running


def _input() -> int | None:
    """Return doit's standard input, if reading it takes nothing away from somebody else."""
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None  # we are in the background, and the shell reads there
        os.fstat(0)
    except OSError:
        return None
    return 0


# -- meanwhile --------------------------------------------------------------------------------------

_under_way: dict[int, tuple[Running, float]] = {}


def _attended(running: Running, streams: Streams, grace_s: float) -> Outcome:
    _under_way[id(running)] = (running, grace_s)
    try:
        streams.attend(running.fileno())
        outcome = running.outcome()
        running.see_off(streams)
        streams.drain()
    except BaseException as error:  # not the callable's: Ctrl-C, or what a signal's handler raised
        _end(running, streams, grace_s, interrupted=isinstance(error, KeyboardInterrupt))
        raise
    finally:
        del _under_way[id(running)]
        running.close()
    return outcome


def _end(running: Running, streams: Streams, grace_s: float, *, interrupted: bool) -> None:
    """End what runs: as Ctrl-C would, then with force."""
    if interrupted:
        running.interrupt()
        streams.attend(running.fileno(), grace_s / 2)
    running.stop(grace_s / 2 if interrupted else grace_s)


def _end_all() -> None:
    """End what other threads still run when doit ends: it was interrupted, and does not wait for them."""
    left = list(_under_way.values())
    for running, _ in left:
        running.interrupt()
    deadline = time.monotonic() + max((grace_s / 2 for _, grace_s in left), default=0.0)
    for running, grace_s in left:
        _wait(running, deadline - time.monotonic())
        running.stop(grace_s / 2)


def _wait(running: Running, seconds: float) -> None:
    try:
        select.select([running.fileno()], [], [], max(seconds, 0.0))
    except (OSError, ValueError):  # its own thread has let go of it meanwhile
        return


atexit.register(_end_all)  # before the fork server's own, which kills
