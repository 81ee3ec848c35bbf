"""Negotiation without `--executor grn`: for the local executor, and inside a cluster's jobs.

Design note. A job that a cluster's executor submits is, on its node, a Snakemake of its own that runs one
job with the executor `local`. So it is enough that `local` is ours: here and there the same code runs as
with `--executor grn`, with its attempts, groups and stopping. Rejected: wrapping the function that runs a
job, which leaves out all of these.

Two ways in: `GRN_NEGOTIATE=1`, which travels with a job's environment and needs no change to a Snakefile,
and `negotiate()` in the Snakefile, which each job's Snakemake reads. `GRN_NEGOTIATE=0` wins over both: a
child of an executor that negotiates has it, so nobody asks twice for one job.

Promises: without either, nothing is imported and nothing changes; the device that a cluster has given
(its CUDA_VISIBLE_DEVICES) is the only one that is asked for; inside a lease, jobs share that lease; a rule
with `retries:` is not repeated by each Snakemake between the cluster and the job, as it would be without us.
Must not: raise at a start of Snakemake that runs nothing, such as `snakemake --version`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEVER", "VARIABLE", "is_ours", "negotiate", "negotiate_if_asked"]

VARIABLE = "GRN_NEGOTIATE"
NEVER = "0"
"""The variable's value for those whose job is in somebody's hands already."""

_IN_A_JOB = "REMOTE"
"""What Snakemake calls the mode of those that a cluster's executor starts."""
_OFF = frozenset({NEVER, "no", "off", "false", "never"})


def negotiate() -> None:
    """Have jobs that wish for a GPU wait for a lease, whichever executor runs this workflow.

    To be called in a Snakefile, before or after its rules; calling it again changes nothing.
    """
    if os.environ.get(VARIABLE, "").strip().lower() not in _OFF:
        _make_local_ours()


def negotiate_if_asked() -> None:
    """Do so if the environment says so. Called whenever Snakemake starts."""
    said = os.environ.get(VARIABLE, "").strip().lower()
    if not said or said in _OFF:
        return
    try:
        _make_local_ours()
    except Exception as error:  # noqa: BLE001 - `snakemake --version` must not end here
        text = f"grn: {VARIABLE}={said}, but this Snakemake cannot negotiate: {error}"
        print(text, file=sys.stderr)  # noqa: T201 - there is no log yet


def _make_local_ours() -> None:
    """Let the name `local` mean our executor, also where Snakemake has not come to that name yet."""
    from snakemake.executors import local  # noqa: PLC0415 - only who negotiates needs it
    from snakemake_interface_executor_plugins.registry import (  # noqa: PLC0415
        ExecutorPluginRegistry,
    )

    registry = ExecutorPluginRegistry()
    registry.register_plugin("local", local)  # nothing if it is
    plugin: Any = registry.plugins["local"]
    if not is_ours(plugin):
        plugin.executor = _ours(plugin.executor)


def is_ours(plugin: Any) -> bool:
    """Whether an executor plugin of Snakemake's has been made ours."""
    return bool(getattr(plugin.executor, "__grn__", False))


def _ours(base: Any) -> type[Any]:
    class Local(base):  # type: ignore[misc]  # Snakemake asks whether it is a class of its own
        """Stands for our executor, which is imported when one is made."""

        __grn__ = True

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            from snakemake.exceptions import WorkflowError  # noqa: PLC0415

            try:
                return _executor()(*args, **kwargs)
            except ImportError as error:
                raise WorkflowError(
                    f"grn: this run cannot negotiate for devices: {error}"
                ) from error

    return Local


def _executor() -> Any:
    from grn_plugins.snakemake.executor import Executor  # noqa: PLC0415 - heavy

    class Negotiating(Executor):
        """The executor `grn` where the run's executor is another one."""

        def __post_init__(self) -> None:
            """Take the settings from where they are: there are no flags `--grn-…` for us."""
            self.executor_settings = _settings(os.environ)
            if self.workflow.exec_mode.name == _IN_A_JOB:
                for rule in self.workflow.rules:
                    rule.restart_times = (
                        0  # who has submitted the job tries again, and would 3 * 3 times
                    )
            super().__post_init__()

    return Negotiating


def _settings(environ: Mapping[str, str]) -> Any:
    """Read the settings of the executor from `SNAKEMAKE_GRN_…`."""
    from dataclasses import fields  # noqa: PLC0415

    from grn_plugins.snakemake.settings import ExecutorSettings  # noqa: PLC0415

    names = [each.name for each in fields(ExecutorSettings)]
    given = {name: environ.get(f"SNAKEMAKE_GRN_{name.upper()}") for name in names}
    return ExecutorSettings(**{name: value or None for name, value in given.items()})
