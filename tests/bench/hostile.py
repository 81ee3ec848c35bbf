"""How long a good client waits for its grants beside five hundred bad connections."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, percentile
from tests.reliability.badclients import crowd

if TYPE_CHECKING:
    from grn.client import Client

__all__ = ["measure"]

_CROWD, _FILES = 500, 64
_MIB = 8192
_LIMIT_MS = 50.0


def measure(*, quick: bool) -> list[Figure]:
    """Time grants while the crowd comes, and while it is there; before, for comparison."""
    rounds = 1 if quick else 5
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        with stage.broker() as broker:
            client = broker.client()
            alone += [_grant_ms(client) for _ in range(200)]
            resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (_FILES, _FILES))
            with crowd(broker.socket, _CROWD) as comes:
                beside += [_grant_ms(client) for _ in comes]
                beside += [_grant_ms(client) for _ in range(200)]
            client.close()
    p99, before = (percentile(times, 0.99) for times in (beside, alone))
    return [
        Figure(
            "hostile",
            f"request to grant beside {_CROWD} bad connections, p99",
            p99,
            "ms",
            _LIMIT_MS,
            baseline=f"without them {before:.2f} ms; slowest {max(beside):.1f} ms",
            raw={"p99_ms": p99, "alone_p99_ms": before, "slowest_ms": max(beside)},
        )
    ]


def _grant_ms(client: Client) -> float:
    began = time.perf_counter()
    lease = client.acquire("bench", memory_mib=_MIB)
    took_s = time.perf_counter() - began
    lease.release()
    return took_s * 1000
