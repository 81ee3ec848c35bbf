"""A lighter stand-in for the first run: as large in memory, but over in a moment."""

from __future__ import annotations

import os

import grn
from work import fit


@grn.job
def train(rate: float) -> float:
    """Be the real thing, which takes its time."""
    print(f"training, {os.environ['GRN_MEM_MIB']} MiB booked", flush=True)
    return fit(rate, size_mib=200, steps=200)


@train.profile
def one_epoch(rate: float) -> None:
    """Be measured in place of the first run; the arguments are the same."""
    print("measuring", flush=True)
    fit(rate, size_mib=200, steps=120)


def main() -> None:
    """Train twice: only the first time is measured beforehand."""
    for rate in (0.5, 0.6):
        print(f"rate {rate}: loss {train(rate):.4f}", flush=True)


if __name__ == "__main__":
    main()
