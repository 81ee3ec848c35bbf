"""A function becomes a job: it is measured the first time, and placed by what was learnt after that."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import grn
from work import fit


@grn.job
def train(rate: float) -> tuple[float, str]:
    """Return the loss, and where it was computed."""
    where = f"device {os.environ['CUDA_VISIBLE_DEVICES']}, {os.environ['GRN_MEM_MIB']} MiB booked"
    return fit(rate, size_mib=200, steps=120), where


def main() -> None:
    """Train once, then four times at once: threads may call jobs, each runs in its own process."""
    rates = [0.1, 0.2, 0.4, 0.8, 1.6]
    results = [train(rates[0])]
    with ThreadPoolExecutor() as pool:
        results += pool.map(train, rates[1:])
    for rate, (loss, where) in zip(rates, results, strict=True):
        print(f"rate {rate}: loss {loss:.4f} on {where}")


if __name__ == "__main__":
    main()
