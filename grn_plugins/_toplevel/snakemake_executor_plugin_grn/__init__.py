"""Found by Snakemake through its name: the executor `grn`.

Snakemake imports all installed plugins at each of its starts, whatever it is asked to do. So this is
little, loads nothing heavy, and can never be the reason that Snakemake does not start.
"""

import os
from typing import Any

from snakemake_interface_executor_plugins.executors.base import AbstractExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=False,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
)

try:
    from grn_plugins.snakemake.settings import ExecutorSettings
except Exception:  # noqa: BLE001 - told by the executor, if somebody wants it
    ExecutorSettings = ExecutorSettingsBase  # type: ignore[misc]  # no flags then


class Executor(AbstractExecutor):  # type: ignore[misc]  # Snakemake ships no types
    """Stands for the executor until one is wanted: only then is it loaded."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Load the executor, and make one.

        Raises:
            WorkflowError: if GRN cannot be loaded.
        """
        try:
            from grn_plugins.snakemake.executor import Executor as Real  # noqa: PLC0415 - heavy
        except Exception as error:
            from snakemake_interface_common.exceptions import WorkflowError  # noqa: PLC0415

            raise WorkflowError(
                f"--executor grn: GRN cannot be loaded ({type(error).__name__}: {error}). Install it"
                " again with pip install --force-reinstall 'grn-plugins[snakemake]', and see grn doctor"
            ) from error
        return Real(*args, **kwargs)


if os.environ.get("GRN_NEGOTIATE"):
    try:
        from grn_plugins.snakemake.hook import negotiate_if_asked

        negotiate_if_asked()
    except Exception as error:  # noqa: BLE001 - a broken GRN must not keep Snakemake from starting
        import sys

        sys.stderr.write(f"grn: GRN_NEGOTIATE has no effect: {type(error).__name__}: {error}\n")
