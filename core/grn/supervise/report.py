"""What a run tells people while it goes on: the interface, and the one that says nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from grn.supervise.job import Job

__all__ = ["Reporter"]


class Reporter:
    """Says nothing. Subclasses say what they want; none may write to the jobs' standard output."""

    def note(self, text: str) -> None:
        """Tell something about the run as a whole."""

    def waits(self, jobs: int, reason: str) -> None:
        """Nothing has run for a while, since so many jobs wait; the first one for this reason."""

    def may_start(self, job: Job, grant: Mapping[str, Any]) -> bool:
        """A job has its lease, and no process yet; `False`: the lease is given back, unused."""
        del job, grant
        return True

    def started(self, job: Job) -> None:
        """A job has its lease and its process."""

    def again(self, job: Job) -> None:
        """A job ran out of device memory and asks again for more."""

    def tried(self, job: Job, text: str) -> None:
        """A job that ran several times has failed for good: what was tried."""

    def ended(self, job: Job) -> None:
        """A job is over."""
