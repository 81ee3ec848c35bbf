"""Other packages that would replace ours without a word.

The older `gpu-resource-negotiator` installs a package `grn` too: whichever was installed last
overwrites the other one's files.
"""

from __future__ import annotations

import os
import sys

__all__ = ["clashing_package"]

_OLDER = "gpu_resource_negotiator-"


def clashing_package() -> str | None:
    """Say what is wrong and how to cure it, if the older package is installed beside us."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # an entry of the path that is a zip file, or not there
        if any(name.lower().startswith(_OLDER) for name in names):
            return (
                f"gpu-resource-negotiator is installed in {folder}: it overwrites the package grn;"
                " cure: pip uninstall gpu-resource-negotiator, then"
                " pip install --force-reinstall grn-plugins"
            )
    return None
