"""What the scheduler asks: which jobs wish for a device, and whether they would get it at once.

Must not: hold or book anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn import hub
from grn.errors import GrnError
from grn_plugins.snakemake.executor import terms_of
from grn_plugins.snakemake.granted import Work, message_of
from grn_plugins.snakemake.request import COUNTS, MEMORIES
from grn_plugins.snakemake.settings import ExecutorSettings
from grn_plugins.snakemake.wishes import Chosen, ask_of_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Wish = dict[str, Any]

__all__ = ["CannotTellError", "asked_by_this_process", "at_once", "wants_device", "wishes"]


class CannotTellError(Exception):
    """Nobody is there to be asked, or it is a broker of an older GRN."""


def wishes(jobs: Iterable[Any], workflow: Any) -> dict[int, Wish | None]:
    """Return by `id` what each GPU job would ask the broker; `None` if that shows only as it runs.

    Groups are such: their lease is computed when they start. So is what makes no sense, or cannot be
    evaluated: the executor meets the same, and says so.
    """
    settings = getattr(workflow, "executor_settings", None)
    settings = settings if isinstance(settings, ExecutorSettings) else ExecutorSettings()
    found: dict[int, Wish | None] = {}
    made: dict[Any, Wish] = {}
    chosen, terms = Chosen(settings.rules), terms_of(settings)
    for job in jobs:
        try:
            if job.is_group():
                if wants_device(job):
                    found[id(job)] = None
                continue
            ask = ask_of_job(job, chosen)
            if ask is not None:
                work = _work(job, ask)
                alike = (ask, work.type, work.commanded)
                if alike not in made:
                    made[alike] = message_of(work, terms)
                found[id(job)] = made[alike]
        except Exception:  # noqa: BLE001 - functions of the Snakefile, among others
            found[id(job)] = None
    return found


def _work(job: Any, ask: Any) -> Work:
    return Work.of(
        job.rule,
        ask,
        jobid=job.jobid,
        wildcards=job.wildcards_dict,
        params=dict(job.params.items()),
        threads=job.threads,
        command=job.shellcmd,
    )


def wants_device(job: Any) -> bool:
    """Whether a job, or one of a group, names a GPU; good enough for jobs that are not ready yet."""
    resources = job.scheduler_resources
    return any(
        resources.get(name) not in (None, 0, "", "0") for name in (*COUNTS, *MEMORIES, "gpu_share")
    )


def at_once(asked: Sequence[Wish], *, within_s: float) -> list[bool]:
    """Ask the broker which of these requests it would not let wait, in this order.

    Raises:
        CannotTellError: if it cannot be asked.
    """
    try:
        answer = hub.call({"op": "foresee", "wishes": list(asked)}, within_s=within_s)
    except GrnError as error:
        raise CannotTellError(error.message) from error
    return [bool(yes) for yes in answer["at_once"]]


def asked_by_this_process() -> int:
    """Return how many requests and leases of this process the broker knows."""
    return hub.shared().busy()
