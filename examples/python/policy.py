"""Where jobs go: `spread` takes the device with most room, `pack` fills one before the next."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import grn
from work import fit


@grn.job(memory="600MiB", policy="spread")
def wide(rate: float) -> str:
    """Return the device."""
    fit(rate, size_mib=50, steps=60)
    return os.environ["CUDA_VISIBLE_DEVICES"]


@grn.job(memory="600MiB", policy="pack")
def tight(rate: float) -> str:
    """Return the device."""
    fit(rate, size_mib=50, steps=60)
    return os.environ["CUDA_VISIBLE_DEVICES"]


def main() -> None:
    """Start two jobs at once under each policy; two fit on one device."""
    with ThreadPoolExecutor() as pool:
        print("spread:", *sorted(pool.map(wide, [0.5, 0.6])))
        print("pack:", *sorted(pool.map(tight, [0.5, 0.6])))


if __name__ == "__main__":
    main()
