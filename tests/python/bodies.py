"""What jobs of these tests do, in whichever process they run."""

from __future__ import annotations

import os

from grn.client import Client
from grn.testing.cuda import SimulatedCuda
from tests.env import eventually

__all__ = ["hold", "holders", "seen_peak", "told"]


def told() -> dict[str, str]:
    """Return what a lease has told this process."""
    names = ("CUDA_VISIBLE_DEVICES", "GRN_LEASE", "GRN_DEVICES", "GRN_MEM_MIB")
    return {name: os.environ[name] for name in names if name in os.environ}


def seen_peak(lease: str) -> int:
    """Return the peak of a lease as the broker knows it."""
    with Client() as client:
        leases = client.status()["leases"]
    return next((x["peak_mib"] or 0 for x in leases if x["id"] == lease), 0)


def hold(mib: int, ordinal: int = 0) -> SimulatedCuda:
    """Hold simulated device memory, and wait until the broker has seen it."""
    cuda = SimulatedCuda(os.environ)
    cuda.hold(ordinal, mib)
    lease = os.environ["GRN_LEASE"]
    eventually(lambda: seen_peak(lease) >= mib, what=f"{mib} MiB seen")
    return cuda


def holders(folder: str, count: int) -> int:
    """Say that one more is here, wait until `count` are, and return how many were seen."""
    with open(os.path.join(folder, str(os.getpid())), "w", encoding="ascii"):
        pass
    return eventually(lambda: len(os.listdir(folder)) >= count and len(os.listdir(folder)))
