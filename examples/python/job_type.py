"""Two needs, two types: an argument that changes the need belongs into the type, a seed does not."""

from __future__ import annotations

import os

import grn
from work import fit


@grn.job(type="{function} size={size_mib}")
def train(size_mib: int, seed: int) -> str:
    """Return what was booked on the device."""
    fit(0.5, size_mib=size_mib, steps=120, seed=seed)
    return os.environ["GRN_MEM_MIB"]


def main() -> None:
    """Run both sizes with two seeds each."""
    for size_mib in (100, 300):
        for seed in (1, 2):
            print(f"size {size_mib}, seed {seed}: {train(size_mib, seed)} MiB booked")


if __name__ == "__main__":
    main()
