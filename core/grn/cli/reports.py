"""What `grn run` says on standard error while it goes on, in plain lines."""

from __future__ import annotations

from grn.rules.outcome import SAME
from grn.rules.units import format_mib
from grn.supervise.report import Reporter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.supervise.job import Job
    from grn.supervise.outputs import Outputs

__all__ = ["ManyJobs", "OneJob", "placed"]


def placed(job: Job) -> str:
    """Say where a job runs: `device 0`, `devices 0, 1`, or nothing."""
    numbers = ", ".join(str(device["index"]) for device in job.devices)
    return f"device{'s' if len(job.devices) > 1 else ''} {numbers}" if numbers else ""


class OneJob(Reporter):
    """For one command, which has the terminal: only what is needed to understand a delay or an end."""

    def __init__(self, outputs: Outputs, *, quiet: bool) -> None:
        self._outputs = outputs
        self._quiet = quiet

    def note(self, text: str) -> None:
        """Show it, unless told to be quiet."""
        if not self._quiet:
            self._outputs.say(f"grn run: {text}")

    def waits(self, jobs: int, reason: str) -> None:
        """Say why nothing happens yet."""
        del jobs
        self.note(f"waiting: {reason}")

    def again(self, job: Job) -> None:
        """Say that the command starts once more."""
        self.note(f"out of device memory; running it again ({again_with(job)})")

    def tried(self, job: Job, text: str) -> None:
        """Say what was tried in vain."""
        del job
        self._outputs.say(f"grn run: {text}")

    def ended(self, job: Job) -> None:
        """Say what the command cannot say itself."""
        if job.problem and not job.never_started_by_choice:
            self._outputs.say(f"grn run: {job.problem}")
        elif job.note:
            self.note(job.note)
        elif job.timed_out:
            self.note("stopped: the time limit was reached")


class ManyJobs(Reporter):
    """For several commands: a line when one starts and when one ends."""

    def __init__(self, outputs: Outputs, *, quiet: bool) -> None:
        self._outputs = outputs
        self._quiet = quiet

    def note(self, text: str) -> None:
        """Show it, unless told to be quiet."""
        self._say(f"grn run: {text}")

    def waits(self, jobs: int, reason: str) -> None:
        """Say why nothing happens yet."""
        self._say(f"grn run: {jobs} waiting: {reason}")

    def started(self, job: Job) -> None:
        """Say where."""
        place = f" on {placed(job)}" if job.devices else ""
        probe = " (probe)" if job.grant.get("probe") else ""
        self._say(f"{_name(job)} started{place}{probe}")

    def again(self, job: Job) -> None:
        """Say that it runs once more."""
        self._say(f"{_name(job)} out of device memory, again ({again_with(job)})")

    def tried(self, job: Job, text: str) -> None:
        """Say what was tried in vain."""
        self._outputs.say(f"{_name(job)} {text}")

    def ended(self, job: Job) -> None:
        """Say how; what was never started when the run was stopped is in the summary."""
        if not job.never_started_by_choice:
            self._say(f"{_name(job)} {how_it_ended(job)}")

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._outputs.say(line)


def how_it_ended(job: Job) -> str:
    """Say how a job ended, with its peak and time where there are such."""
    parts = [job.result]
    if job.peak_mib is not None:
        parts.append(f"peak {format_mib(job.peak_mib)}")
    if job.tries:
        parts.append(f"{job.ran_s:.1f} s")
    return ", ".join(parts)


def again_with(job: Job) -> str:
    """Say what a job that ran out of memory asks for now."""
    wish = job.request["memory_mib"]
    if job.remedy == SAME:
        return "with the same, since others had filled the device"
    if job.request.get("largest"):
        return "alone on the largest device"
    return f"with {format_mib(wish)}" if isinstance(wish, int) else "with what is known by now"


def _name(job: Job) -> str:
    return f"[{job.number} {job.label}]"
