"""A flavor by its name, for whoever makes a request.

Promises: the files are read at each call, so that an edit counts for the next request.
"""

from __future__ import annotations

import os

from grn.config import tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["resolve"]


def resolve(
    name: str, start_dir: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return what the flavor gives, in the words of a request.

    Only what it says is there: of `gpus` (None: no wish), `memory_mib` (MiB or "whole"), `cpus`, `ram_mib`,
    `policy`, `priority`, and `env` (a dict). The project's file is looked for from `start_dir`
    (default: the working folder) upwards.

    Raises:
        UsageError: there is no such flavor, or a file is wrong.
    """
    return dict(tables.load(start_dir, environ).flavor(name).values)
