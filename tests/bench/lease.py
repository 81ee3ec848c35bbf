"""What a lease costs on an idle broker: request to grant, and the whole of a short job's dealings.

Twice: after a rest, as a job that comes once in a while finds broker and caches, and back to back,
as a loop in a benchmark does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, percentile
from tests.bench.floor import FloorClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.client import Client

__all__ = ["measure"]

_MIB = 8192
_REST_S = 0.01
_US = 1e6


class _Times:
    """Seconds of the floor and of the broker, for the same thing."""

    def __init__(self) -> None:
        self.floor: list[float] = []
        self.broker: list[float] = []


def measure(*, quick: bool) -> list[Figure]:
    """Run the floor and the broker in turns."""
    rounds = 8 if quick else 40
    with stage.floor() as floor, stage.broker() as broker:
        bare, client = FloorClient(floor.socket), broker.client()
        _block(bare, client, 200, 0.0)  # warms caches
        rested, packed, dealings = _Times(), _Times(), _Times()
        for _ in range(rounds):
            _into(rested, _block(bare, client, 10, _REST_S))
            _into(packed, _block(bare, client, 50, 0.0))
            dealings.floor += [_timed(lambda: _dealings_plain(floor)) for _ in range(20)]
            dealings.broker += [_timed(lambda: _dealings(broker)) for _ in range(20)]
        client.close()
        bare.close()
    return [
        _ratio("request to grant after a rest, p50", 0.5, rested, 2),
        _ratio("request to grant after a rest, p99", 0.99, rested, 4),
        _ratio("request to grant back to back, p50", 0.5, packed, 2),
        _ratio("request to grant back to back, p99", 0.99, packed, 4),
        _ratio("connect + lease + release + close, p50", 0.5, dealings, 3),
    ]


def _into(times: _Times, block: _Times) -> None:
    times.floor += block.floor
    times.broker += block.broker


def _block(bare: FloorClient, client: Client, count: int, rest_s: float) -> _Times:
    times = _Times()
    for _ in range(count):
        time.sleep(rest_s)
        times.floor.append(_timed(bare.lease))
    for _ in range(count):
        time.sleep(rest_s)
        began = time.perf_counter()
        lease = client.acquire("bench", memory_mib=_MIB)
        times.broker.append(time.perf_counter() - began)
        lease.release()
    return times


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _dealings(broker: stage.Stage) -> None:
    client = broker.client()
    client.acquire("bench", memory_mib=_MIB).release()
    client.close()


def _dealings_plain(floor: stage.Stage) -> None:
    client = FloorClient(floor.socket)
    client.take()
    client.give()
    client.close()


def _ratio(what: str, share: float, times: _Times, limit: float) -> Figure:
    own, base = percentile(times.broker, share) * _US, percentile(times.floor, share) * _US
    return Figure(
        "lease",
        what,
        own / base,
        "x",
        limit,
        baseline=f"broker {own:,.0f} us, floor {base:,.0f} us",
        raw={"broker_us": own, "floor_us": base, "n": len(times.broker)},
    )
