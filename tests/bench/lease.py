"""What a lease costs on an idle broker: request to grant, and the whole of a short job's dealings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, median, percentile
from tests.bench.floor import FloorClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.client import Client, Lease

__all__ = ["measure"]

_BLOCK = 50
_MIB = 8192
_US = 1e6


def measure(*, quick: bool) -> list[Figure]:
    """Run the floor and the broker in turns."""
    rounds = 10 if quick else 60
    with stage.floor() as floor, stage.broker() as broker:
        bare, client = FloorClient(floor.socket), broker.client()
        plain: list[float] = []
        grants: list[float] = []
        releases: list[float] = []
        whole_plain: list[float] = []
        whole: list[float] = []
        for turn in range(rounds):
            asked = [_timed(bare.lease) for _ in range(_BLOCK)]
            held = [_held(client) for _ in range(_BLOCK)]
            short_plain = [_timed(lambda: _dealings_plain(floor)) for _ in range(_BLOCK // 5)]
            short = [_timed(lambda: _dealings(broker)) for _ in range(_BLOCK // 5)]
            if turn == 0:
                continue  # the first turn warms caches
            plain += asked
            grants += [grant for grant, _ in held]
            releases += [release for _, release in held]
            whole_plain += short_plain
            whole += short
        client.close()
        bare.close()
    return [
        _ratio("request to grant, p50", 0.5, grants, plain, 2),
        _ratio("request to grant, p99", 0.99, grants, plain, 4),
        _ratio("release to its answer, p50", 0.5, releases, plain, None),
        _ratio("connect + lease + release + close, p50", 0.5, whole, whole_plain, 3),
    ]


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _held(client: Client) -> tuple[float, float]:
    """Return the seconds from request to grant, and from release to its answer."""
    began = time.perf_counter()
    lease: Lease = client.acquire("bench", memory_mib=_MIB)
    granted = time.perf_counter()
    lease.release()
    return granted - began, time.perf_counter() - granted


def _dealings(broker: stage.Stage) -> None:
    client = broker.client()
    client.acquire("bench", memory_mib=_MIB).release()
    client.close()


def _dealings_plain(floor: stage.Stage) -> None:
    client = FloorClient(floor.socket)
    client.take()
    client.give()
    client.close()


def _ratio(
    what: str, share: float, ours: list[float], bare: list[float], limit: float | None
) -> Figure:
    own, base = percentile(ours, share) * _US, percentile(bare, share) * _US
    return Figure(
        "lease",
        what,
        own / base,
        "x",
        limit,
        baseline=f"broker {own:,.0f} us, floor {base:,.0f} us",
        raw={"broker_us": own, "floor_us": base, "median_us": median(ours) * _US, "n": len(ours)},
    )
