"""Made-up traces that look like published ones, for who has none at hand; nothing is taken from a trace.

Fitted to figures of a production cluster that shares GPUs (Alibaba's gpu-v2023; Weng et al., "Beware of
Fragmentation", USENIX ATC 2023), its single-GPU tasks of 20 s to a day: 0.56 of them ask for a whole GPU;
run times are log-normal, 690 s in the middle and 2,900 s on the average, by type (0.83 in the logarithm)
and within a type (1.44); a hundred types, of which a few make up most; more jobs by day than by
night. Jobs of several devices are one in a hundred, half of them want all.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate

from grn.replay.trace import Row

__all__ = ["Synthetic", "synthetic_rows"]

_MEDIAN_S, _BETWEEN, _WITHIN = 690.0, 0.83, 1.44
_SHORTEST_S, _LONGEST_S = 20.0, 86400.0
_WHOLE = 0.56
_SHARES = (0.81, 0.81, 0.81, 0.65, 0.47, 0.47, 0.32, 0.22, 0.16)
_POPULAR = 1.3
_BY_DAY = 0.6
_DAY_S = 86400.0
_SEVERAL = 0.01


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What to make.

    Args:
        jobs: how many.
        load: of the machine, counting whole devices: 1 is as much as it can do.
        devices: of the machine.
        types: how many there are to draw from.
        users: likewise.
        gangs: also jobs of several devices.
        seed: of all that is drawn.
    """

    jobs: int = 20000
    load: float = 0.8
    devices: int = 8
    types: int = 100
    users: int = 12
    gangs: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    share: float
    median_s: float


def synthetic_rows(what: Synthetic) -> list[Row]:
    """Make a trace."""
    draw = random.Random(f"synthetic/{what.seed}")  # noqa: S311 - figures, not secrets
    types = [_type(number, draw) for number in range(what.types)]
    popular = list(accumulate((number + 1) ** -_POPULAR for number in range(what.types)))
    many = list(accumulate((number + 1) ** -1.0 for number in range(what.users)))
    drawn = []
    for _ in range(what.jobs):
        job_type = draw.choices(types, cum_weights=popular)[0]
        ran_s = job_type.median_s * math.exp(draw.gauss(0, _WITHIN))
        user = draw.choices(range(what.users), cum_weights=many)[0]
        drawn.append((job_type, min(_LONGEST_S, max(_SHORTEST_S, ran_s)), user, _gpus(what, draw)))
    span_s = sum(ran_s * gpus for _, ran_s, _, gpus in drawn) / what.devices / what.load
    return [
        Row(
            arrival_s=at,
            duration_s=round(ran_s, 1),
            gpus=gpus,
            share=job_type.share if gpus == 1 else 1.0,
            type=job_type.name if gpus == 1 else f"{job_type.name} on {gpus}",
            user=f"user{user}",
        )
        for at, (job_type, ran_s, user, gpus) in zip(
            _arrivals(what.jobs, span_s, draw), drawn, strict=True
        )
    ]


def _type(number: int, draw: random.Random) -> _Type:
    share = 1.0 if draw.random() < _WHOLE else draw.choice(_SHARES)
    return _Type(f"type{number:03d}", share, _MEDIAN_S * math.exp(draw.gauss(0, _BETWEEN)))


def _gpus(what: Synthetic, draw: random.Random) -> int:
    if not what.gangs or draw.random() >= _SEVERAL or what.devices == 1:
        return 1
    return what.devices if draw.random() < 0.5 else max(2, what.devices // 2)  # noqa: PLR2004 - half


def _arrivals(count: int, span_s: float, draw: random.Random) -> list[float]:
    """Draw times, more of them by day than by night."""
    times: list[float] = []
    while len(times) < count:
        at = draw.uniform(0.0, span_s)
        if draw.random() * (1 + _BY_DAY) <= 1 + _BY_DAY * math.sin(2 * math.pi * at / _DAY_S):
            times.append(round(at, 1))
    return sorted(times)
