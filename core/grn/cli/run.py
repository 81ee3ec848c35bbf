"""`grn run`: run commands in leases, and end as they ended.

Promises: one command ends this process exactly as it ended itself, with its status or by its signal;
several end it with 0 only if all ended with 0; a Ctrl-C ends it by SIGINT. Standard output belongs
to the commands (with --json: to the one JSON object); all that is said goes to standard error.
"""

from __future__ import annotations

import os
import signal
import time

from grn import settings as settings_module
from grn.cli import summary
from grn.cli.reports import ManyJobs, OneJob
from grn.cli.runargs import help_text, parse
from grn.cli.runjobs import build_jobs
from grn.cli.wishes import Wishes
from grn.connection import connect_or_start
from grn.errors import UNREACHABLE, BrokerUnavailable, UsageError, WaitExpired
from grn.supervise.batch import Batch
from grn.supervise.job import Conduct
from grn.supervise.loop import Loop
from grn.supervise.outputs import INHERIT, LABEL, TEE, WATCH_ERRORS, Outputs
from grn.supervise.signals import Signals, die_by
from grn.supervise.spawn import hold_standard_descriptors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.cli.runargs import RunOptions
    from grn.connection import Connection
    from grn.settings import Settings
    from grn.supervise.job import Job
    from grn.supervise.report import Reporter

__all__ = ["main"]

_STDOUT, _STDERR = 1, 2
_REACHED_WITHIN_S = 2.0
_LONGEST_ALARM_S = 1e6  # no connection takes days, and a timer has a limit
# By which the jobs of a run that is being stopped may end: the user's, and ours after it.
_OURS = (signal.SIGTERM, signal.SIGKILL)


def main(argv: Sequence[str], *, engine: str = "run") -> int:
    """Run the commands; return the exit status, or end by a signal as a command did.

    `engine` is what the requests are said to be made by.
    """
    options = parse(argv)
    hold_standard_descriptors()
    if options.help:
        summary.write_all(_STDOUT, help_text())
        return 0
    settings = settings_module.load(
        {"socket": options.socket, "devices": options.devices, "grace": options.grace}
    )
    wishes = Wishes(options, os.environ)
    jobs = build_jobs(options, os.environ, wishes)
    for job in jobs:
        job.request["engine"] = engine
    if options.explain:
        from grn.cli.explain import explain  # noqa: PLC0415 - nothing else of it is needed

        summary.write_all(_STDOUT, explain(jobs, wishes, settings, os.environ))
        return 0
    _prepare(options)
    _warn(options, settings)
    parent = os.pidfd_open(os.getppid()) if options.die_with_parent else None
    begun_s = time.monotonic()
    connection = _connect(options, settings)
    late_s = time.monotonic() - begun_s
    options.shows_type = wishes.names_types
    return _run(jobs, options, settings, connection, parent, late_s)


def _prepare(options: RunOptions) -> None:
    """Do what can fail before anything is asked for."""
    if options.status_fd is not None and options.status_fd > _STDERR:
        # A background process of the command would keep it open, and its reader waiting.
        os.set_inheritable(options.status_fd, False)
    if options.log_dir is not None:
        try:
            os.makedirs(options.log_dir, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--log-dir {options.log_dir}: {error.strerror}") from error


def _warn(options: RunOptions, settings: Settings) -> None:
    """Say what of the settings will hardly do what was meant; a job within a job repeats nothing."""
    if settings.jobs_at_once is None or options.quiet or "GRN_LEASE" in os.environ:
        return
    from grn.hostcpu import usable_cpus  # noqa: PLC0415 - it reads files, and few set this
    from grn.rules.crowding import crowding  # noqa: PLC0415

    cores = settings.machine_cpus or usable_cpus(reserve=0)
    warning = crowding(settings.jobs_at_once, cores)
    if warning:
        summary.write_all(_STDERR, f"grn run: warning: {warning}\n")


def _connect(options: RunOptions, settings: Settings) -> Connection | None:
    """Connect to the broker; None where the commands may run without one."""
    try:
        return _connect_in_time(options, settings)
    except (*UNREACHABLE, WaitExpired) as error:
        if options.if_unavailable == "run":
            summary.write_all(_STDERR, f"grn run: running without a share: {error.message}\n")
            return None
        if isinstance(error, WaitExpired):
            raise
        hint = "start one with `grn broker`, or use --if-unavailable run to do without"
        raise BrokerUnavailable(f"{error.message}\ngrn run: {hint}") from error


class _Overdue(BaseException):
    """The time to wait is over; no `Exception`, so that nothing on the way takes it for its own."""


def _connect_in_time(options: RunOptions, settings: Settings) -> Connection:
    """Connect, and give up when `--wait` is over: a broker may accept and never greet.

    Reaching the broker has some time even under `--wait 0`: it may have to be started.
    """
    if options.wait is None:
        return connect_or_start(settings)

    def ring(*_: object) -> None:
        raise _Overdue

    within_s = min(max(options.wait, _REACHED_WITHIN_S), _LONGEST_ALARM_S)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, within_s)
        connection = connect_or_start(settings)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _Overdue:
        raise WaitExpired(f"not granted within {within_s:g} s: no broker has answered") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return connection


def _run(
    jobs: Sequence[Job],
    options: RunOptions,
    settings: Settings,
    connection: Connection | None,
    parent: int | None,
    late_s: float,
) -> int:
    mode = _mode(options, jobs)
    signals = Signals(window=mode == WATCH_ERRORS and os.isatty(_STDERR))
    loop = Loop()
    outputs = Outputs(
        loop,
        mode,
        log_dir=options.log_dir,
        colour_when_terminal=not os.environ.get("NO_COLOR"),
        all_to_stderr=options.json,
        watch_terminal=bool(options.retries_on_oom),
    )
    reporter = _reporter(options, outputs, loop, jobs)
    batch = Batch(
        jobs,
        _conduct(options, settings, late_s),
        settings,
        loop=loop,
        signals=signals,
        outputs=outputs,
        reporter=reporter,
        single=options.single,
    )
    if parent is not None:
        batch.watch_parent(parent)
    started_s = loop.now()
    batch.run(connection)
    _write_results(jobs, options, loop.now() - started_s)
    if options.single:
        return _end_as(jobs[0], batch.interrupted) or int(batch.lost_output)
    if batch.interrupted is not None:
        die_by(batch.interrupted)
    return int(batch.lost_output or any(job.status for job in jobs))


def _mode(options: RunOptions, jobs: Sequence[Job]) -> str:
    if not options.single:
        return LABEL
    if options.log_dir is not None:
        return TEE
    # Without a device there is no device memory to run out of, and nothing to look for.
    return WATCH_ERRORS if jobs[0].request["gpus"] else INHERIT


def _reporter(options: RunOptions, outputs: Outputs, loop: Loop, jobs: Sequence[Job]) -> Reporter:
    if options.single:
        return OneJob(outputs, quiet=options.quiet)
    if not options.quiet and os.isatty(_STDERR) and os.environ.get("TERM", "dumb") != "dumb":
        from grn.cli.progress import Progress  # noqa: PLC0415 - heavy, and only for terminals

        return Progress(outputs, loop, jobs)
    return ManyJobs(outputs, quiet=options.quiet)


def _conduct(options: RunOptions, settings: Settings, late_s: float) -> Conduct:
    environ = dict(os.environ)
    if options.socket is not None and settings.socket is not None:
        environ["GRN_SOCKET"] = settings.socket  # so that GRN inside the command finds this broker
    return Conduct(
        environ=environ,
        explicit=options.env,
        grace_s=settings.grace_s,
        late_s=late_s,
        leftovers=options.leftovers,
        retries_on_oom=options.retries_on_oom,
        run_without_broker=options.if_unavailable == "run",
        time_limit_s=options.time_limit,
        wait_s=options.wait,
    )


def _write_results(jobs: Sequence[Job], options: RunOptions, took_s: float) -> None:
    if options.json or options.status_fd is not None:
        import json  # noqa: PLC0415 - most runs end without

        run = json.dumps(summary.run_object(jobs)) + "\n"
        if options.json:
            summary.write_all(_STDOUT, run)
        if options.status_fd is not None:
            one = json.dumps({"schema": 1, **summary.job_object(jobs[0])}) + "\n"
            _write_status(options.status_fd, one if options.single else run)
    if options.single or options.json:
        return
    if not options.quiet or any(job.status for job in jobs):
        summary.write_all(_STDERR, summary.table(jobs, took_s, shows_type=options.shows_type))
    if not options.quiet and options.type is None:
        summary.write_all(_STDERR, summary.advice(jobs))


def _write_status(fd: int, text: str) -> None:
    try:
        summary.write_all(fd, text)
    except OSError as error:  # the command's own end matters more than who wanted to read of it
        summary.write_all(_STDERR, f"grn run: --status-fd {fd}: {error.strerror}\n")


def _end_as(job: Job, interrupted: int | None) -> int:
    """End as the job did, by its signal if need be; return the exit status otherwise."""
    if interrupted is not None and (job.never_started_by_choice or interrupted == signal.SIGPIPE):
        die_by(interrupted)
    if job.own_status is not None or job.timed_out:
        return job.status
    if interrupted is not None and job.signal in {*_OURS, interrupted}:
        die_by(interrupted)
    if job.signal is not None:
        die_by(job.signal)
    return job.status
