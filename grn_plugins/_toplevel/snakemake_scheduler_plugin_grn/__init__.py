"""Found by Snakemake (9.10 and newer) through its name: makes `--scheduler grn` known.

It is imported at every start of Snakemake, whatever the scheduler: so it imports next to nothing, and
a GRN that is broken is said when the scheduler is used, not before.
"""

__all__ = ["Scheduler"]

Scheduler: type

try:
    from grn_plugins.snakemake.scheduler import Scheduler as _Scheduler
except Exception as _error:  # noqa: BLE001 - else `snakemake --version` would end with a traceback
    from typing import Any

    from snakemake_interface_common.exceptions import WorkflowError
    from snakemake_interface_scheduler_plugins.base import SchedulerBase

    _problem = f"{type(_error).__name__}: {_error}"

    class _Broken(SchedulerBase):  # type: ignore[misc]  # without types in some releases
        """Says what is wrong as soon as it is used."""

        def __post_init__(self) -> None:
            """Refuse to be used."""
            raise WorkflowError(
                f"the scheduler grn cannot be used: GRN is broken here ({_problem})"
            )

        def select_jobs(self, *args: Any, **kwargs: Any) -> None:
            """Select nothing."""

    Scheduler = _Broken
else:
    Scheduler = _Scheduler
