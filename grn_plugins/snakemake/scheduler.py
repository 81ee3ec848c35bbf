"""The scheduler `grn`: a job that would only wait for a device does not take a core meanwhile.

Design note. Snakemake gives a job its cores when it hands it to the executor. A GPU job waits there for its
lease, and its cores do nothing. So before each selection the broker is asked which of the GPU jobs that
are ready would be granted at once; the others are not handed out, as long as there are jobs without a
GPU to which their cores could go. What was handed out a moment ago and has not reached the broker yet
is asked about with them, or the same room would be given away twice. Everything else is left to Snakemake's
own greedy scheduler; GPU jobs that can run go first among jobs of one priority, since a device is what
there is least of.

Rejected: a count of devices as a limit (`--resources gpu=2`), which keeps jobs from sharing one.

Promises: where nothing runs, something is selected, or the run would stand still; with an executor that
sends jobs elsewhere, in a child Snakemake and for a workflow without GPU jobs it selects as Snakemake does.
Must not: be heavy to import, since Snakemake imports it at each of its starts.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from snakemake_interface_scheduler_plugins.base import SchedulerBase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    Resources = Mapping[str, int | str]
    Wish = dict[str, Any]

__all__ = ["Scheduler"]

_ASKED_ABOUT = 256
"""Of the GPU jobs that are ready, at once: no machine starts more."""
_ANSWER_WITHIN_S = 5.0
_ARRIVES_WITHIN_S = 3.0
"""What was handed out has asked the broker by then, or has ended."""
_CORES = "_cores"
_MAIN = "default"
"""What the mode of a Snakemake is called that is nobody's child."""


class Scheduler(SchedulerBase):  # type: ignore[misc]  # its module ships no types
    """Selects jobs for a machine whose devices the broker gives out."""

    def __post_init__(self) -> None:
        """Begin with nothing handed out."""
        self._cores: int | str | None = None
        """All of them: what is free before anything runs."""
        self._handed_out: dict[Any, float] = {}
        """GPU jobs, and when."""
        self._greedy: Any = None
        self._gave_up = False

    def select_jobs(
        self,
        selectable_jobs: Sequence[Any],
        remaining_jobs: Sequence[Any],
        available_resources: Resources,
        input_sizes: dict[Any, int],
    ) -> Sequence[Any]:
        """Select from the jobs that are ready those that are to be started now."""
        jobs = list(selectable_jobs)
        cores = available_resources.get(_CORES)
        self._cores = cores if self._cores is None else self._cores
        wishes = self._wishes(jobs)
        held = self._held_back(jobs, wishes, remaining_jobs)
        if held:
            go_first = [job for job in jobs if id(job) in wishes and id(job) not in held]
            others = [job for job in jobs if id(job) not in wishes]
            selected = self._select_in_turn(go_first, others, available_resources, input_sizes)
            if not selected and cores == self._cores:
                # Nothing runs, and nobody would call us again.
                selected = self._select(jobs, available_resources, input_sizes)[:1]
        else:
            selected = self._select(jobs, available_resources, input_sizes)
        now = time.monotonic()
        self._handed_out |= {job: now for job in selected if id(job) in wishes}
        return selected

    # -- which jobs are kept back ---------------------------------------------------------------

    def _wishes(self, jobs: Iterable[Any]) -> dict[int, Wish | None]:
        """Return for each GPU job what it will ask the broker; `None` where only the executor knows."""
        workflow = getattr(self.dag, "workflow", None)
        if workflow is None or self._gave_up or not _negotiates_here(workflow):
            return {}
        from grn_plugins.snakemake import foreseeing  # noqa: PLC0415 - heavy

        return foreseeing.wishes(jobs, workflow)

    def _held_back(
        self, jobs: Sequence[Any], wishes: Mapping[int, Wish | None], remaining: Iterable[Any]
    ) -> set[int]:
        """Return which GPU jobs would only wait, if others can use their cores."""
        asking = [job for job in jobs if wishes.get(id(job)) is not None][:_ASKED_ABOUT]
        if not asking or not self._others_could_use_cores(jobs, wishes, remaining):
            return set()
        from grn_plugins.snakemake import foreseeing  # noqa: PLC0415 - heavy

        ahead = self._on_their_way()
        asked = [wish for job in asking if (wish := wishes[id(job)]) is not None]
        try:
            at_once = foreseeing.at_once([*ahead, *asked], within_s=_ANSWER_WITHIN_S)
        except foreseeing.CannotTellError as error:
            self._gave_up = True
            self.logger.warning("grn: the scheduler selects as Snakemake's own does: %s", error)
            return set()
        goes = {id(job) for job, yes in zip(asking, at_once[len(ahead) :], strict=True) if yes}
        return {number for number, wish in wishes.items() if wish is not None} - goes

    @staticmethod
    def _others_could_use_cores(
        ready: Sequence[Any], wishes: Collection[int], remaining: Iterable[Any]
    ) -> bool:
        """Whether there are jobs without a GPU, now or later; a target such as `all` does nothing."""
        if any(id(job) not in wishes for job in ready):
            return True
        from grn_plugins.snakemake import foreseeing  # noqa: PLC0415 - heavy

        others = (job for job in remaining if not getattr(job, "is_norun", False))
        return any(not foreseeing.wants_device(job) for job in others)

    def _on_their_way(self) -> list[Wish]:
        """Return the wishes of jobs that were handed out and have not asked the broker yet."""
        from grn_plugins.snakemake import foreseeing  # noqa: PLC0415 - heavy

        since = time.monotonic() - _ARRIVES_WITHIN_S
        self._handed_out = {job: at for job, at in self._handed_out.items() if at > since}
        workflow: Any = getattr(self.dag, "workflow", None)
        running = list(getattr(getattr(workflow, "scheduler", None), "running", ()))
        late = [job for job in self._handed_out if job in running]
        arrived = foreseeing.asked_by_this_process()
        missing = max(0, sum(map(foreseeing.wants_device, running)) - arrived)
        made = foreseeing.wishes(late[max(0, len(late) - missing) :], workflow)
        return [wish for wish in made.values() if wish is not None]

    # -- Snakemake's own selection --------------------------------------------------------------

    def _select_in_turn(
        self,
        go_first: Sequence[Any],
        others: Sequence[Any],
        available: Resources,
        sizes: dict[Any, int],
    ) -> list[Any]:
        """Select GPU jobs before others of their priority."""
        left = dict(available)
        selected: list[Any] = []
        levels = sorted({_priority(job) for job in [*go_first, *others]}, reverse=True)
        for level in levels:
            for jobs in (go_first, others):
                some = [job for job in jobs if _priority(job) == level]
                chosen = self._select(some, left, sizes) if some else []
                selected += chosen
                _take(left, chosen)
        return selected

    def _select(
        self, jobs: Sequence[Any], available: Resources, sizes: dict[Any, int]
    ) -> list[Any]:
        if self._greedy is None:
            from snakemake.scheduling import greedy  # noqa: PLC0415 - not where plugins are listed

            settings = greedy.SchedulerSettings()
            self._greedy = greedy.Scheduler(self.dag, settings, self.logger)
        return list(self._greedy.select_jobs(list(jobs), [], available, sizes))


def _negotiates_here(workflow: Any) -> bool:
    """Whether the jobs of this Snakemake ask the broker of this machine, job by job."""
    import os  # noqa: PLC0415

    from grn_plugins.snakemake.hook import NEVER, VARIABLE, is_ours  # noqa: PLC0415 - seldom asked

    mode = getattr(getattr(workflow, "exec_mode", None), "name", _MAIN).lower()
    if mode != _MAIN or os.environ.get(VARIABLE) == NEVER:
        return False
    plugin = getattr(workflow, "executor_plugin", None)
    return plugin is not None and (plugin.name == "grn" or is_ours(plugin))


def _priority(job: Any) -> Any:
    return job.priority


def _take(left: dict[str, int | str], jobs: Iterable[Any]) -> None:
    for job in jobs:
        for name, value in job.scheduler_resources.items():
            have = left.get(name)
            if isinstance(have, int) and isinstance(value, int) and have != sys.maxsize:
                left[name] = have - value
