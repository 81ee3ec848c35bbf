"""Functions that tests have called elsewhere: they say where they ran. Light, as each process imports it."""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

from grn_plugins.prefect import leased

__all__ = ["Place", "dies", "place"]


class Place(NamedTuple):
    """Where a call ran, and when."""

    host: str
    mask: str
    pid: int
    begun: float
    ended: float


@leased(memory="whole")
def place(mark: str = "") -> Place:
    """Be somewhere; with a mark, until that file is gone."""
    begun = time.monotonic()
    if mark:
        with open(f"{mark}.{os.getpid()}", "w", encoding="ascii"):
            pass
    while mark and os.path.exists(mark):
        time.sleep(0.02)
    where = os.environ["GRN_SOCKET"], os.environ["CUDA_VISIBLE_DEVICES"]
    return Place(*where, os.getpid(), begun, time.monotonic())


@leased(memory="whole")
def dies() -> None:
    """Be killed; whoever called lives on."""
    os.kill(os.getpid(), signal.SIGKILL)
