"""The lease around one job of Snakemake's: acquire, run, give back.

The executor and the hook both use it, each with its own way to a job. It runs in the thread that runs the
job, so other jobs go on meanwhile; what the job is told is in its process's environment before that
executes anything.

Promises: a lease ends with its job, whatever ends that; a job's failure, and whether device memory was
the reason, is told to the broker and in Snakemake's log; what a failed job has left behind is ended.
Must not: start a job again, or decide how much it gets.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn import hub
from grn.errors import UNREACHABLE
from grn.rules.environment import job_environment
from grn.rules.outcome import (
    FAILED,
    KILLED,
    MEMORY,
    NOTHING,
    OOM,
    OOM_SUSPECTED,
    SAME,
    describe_end,
    stderr_says,
)
from grn.rules.units import format_mib
from grn.settings import load
from grn.turns import Turn
from grn.wishes import Wish
from grn_plugins.snakemake import envhook
from grn_plugins.snakemake.choosing import choice_of
from grn_plugins.snakemake.request import Ask, commanded_mask, job_type
from grn_plugins.snakemake.stderr import Along, last_of
from grn_plugins.snakemake.stopping import NotStartedError, Running, end_marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from grn.grants import Ending, Grant
    from grn_plugins.snakemake.envhook import Process
    from grn_plugins.snakemake.warden import Warden

__all__ = [
    "Held",
    "Terms",
    "Work",
    "acquire",
    "give_back",
    "leased",
    "message_of",
    "say",
    "say_once",
    "teller",
]

_ALSO_AS = ("APPTAINERENV_", "SINGULARITYENV_")
_WAIT_IS_NEWS_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user has set for all jobs of a run."""

    policy: str | None = None
    wait_s: float | None = None
    run_without: bool = False
    """Where there is no broker, run without a lease."""
    grace_s: float = 5.0

    @classmethod
    def usual(cls) -> Terms:
        """Return what counts where nothing is said in Snakemake's own words."""
        return cls(grace_s=load().grace_s)


@dataclass(frozen=True, slots=True)
class Work:
    """One job as GRN sees it."""

    name: str
    """For messages: the rule, and which of its jobs."""
    type: str
    label: str
    ask: Ask
    threads: int = 1
    logs: tuple[str, ...] = ()
    in_container: bool = False
    commanded: str | None = None
    """The devices that its command names itself."""

    @classmethod
    def of(
        cls,
        rule: Any,
        ask: Ask,
        *,
        jobid: object,
        wildcards: Mapping[str, object],
        params: Mapping[str, object],
        threads: int,
        log: Sequence[str] = (),
        in_container: bool = False,
        command: str | None = None,
    ) -> Work:
        """Describe a job of one of Snakemake's rules.

        Args:
            rule: Snakemake's rule.
            ask: what the job wishes for.
            jobid: its number in the run.
            wildcards: its wildcards.
            params: its params.
            threads: its threads.
            log: its log files.
            in_container: it runs in one.
            command: its shell command, if it has one.
        """
        which = ", ".join(f"{name}={value}" for name, value in wildcards.items())
        own = job_type(str(rule.snakefile), rule.name, params, wildcards)
        return cls(
            name=f"{rule.name} (job {jobid})",
            type=ask.type or own,
            label=f"{rule.name} {which}".strip(),
            ask=ask,
            threads=max(1, threads),
            logs=tuple(map(str, log)),
            in_container=in_container,
            commanded=commanded_mask(command),
        )


# -- what is said ---------------------------------------------------------------------------------

_said: set[str] = set()


def say(text: str, *, level: str = "info") -> None:
    """Write a line to Snakemake's log."""
    from snakemake.logging import logger  # noqa: PLC0415 - only who runs a workflow has it

    getattr(logger, level)(f"grn: {text}")


def say_once(text: str, *, level: str = "warning") -> None:
    """Write a line that is not news the second time."""
    if text not in _said:
        _said.add(text)
        say(text, level=level)


# -- acquire --------------------------------------------------------------------------------------


def acquire(work: Work, terms: Terms, running: Running) -> Grant | None:
    """Wait for a job's lease; `None` if it is to run without one.

    Raises:
        NotStartedError: if the run came to its end meanwhile.
        GrnError: if it is refused, or there is no broker.
    """
    running.refuse_late()
    try:
        turn = Turn(
            message_of(work, terms),
            wait_s=terms.wait_s,
            waits=lambda reason: say(f"{work.name} waits: {reason}"),
            waits_after_s=_WAIT_IS_NEWS_AFTER_S,
        )
        with running.waiting(turn):
            return turn.grant()
    except UNREACHABLE as error:
        if not terms.run_without:
            raise
        say_once(f"jobs run without leases: {error}")
        return None


def message_of(work: Work, terms: Terms) -> dict[str, Any]:
    """Put what a job wishes for into the words of the wire."""
    ask = work.ask
    choice = choice_of(ask, work.commanded)
    if work.commanded is not None:
        say_once(
            f"{work.label.split()[0]}: its command sets CUDA_VISIBLE_DEVICES={work.commanded} itself,"
            " which overrides every lease: it is given just that device. Leave it out, and any"
            " device will do"
        )
    wish = Wish(
        gpus=ask.gpus,
        memory=choice.memory,
        policy=ask.policy or terms.policy,
        cpus=None,
        ram=None,
        flavor=None,
        priority=ask.priority,
        wait=None,
        label=work.label,
        env=None,
        if_unavailable="fail",
        type=None,
        compute=choice.compute,
    )
    message, _ = wish.request(work.type, in_process=False, mask=choice.mask)
    return {**message, "engine": "snakemake"}


# -- run ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Held:
    """A job under its lease: starts its processes, and can stop them."""

    work: Work
    message: Mapping[str, Any]
    """The broker's grant, or the part of a group's that is this job's."""
    warden: Warden
    tell: Callable[[int], None]
    """Called with the pid of its first process."""
    stopped: bool = False
    processes: list[tuple[Process, Along]] = field(default_factory=list)

    @property
    def lease(self) -> str | None:
        """The lease that its processes are marked with; `None` if that is an outer job's as well."""
        return None if self.message["nested"] else str(self.message["lease"])

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process of the job; of its threads Snakemake has decided."""
        told = {**self.message, "threads": self.work.threads}
        made, warnings = job_environment(told, env, {})
        for text in warnings:
            say_once(f"{self.work.label.split()[0]}: {text}")
        if self.work.in_container:
            ours = {name: made[name] for name in made if made[name] != env.get(name)}
            made |= {f"{prefix}{name}": ours[name] for prefix in _ALSO_AS for name in ours}
        return made

    def launch(self, popen: Callable[..., Process], args: Any, options: dict[str, Any]) -> Process:
        """Start a process of the job, as Snakemake would, with what the lease says."""
        if self.stopped:
            raise NotStartedError("it was stopped")
        along = Along()
        options = {**options, "env": self.environment(options.get("env") or os.environ)}
        along.begin(options)
        self.warden.lease(self.lease)
        try:
            process = popen(args, **options)
        finally:
            along.started()
        self.warden.began(process.pid, self.lease)
        if not self.processes:
            self.tell(process.pid)
        self.processes.append((process, along))
        if self.stopped:
            self.warden.stop(process.pid)
        return process

    def stop(self) -> None:
        """See to it that it ends: it has been interrupted."""
        self.stopped = True
        for process, _ in self.processes:
            self.warden.stop(process.pid)

    def hurry(self) -> None:
        """Kill it."""
        self.stopped = True
        for process, _ in self.processes:
            self.warden.kill(process.pid)

    def leave(self) -> None:
        """Take leave of its processes: they have ended, but for what they left in the background."""
        for process, _ in self.processes:
            self.warden.ended(process.pid, self.lease)

    def ending(self, error: BaseException | None) -> Ending:
        """Tell how it ended, by its processes rather than by what Snakemake makes of that."""
        failed = [process.returncode for process, _ in self.processes if process.returncode]
        code = failed[-1] if failed and error is not None else int(error is not None)
        said = self._says() if error is not None else NOTHING
        return {
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "said": said,
            "said_oom": said == MEMORY,
            "stopped": self.stopped or isinstance(error, NotStartedError),
        }

    def _says(self) -> str:
        """Look for what frameworks say of the device: on stderr, and in the rule's log files."""
        tails = [along.tail() for _, along in self.processes]
        return stderr_says(b"\n".join([*tails, *map(last_of, self.work.logs)]))


# -- give back ------------------------------------------------------------------------------------


def give_back(grant: Grant, works: Sequence[Work], ending: Ending) -> None:
    """Release a lease, and say what the broker noticed."""
    report = hub.release(grant, **ending)
    if report is None:
        return
    names = " and ".join(work.name for work in works)
    for note in report["notes"]:
        say_once(f"{names}: {note}")
    if report["remedy"] or report["outcome"] == OOM:
        say(_of_memory(names, works[0], grant, report), level="error")
    elif report["outcome"] in {FAILED, KILLED, OOM_SUSPECTED}:
        how = describe_end(ending.get("exit_code"), ending.get("signal"))
        say(f"{names} has failed ({how}), not for want of device memory")


def _of_memory(names: str, work: Work, grant: Grant, report: Mapping[str, Any]) -> str:
    """Say that device memory ran out, with numbers, and what comes of it."""
    devices = ", ".join(str(device["index"]) for device in grant.devices)
    booked = grant.message.get("memory_mib")
    peak = report["peak_mib"]
    text = f"{names} ran out of device memory on device {devices}"
    if report["outcome"] != OOM:
        text = f"{names} has failed, and may have run out of device memory on device {devices}"
    text += f": at most {format_mib(peak)} were seen" if peak else ": nothing was measured"
    text += f", {format_mib(booked)} booked" if booked else ""
    if report["remedy"] == SAME:
        return f"{text}. Others had taken what was booked for it"
    if work.ask.memory_mib is not None:
        return (
            f"{text}, as its resources say. Give it more, or more with each attempt:"
            f" gpu_mem_mb=lambda wildcards, attempt: attempt * {work.ask.memory_mib * work.ask.gpus}"
        )
    return (
        f"{text}. The next one is booked at {format_mib(report['next_mib'])}"
        if report.get("next_mib")
        else text
    )


# -- all of it ------------------------------------------------------------------------------------


@contextlib.contextmanager
def leased(work: Work, terms: Terms, running: Running) -> Iterator[Held | None]:
    """Hold a job's lease for the length of a block that runs it; `None` is what it runs without.

    Raises:
        NotStartedError: if the run came to its end while it waited.
        GrnError: if it is refused, or there is no broker.
    """
    grant = acquire(work, terms, running)
    if grant is None:
        yield None
        return
    held = Held(work, grant.message, running.warden, teller(grant))
    _say_granted(work, grant)
    error: BaseException | None = None
    try:
        with running.running(held), envhook.around(held):
            yield held
    except BaseException as problem:
        error = problem
        raise
    finally:
        ending = held.ending(error)
        held.leave()
        if error is not None and held.processes and held.lease is not None:
            end_marked(held.lease, terms.grace_s)
        give_back(grant, [work], ending)


def teller(grant: Grant) -> Callable[[int], None]:
    """Return what tells the broker of a lease's first process."""

    def tell(pid: int) -> None:
        if not grant.nested:
            grant.hub.started(grant.lease, pid)

    return tell


def _say_granted(work: Work, grant: Grant) -> None:
    devices = ", ".join(str(device["index"]) for device in grant.devices)
    booked = grant.message.get("memory_mib")
    how = (
        "to be measured"
        if grant.message.get("probe")
        else f"{format_mib(booked)} booked"
        if booked
        else "whole"
    )
    say(f"{work.name} has device {devices}, {how}")
