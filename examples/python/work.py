"""The work of these examples: fit a curve to noisy points, holding a table of a given size.

Stands for a training: it takes memory, it takes time, and it returns a loss. Standard library only.
"""

from __future__ import annotations

import array
import math
import random
import time

__all__ = ["fit"]

_MIB = 1 << 20
_POINTS = 200


def fit(rate: float, *, size_mib: int, steps: int, seed: int = 0) -> float:
    """Fit `a sin(x) + b` by gradient descent; return the mean squared error.

    Args:
        rate: how far each step goes.
        size_mib: memory that is held meanwhile.
        steps: how many steps are made, a hundredth of a second each.
        seed: of the noise.

    Raises:
        ArithmeticError: if the rate is so large that the fit runs away.
    """
    table = array.array("d", bytes(size_mib * _MIB))  # written, so that it is really there
    dice = random.Random(seed)  # noqa: S311 - noise, no secret
    for place in range(_POINTS):
        table[place] = 3 * math.sin(place / 10) + 1 + dice.gauss(0, 0.1)
    a = b = loss = 0.0
    for _ in range(steps):
        until = time.monotonic() + 0.01
        misses = [a * math.sin(place / 10) + b - table[place] for place in range(_POINTS)]
        loss = sum(miss * miss for miss in misses) / _POINTS
        if loss > 1e6:  # noqa: PLR2004 - it was 6 at the start
            raise ArithmeticError(f"rate {rate:g} is too large: the fit runs away")
        a -= rate * sum(m * math.sin(x / 10) for x, m in enumerate(misses)) / _POINTS
        b -= rate * sum(misses) / _POINTS
        time.sleep(max(0.0, until - time.monotonic()))
    return loss
