"""Jobs that run: their start, the end of their main process, and what they leave behind.

Promises: the exit status is the main process's; a job is released after all that it wrote was read;
background processes are kept, waited for or stopped as asked, whatever happens to the pipes.
"""

from __future__ import annotations

import errno
import os

from grn.rules.environment import job_environment
from grn.rules.outcome import killed_for_host_ram
from grn.supervise.hostram import KillCount
from grn.supervise.job import LEAVING, RUNNING
from grn.supervise.spawn import NOT_EXECUTABLE, NOT_FOUND, exec_failure
from grn.supervise.stopping import Stopper
from grn.supervise.tree import Census, Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from grn.supervise.job import Conduct, Job
    from grn.supervise.link import Link
    from grn.supervise.loop import Loop
    from grn.supervise.outputs import Outputs
    from grn.supervise.report import Reporter
    from grn.supervise.spawn import Child, Spawner

__all__ = ["Running"]

_LOOK_AT_LEFTOVERS_S = 0.2
_LOOK_AT_LIMIT_S = 1.0
_KIB_IN_MIB = 1024


class Running:
    """The jobs that have a process, or whose processes are being waited for."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        spawner: Spawner,
        outputs: Outputs,
        conduct: Conduct,
        reporter: Reporter,
        *,
        single: bool,
        ended: Callable[[Job], None],
    ) -> None:
        self._loop = loop
        self._link = link
        self._spawner = spawner
        self._outputs = outputs
        self._conduct = conduct
        self._reporter = reporter
        self._single = single
        self._ended = ended
        self._census = Census()
        self._stopper = Stopper(loop, self._census, self._look)
        self._stopper.sweep = single
        self._jobs: dict[Owner, Job] = {}
        self._mains: dict[int, Job] = {}
        self._warned: set[str] = set()
        self._kill_count = KillCount()

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs of which something may be running."""
        return list(self._jobs.values())

    def start(self, job: Job, grant: dict[str, Any]) -> None:
        """Start a job in its lease (an empty grant: without one)."""
        job.move(RUNNING)
        job.grant = grant
        job.tries += 1
        job.begin_again()
        job.kills = self._kill_count.read()
        env = self._environment(job, grant)
        try:
            descriptors = self._outputs.open(job)
            try:
                child = self._spawner.spawn(job.words, env, descriptors, self._cores(job, grant))
            finally:
                self._outputs.forked()
        except OSError as error:  # out of processes, descriptors or memory
            job.exit_code = NOT_EXECUTABLE
            job.fail(NOT_EXECUTABLE, f"could not be started: {error.strerror}")
            self._ended(job)
            return
        self._took_off(job, child)

    def reap(self) -> None:
        """Take the exit statuses of all children that have ended."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            self._gone(pid, status, used)
        self._stopper.wake()

    def forward(self, number: int) -> None:
        """Pass a signal on to the main processes.

        They are our children and not reaped, so their numbers cannot mean anything else.
        """
        for pid in self._mains:
            # One that runs as another user now (sudo) is not ours to signal: it goes on, and so do we.
            try:
                os.kill(pid, number)
            except PermissionError:
                continue

    def stop(self, job: Job, *, ask_s: float, reconsider: Callable[[], bool]) -> None:
        """End a job and all its processes; `reconsider` may call it off, see `Stopper.begin`."""
        owner = job.owner
        if owner is None or owner not in self._jobs:
            return
        if (
            job.state == RUNNING
        ):  # else it has ended by itself, and only leftovers are to be stopped
            job.stopped = True
        self._stopper.begin(
            owner,
            ask_s=ask_s,
            grace_s=self._conduct.grace_s,
            on_gone=lambda survivors: self._is_gone(job, survivors),
            reconsider=reconsider,
        )

    def sweep(self) -> None:
        """From now on also stop what is below us and belongs to no job that can be told."""
        self._stopper.sweep = True

    def hurry(self) -> None:
        """Kill at once what is being stopped."""
        self._stopper.hurry()

    def _environment(self, job: Job, grant: dict[str, Any]) -> dict[str, str]:
        environ = self._conduct.environ
        explicit = {**self._conduct.explicit, **job.explicit}
        if not grant:
            return {**environ, **explicit}
        env, warnings = job_environment(grant, environ, explicit)
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._reporter.note(warning)
        return env

    def _cores(self, job: Job, grant: dict[str, Any]) -> list[int]:
        cores: list[int] = grant.get("cores") or []
        if grant and not cores and job.request.get("affinity"):
            self._reporter.note(f"{job.label}: not bound to cores: the broker gave it none")
        return cores

    def _took_off(self, job: Job, child: Child) -> None:
        job.child = child
        job.started_s = self._loop.now()
        job.owner = Owner(child.pid, job.lease)
        self._jobs[job.owner] = job
        self._mains[child.pid] = job
        if job.lease is not None:
            self._link.send([started(job)])
        if self._conduct.time_limit_s is not None:
            self._limit(job, self._conduct.time_limit_s)
        self._reporter.started(job)

    def _limit(self, job: Job, seconds: float) -> None:
        job.deadline = self._loop.later(seconds, lambda: self._out_of_time(job))

    def _out_of_time(self, job: Job) -> None:
        if job.stopped:  # unless that is called off, since it lives on at its prompt
            self._limit(job, _LOOK_AT_LIMIT_S)
        else:
            job.timed_out = True
            self.stop(job, ask_s=0.0, reconsider=_never)

    # -- the end --------------------------------------------------------------------------------

    def _gone(self, pid: int, status: int, used: resource.struct_rusage) -> None:
        job = self._mains.pop(pid, None)
        if job is not None:
            job.cpu_s = used.ru_utime + used.ru_stime
            job.rss_mib = -(-used.ru_maxrss // _KIB_IN_MIB)
            self._main_ended(job, status)
        elif pid == self._link.starter:
            self._link.starter_ended()
        # Anything else is an orphan that we adopted: its status is nobody's.

    def _main_ended(self, job: Job, status: int) -> None:
        job.ran_s = self._loop.now() - job.started_s
        if job.owner is not None:
            job.owner.main = None  # the number may soon be another's
        if os.WIFSIGNALED(status):
            job.signal = os.WTERMSIG(status)
        else:
            job.exit_code = os.WEXITSTATUS(status)
        self._note_exec_failure(job)
        self._note_host_ram(job)
        for stream in job.streams:
            stream.drain()
        if self._leaves_at_once(job):
            self._finish(job)
            return
        job.move(LEAVING)
        if job.stopped:
            return
        if self._conduct.leftovers == "wait":
            self._wait_for_leftovers(job)
        else:
            self._stop_leftovers(job)

    def _leaves_at_once(self, job: Job) -> bool:
        return self._conduct.leftovers == "keep" and not job.stopped

    @staticmethod
    def _note_exec_failure(job: Job) -> None:
        problem = job.child.exec_errno() if job.child is not None else 0
        if problem:
            status = NOT_FOUND if problem == errno.ENOENT else NOT_EXECUTABLE
            job.fail(status, exec_failure(problem, job.words[0]))

    def _note_host_ram(self, job: Job) -> None:
        if (
            job.failed()
            and not job.stopped
            and killed_for_host_ram(
                exit_code=job.exit_code,
                signal=job.signal,
                kills_before=job.kills,
                kills_after=self._kill_count.read(),
            )
        ):
            job.note = "killed by the kernel for host RAM"

    def _stop_leftovers(self, job: Job) -> None:
        if job.owner is not None:
            self._stopper.begin(
                job.owner,
                ask_s=0.0,
                grace_s=self._conduct.grace_s,
                on_gone=lambda survivors: self._is_gone(job, survivors),
                reconsider=_never,
            )

    def _wait_for_leftovers(self, job: Job) -> None:
        owner = job.owner
        if owner is None or owner not in self._jobs or self._stopper.is_stopping(owner):
            return
        if self._has_leftovers(owner):
            self._loop.later(_LOOK_AT_LEFTOVERS_S, lambda: self._wait_for_leftovers(job))
        else:
            self._finish(job)

    def _has_leftovers(self, owner: Owner) -> bool:
        self._look()
        heir = owner if self._single else None
        try:
            return bool(self._census.take([owner], heir=heir, everywhere=False)[owner])
        except OSError:  # nobody can say now
            return True

    def _is_gone(self, job: Job, survivors: Iterable[int]) -> None:
        self.reap()  # the main process may be a zombie that was not asked for its status yet
        pids = " ".join(map(str, survivors))
        if pids:
            self._reporter.note(
                f"{job.label}: could not end process {pids}; the device memory that it holds"
                " stays booked"
            )
        self._finish(job)

    def _finish(self, job: Job) -> None:
        if job.owner is None or self._jobs.pop(job.owner, None) is None:
            return
        if job.deadline is not None:
            job.deadline.cancel()
        if job.child is not None:
            self._mains.pop(job.child.pid, None)
        self._ended(job)

    def _look(self) -> None:
        """Bring up to date what the census leaves out, before it is taken."""
        if self._link.starter is not None:
            self._census.set_apart(self._link.starter)
        self._census.set_apart(self._link.broker_pid())
        self._census.guarded = self._link.starting


def started(job: Job) -> dict[str, Any]:
    """Tell the broker which process is the job's."""
    pid = job.child.pid if job.child is not None else 0
    return {"op": "started", "lease": job.lease, "pid": pid}


def _never() -> bool:
    return False
