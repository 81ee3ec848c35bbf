"""The executor `grn`: Snakemake's local executor, whose GPU jobs run under leases.

Design note. A job without a wish for a GPU takes the local executor's way and nothing else. The others
wait for their lease in the pool's thread that will run them, so the scheduler goes on; around the job and
not around the cache, so that a result that is fetched takes no device. What Snakemake runs in this process
(`run:`, with `--force-use-threads`) goes to a child Snakemake, as the local executor does without that flag:
a process has one environment.

A job that is not started since the run is ending is no failed job: it ends without a word about the rule.

Must not: be imported before this executor is used, see `snakemake_executor_plugin_grn`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

from snakemake.exceptions import SpawnedJobError, WorkflowError, print_exception
from snakemake.executors.local import Executor as LocalExecutor

from grn.devices import SIMULATE
from grn.errors import GrnError
from grn.rules.units import parse_duration_s
from grn_plugins.snakemake import envhook
from grn_plugins.snakemake.granted import Terms, Work, leased, say, say_once
from grn_plugins.snakemake.groups import Groups
from grn_plugins.snakemake.request import unknown_names
from grn_plugins.snakemake.settings import ExecutorSettings
from grn_plugins.snakemake.stopping import NotStartedError, Running, when_terminated
from grn_plugins.snakemake.wishes import Chosen, ask_of_job, cut_by_limits, watch_fractions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

__all__ = ["Executor"]

_CHILDREN = "--executor local --preemptible-rules --preemptible-retries 0"
"""A child negotiates no second time, and leaves a rule's `retries:` to us: both would try again."""
_IN_HAND = {"GRN_NEGOTIATE": "0"}
"""The hook in a child leaves it alone."""
_SIMULATE = "--grn-devices sim:4x16GiB (or GRN_DEVICES)"
_FAILED = "another job has failed"
_TERMINATED = "Snakemake was told to end"
_INTERRUPTED = "the run was interrupted"


class Executor(LocalExecutor):  # type: ignore[misc]  # Snakemake ships no types
    """Runs jobs on this machine, and those that wish for a GPU under a lease."""

    workflow: Any
    """Snakemake's own; the interface for plugins shows but a part of it."""

    def __post_init__(self) -> None:
        """Take the settings in, and look at the rules before anything runs."""
        super().__post_init__()
        settings = self.executor_settings or ExecutorSettings()
        if not isinstance(settings, ExecutorSettings):
            settings = ExecutorSettings()
        with _refusals():
            self._terms = terms_of(settings)
            self._direct = _direct(settings.exec_mode or "auto")
        self._chosen = Chosen(settings.rules)
        self._running = Running(self._terms.grace_s)
        self._groups = Groups(
            self.workflow,
            self._work,
            self._terms,
            self._running,
            together=settings.groups != "apart",
        )
        self._watches_sigterm = False
        self._never_ran: set[Any] = set()
        self._look_at_rules()

    def _look_at_rules(self) -> None:
        rules = list(self.workflow.rules)
        watch_fractions(rules)
        for text in cut_by_limits(rules, self.workflow.global_resources):
            say_once(text)
        for pattern in self._chosen.unknown(rule.name for rule in rules):
            say_once(f"--grn-rules {pattern!r} is no rule of this workflow")
        for job in self.dag.needrun_jobs():
            for name in unknown_names(getattr(job.rule, "resources", None) or {}):
                say_once(
                    f"rule {job.rule.name}: the resource {name} says nothing to GRN, which reads gpu,"
                    " gpu_mem_mb, gpu_share and gpu_model"
                )

    # -- running a job --------------------------------------------------------------------------

    def additional_general_args(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return what is added to the command line of a child Snakemake."""
        return f"{super().additional_general_args()} {_CHILDREN}"

    def run_jobs(self, jobs: list[Any]) -> None:
        """Start jobs that are ready."""
        if not self._watches_sigterm:  # by now Snakemake has set its own handler
            self._watches_sigterm = True
            when_terminated(partial(self._running.close, _TERMINATED))
        super().run_jobs(jobs)

    def run_single_job(self, job: Any) -> Future[None]:
        """Hand a job to the pool; one with a wish that cannot run here goes to a child Snakemake."""
        if self._wishes(job):
            try:
                self._groups.look_at(job)
            except GrnError as error:
                return self._submit(_fail, error, job.rule)
            spawns = not self._direct or (self.use_threads and job.is_run)
            if spawns and not job.is_template_engine:
                return self._submit(self.cached_or_run, job, self.spawn_job, job)
        future: Future[None] = super().run_single_job(job)
        return future

    def _submit(self, function: Callable[..., None], *args: Any) -> Future[None]:
        future: Future[None] = self.pool.submit(function, *args)
        return future

    def _wishes(self, job: Any) -> bool:
        try:
            return self._work(job) is not None
        except WorkflowError:
            return True  # it is told where the job runs

    def cached_or_run(self, job: Any, run_func: Callable[..., None], *args: Any) -> None:
        """Fetch a job's results from the cache or run it, in the pool's thread."""
        work = self._work(job)
        if work is not None:
            run_func = partial(self._under_lease, job, work, run_func)
        super().cached_or_run(job, run_func, *args)

    def _work(self, job: Any) -> Work | None:
        """Describe a job with a wish.

        Raises:
            WorkflowError: if the wish makes no sense.
        """
        with _refusals(job.rule):
            ask = ask_of_job(job, self._chosen)
            if ask is None:
                return None
            return Work.of(
                job.rule,
                ask,
                jobid=job.jobid,
                wildcards=job.wildcards_dict,
                params=dict(job.params.items()),
                threads=job.threads,
                log=job.log,
                in_container=bool(job.container_img),
                command=job.shellcmd,
            )

    def _under_lease(self, job: Any, work: Work, run_func: Callable[..., None], *args: Any) -> None:
        share = self._groups.share_of(job, work)
        with _refusals(job.rule), share or leased(work, self._terms, self._running):
            try:
                run_func(*args)
            except BaseException:
                if not job.is_service:  # that is terminated when nobody needs it any more
                    self._close_if_final(job)  # before its device goes to one that waits
                raise

    def spawn_job(self, job: Any) -> None:
        """Run a job by a child Snakemake."""
        launcher = envhook.current()
        if launcher is None:
            super().spawn_job(job)
            return
        command = self.format_job_exec(job)
        options = {"shell": True, "env": {**os.environ, **_IN_HAND}}
        if launcher.launch(subprocess.Popen, command, options).wait():
            raise SpawnedJobError

    def run_group_job(self, job: Any) -> None:
        """Run the jobs of a pipe or service group, all at once and under one lease."""
        with _refusals(next(iter(job)).rule), self._groups.at_once(job):
            super().run_group_job(job)

    # -- the end of jobs ------------------------------------------------------------------------

    def _callback(self, job_info: Any, future: Future[None]) -> None:
        error = future.exception()
        if isinstance(error, NotStartedError):
            say(f"{job_info.job} was not started: {error}")
        elif isinstance(error, RefusedError):
            print_exception(error, self.workflow.linemaps)
        else:
            self._never_ran.discard(job_info.job)  # an earlier attempt may have been refused
            super()._callback(job_info, future)
            return
        # Nothing of it has run: Snakemake's own reports, now and at the end, would blame its command.
        self._never_ran.add(job_info.job)
        self.workflow.scheduler.error_callback(job_info.job)

    def handle_job_error(self, job: Any) -> None:
        """Take in that a job has failed; if that ends the run, nothing waits on for a device."""
        super().handle_job_error(job)
        self._close_if_final(job)
        if job.restart_times <= job.attempt - 1:
            self._groups.gives_up(job)

    def _close_if_final(self, job: Any) -> None:
        keeps_going = self.workflow.execution_settings.keep_going
        if not keeps_going and job.restart_times <= job.attempt - 1:
            self._running.close(_FAILED)

    # -- the end of the run ---------------------------------------------------------------------

    def _leave_unblamed(self) -> None:
        """Take out of the failed jobs' last list those that never ran: some releases tell of a command."""
        failed = getattr(self.workflow.scheduler, "failed", None)
        if isinstance(failed, set):  # not public; without it the list is longer
            failed -= self._never_ran

    def shutdown(self) -> None:
        """Wait until all jobs have ended."""
        super().shutdown()
        self._leave_unblamed()
        self._groups.close()
        self._running.warden.close()

    def cancel(self) -> None:
        """Withdraw what waits and end what runs; at a second interrupt, at once."""
        self._running.stop(_INTERRUPTED)
        try:
            super().cancel()
        except KeyboardInterrupt:
            self._running.hurry()
            super().cancel()
        finally:
            self._leave_unblamed()
            self._groups.close()
            self._running.warden.close()


def terms_of(settings: ExecutorSettings) -> Terms:
    """Take in what the user has set; the socket and the devices through the environment.

    Raises:
        UsageError: if a setting makes no sense.
    """
    for name, value in (("GRN_SOCKET", settings.socket), ("GRN_DEVICES", settings.devices)):
        if value is not None:
            os.environ[name] = value
    usual = Terms.usual()
    wait, grace = settings.wait, settings.kill_grace
    return Terms(
        policy=settings.policy,
        wait_s=None if wait is None else parse_duration_s(wait, what="--grn-wait"),
        run_without=settings.no_broker == "run",
        grace_s=usual.grace_s
        if grace is None
        else parse_duration_s(grace, what="--grn-kill-grace"),
    )


def _direct(mode: str) -> bool:
    """Whether jobs are started as the local executor does."""
    if mode == "spawn":
        return False
    problem = envhook.install()
    if problem:
        text = (
            f"this Snakemake starts its jobs in a way that GRN does not know ({problem}): each GPU"
            " job is run by a Snakemake of its own, which takes a second or more"
        )
        if mode == "direct":
            raise WorkflowError(f"--grn-exec-mode direct: {text}")
        say_once(text)
    return not problem


def _fail(error: GrnError, rule: Any) -> None:
    with _refusals(rule):
        raise error


class RefusedError(WorkflowError):  # type: ignore[misc]  # Snakemake ships no types
    """What GRN refuses, told as Snakemake tells its own errors: without a trace of our code."""

    @property
    def __traceback__(self) -> None:
        """Have none, for Snakemake prints it: what is wrong is in the Snakefile or the command line."""

    @__traceback__.setter
    def __traceback__(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, trace: object
    ) -> None:
        del trace

    def __init__(self, error: GrnError, rule: Any) -> None:
        super().__init__(f"grn: {error.message.replace(SIMULATE, _SIMULATE)}")
        self.rule = rule
        self.lineno = getattr(rule, "lineno", None)
        self.snakefile = getattr(rule, "snakefile", None)


@contextlib.contextmanager
def _refusals(rule: Any = None) -> Iterator[None]:
    """Let GRN's errors be Snakemake's."""
    try:
        yield
    except GrnError as error:
        raise RefusedError(error, rule) from error
