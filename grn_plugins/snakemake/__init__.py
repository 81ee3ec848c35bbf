"""Snakemake under GRN: the executor `grn`, the hook for other executors, the scheduler.

In a Snakefile: `from grn_plugins.snakemake import gpu_mem, negotiate`.

Must not: import Snakemake, or anything heavy: Snakemake's plugins are imported at each of its starts.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from grn_plugins.snakemake.hook import negotiate
    from grn_plugins.snakemake.learnt import gpu_mem

__all__ = ["gpu_mem", "negotiate"]


def __getattr__(name: str) -> Any:
    """Import what a Snakefile asks for, when it asks for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - most starts ask for nothing

    module = import_module(f"{__name__}.{'hook' if name == 'negotiate' else 'learnt'}")
    value = globals()[name] = getattr(module, name)
    return value
