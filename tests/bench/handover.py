"""How fast a released device reaches the next waiter: two client processes, one device.

The clock of holder and waiter is the same monotonic clock, so the time runs from before the release
is sent until the waiter holds its grant.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, percentile
from tests.bench.floor import FloorClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from grn.client import Lease

__all__ = ["measure"]

_BLOCK = 20
_ASLEEP_S = 0.003
_US = 1e6


class _FloorHand:
    """Takes and gives the floor's slot."""

    def __init__(self, floor: stage.Stage) -> None:
        self._client = FloorClient(floor.socket)
        self.take = self._client.take
        self.give = self._client.give


class _BrokerHand:
    """Takes and gives the one device, as a whole."""

    def __init__(self, broker: stage.Stage) -> None:
        self._client = broker.client()
        self._lease: Lease | None = None

    def take(self) -> None:
        self._lease = self._client.acquire("bench", whole=True)

    def give(self) -> None:
        assert self._lease is not None
        self._lease.release()


class _Relay:
    """A holder here and a waiter in another process."""

    def __init__(self, hand: Callable[[], _FloorHand | _BrokerHand]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._waiter = context.Process(target=_wait_in_turn, args=(hand, theirs), daemon=True)
        self._waiter.start()
        self._hand = hand()

    def pass_on(self) -> float:
        """Return the seconds from release to the waiter's grant."""
        self._hand.take()
        self._pipe.send(True)
        self._pipe.recv()
        time.sleep(_ASLEEP_S)  # a real waiter sleeps long before its turn comes
        began = time.monotonic()
        self._hand.give()
        granted: float = self._pipe.recv()
        self._pipe.recv()
        return granted - began

    def close(self) -> None:
        """Let the waiter end."""
        self._pipe.send(False)
        self._waiter.join()


def _wait_in_turn(hand: Callable[[], _FloorHand | _BrokerHand], pipe: Connection) -> None:
    mine = hand()
    while pipe.recv():
        pipe.send("asking")
        mine.take()
        pipe.send(time.monotonic())
        mine.give()
        pipe.send("given")


def measure(*, quick: bool) -> list[Figure]:
    """Run the floor and the broker in turns."""
    rounds = 5 if quick else 25
    with stage.floor() as floor, stage.broker("sim:1x16GiB") as broker:
        relays = _Relay(lambda: _FloorHand(floor)), _Relay(lambda: _BrokerHand(broker))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds):
            for relay, kept in zip(relays, times, strict=True):
                passed = [relay.pass_on() for _ in range(_BLOCK)]
                kept.extend(passed if turn else [])
        for relay in relays:
            relay.close()
    base, own = percentile(times[0], 0.5) * _US, percentile(times[1], 0.5) * _US
    worst, base_worst = percentile(times[1], 0.99) * _US, percentile(times[0], 0.99) * _US
    return [
        Figure(
            "handover",
            "release to grant of the next waiter, p50",
            own / base,
            "x",
            2,
            baseline=f"broker {own:,.0f} us, floor {base:,.0f} us",
            raw={"broker_us": own, "floor_us": base, "n": len(times[1])},
        ),
        Figure(
            "handover",
            "release to grant of the next waiter, p99",
            worst / 1000,
            "ms",
            5,
            baseline=f"floor {base_worst / 1000:.2f} ms",
            raw={"broker_us": worst, "floor_us": base_worst},
        ),
    ]
