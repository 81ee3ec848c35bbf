"""Prefect flows whose tasks get devices: `GRNTaskRunner`, and how tasks say what they need.

    @task(retries=2)
    @gpu(1, memory="8GiB")
    def train(rate): ...


    @flow(task_runner=GRNTaskRunner())
    def study():
        return [future.result() for future in train.map([0.1, 0.3])]

`leased` is the same for tasks that run elsewhere: in workers of Dask or Ray, or called directly.
"""

from __future__ import annotations

import sys

from grn_plugins.prefect.needs import gpu, gpu_options

if sys.platform != "linux":  # pragma: no cover
    raise ImportError(
        "grn_plugins.prefect needs Linux: it watches processes by pidfd, and finds them in /proc"
    )
try:
    from grn_plugins.prefect.leased import leased
    from grn_plugins.prefect.runner import GRNTaskRunner
except ModuleNotFoundError as _error:
    if _error.name != "prefect":
        raise
    raise ModuleNotFoundError(
        "Prefect is not installed here: pip install 'grn-plugins[prefect]'", name="prefect"
    ) from None

__all__ = ["GRNTaskRunner", "gpu", "gpu_options", "leased"]
