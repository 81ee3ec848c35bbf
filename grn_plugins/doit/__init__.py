"""GRN for doit: actions of a `dodo.py` that wait for their share of a GPU, and run with it.

    from grn_plugins.doit import grn, grn_task

Everything else is doit's: what is up to date, what is shown, how tasks are run.
"""

from __future__ import annotations

from grn_plugins.doit.action import GrnAction
from grn_plugins.doit.creators import grn_task
from grn_plugins.doit.wrapping import grn

__all__ = ["GrnAction", "grn", "grn_task"]
