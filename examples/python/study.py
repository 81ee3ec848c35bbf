"""A study: fifty trials of a random search on four worker processes, some of which fail.

The workers know nothing of devices. Whichever of them has a trial asks for room, gets a device, and
gives it back, also when the trial raises.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor

import grn
from work import fit


@grn.job(type="study")
def trial(rate: float) -> float:
    """Return the loss."""
    return fit(rate, size_mib=100, steps=40)


def main() -> None:
    """Search, and tell the best rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    dice = random.Random(1)  # noqa: S311 - a search, no secret
    rates = [10 ** dice.uniform(-2, 1) for _ in range(args.trials)]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(args.workers, mp_context=fork) as pool:
        trials = {rate: pool.submit(trial, rate) for rate in rates}
        losses = {rate: each.result() for rate, each in trials.items() if each.exception() is None}
    best = min(losses, key=losses.__getitem__)
    failed = args.trials - len(losses)
    print(f"{args.trials} trials, {failed} failed; best rate {best:.3f}, loss {losses[best]:.4f}")


if __name__ == "__main__":
    main()
