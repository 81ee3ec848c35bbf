"""NVIDIA's Multi-Process Service: whether a daemon answers, that can hold jobs to their shares.

MPS lets several processes use one GPU through a server of its own, and takes limits for each of them
from their environment: device memory, and a part of the multiprocessors. A program that finds no
daemon runs silently without either, so nothing is promised unless one has answered.

Must not: start or stop a daemon, or change its settings. They are the operator's.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["pipe_folder"]

_USUAL_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own default


def pipe_folder(environ: Mapping[str, str]) -> str:
    """Return where a daemon and its clients meet: the variable that they read, or their default."""
    return os.path.abspath(environ.get("CUDA_MPS_PIPE_DIRECTORY") or _USUAL_FOLDER)
