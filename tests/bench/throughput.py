"""How many requests a second 64 clients get through, each asking again as soon as it is answered.

A request is one round trip: an acquire until its grant, or a release until its answer, as a program
sends them that uses the device itself. All leases fit: this measures the broker, not the queue.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from grn.rules.wire import MAGIC, VERSION, encode
from tests.bench import stage
from tests.bench.figures import Figure, percentile
from tests.bench.floor import LEASE, Splitter, frame

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["measure"]

_CLIENTS = 64
_MIB = 512
_NAMED_FLOOR = 100_000
"""Requests a second of the floor on the machine for which the limits were set."""


class Talk(Protocol):
    """One client's side: what it sends first, what it asks next, and what it hears."""

    def first(self) -> bytes: ...

    def ask(self) -> bytes: ...

    def hear(self, message: dict[str, Any]) -> None: ...


class _FloorTalk:
    def __init__(self) -> None:
        self._lease = frame(LEASE)

    def first(self) -> bytes:
        return b""

    def ask(self) -> bytes:
        return self._lease

    def hear(self, message: dict[str, Any]) -> None:
        assert message["op"] == "granted"


class _BrokerTalk:
    def __init__(self) -> None:
        self._lease: str | None = None
        wish = {"op": "acquire", "id": 1, "type": "bench", "gpus": 1, "memory_mib": _MIB}
        self._acquire = encode({**wish, "in_process": True})

    def first(self) -> bytes:
        return encode({"op": "hello", "magic": MAGIC, "version": VERSION, "features": []})

    def ask(self) -> bytes:
        if self._lease is None:
            return self._acquire
        return encode({"op": "release", "id": 2, "lease": self._lease, "exit_code": 0})

    def hear(self, message: dict[str, Any]) -> None:
        if message["op"] == "granted":
            self._lease = message["lease"]
        elif message["op"] == "released":
            self._lease = None
        else:
            raise RuntimeError(f"unexpected answer: {message}")


class _Client:
    def __init__(self, path: str, talk: Talk) -> None:
        self.talk = talk
        self.splitter = Splitter()
        self.asked_s = 0.0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        greeting = talk.first()
        if greeting:
            self.socket.sendall(greeting)
            while not self.splitter.feed(self.socket.recv(65536)):
                pass

    def ask(self) -> None:
        self.asked_s = time.perf_counter()
        self.socket.sendall(self.talk.ask())


class Crowd:
    """All clients of one server, driven by one loop."""

    def __init__(self, path: str, talk: Callable[[], Talk], clients: int = _CLIENTS) -> None:
        self._selector = selectors.EpollSelector()
        self._clients = [_Client(path, talk()) for _ in range(clients)]
        for client in self._clients:
            self._selector.register(client.socket, selectors.EVENT_READ, client)
        self.rates: list[float] = []
        self.waits: list[float] = []

    def push(self, seconds: float) -> None:
        """Keep every client busy for so long, then let all of them be answered."""
        began = time.perf_counter()
        end = began + seconds
        for client in self._clients:
            client.ask()
        answered, open_requests = 0, len(self._clients)
        while open_requests:
            for key, _ in self._selector.select():
                client = key.data
                for message in client.splitter.feed(client.socket.recv(65536)):
                    client.talk.hear(message)
                    now = time.perf_counter()
                    self.waits.append(now - client.asked_s)
                    answered += 1
                    if now < end:
                        client.ask()
                    else:
                        open_requests -= 1
        self.rates.append(answered / (time.perf_counter() - began))

    def forget(self) -> None:
        """Leave out what was measured so far."""
        self.rates.clear()
        self.waits.clear()


def measure(*, quick: bool) -> list[Figure]:
    """Run floor and brokers in turns."""
    rounds, seconds = (3, 0.5) if quick else (10, 1.0)
    with ExitStack() as stack:
        bare = Crowd(stack.enter_context(stage.floor()).socket, _FloorTalk)
        kept = Crowd(stack.enter_context(stage.broker()).socket, _BrokerTalk)
        booked = Crowd(stack.enter_context(stage.broker(journal=False)).socket, _BrokerTalk)
        for turn in range(rounds + 1):
            for crowd in (bare, kept, booked):
                crowd.push(seconds)
                if turn == 0:
                    crowd.forget()
    return [
        *_figures("bookings", booked, bare, 20_000),
        *_figures("bookings and journal", kept, bare, 10_000),
    ]


def _figures(what: str, ours: Crowd, bare: Crowd, limit: float) -> list[Figure]:
    # The best turn of each is the one that others disturbed least; the floor suffers most from them.
    rate, floor_rate = max(ours.rates), max(bare.rates)
    scale = _NAMED_FLOOR / floor_rate
    wait_ms = percentile(ours.waits, 0.99) * 1000
    beside = f"raw {rate:,.0f}/s, floor {floor_rate:,.0f}/s"
    raw = {"rate": rate, "floor_rate": floor_rate, "p99_ms": wait_ms, "scale": scale}
    return [
        Figure(
            "throughput",
            f"{_CLIENTS} clients, {what}, floor at 100,000/s",
            rate * scale,
            "/s",
            limit,
            beside,
            least=True,
            raw=raw,
        ),
        Figure(
            "throughput",
            f"{_CLIENTS} clients, {what}, p99, same scale",
            wait_ms / scale,
            "ms",
            10,
            f"raw {wait_ms:.2f} ms, floor {percentile(bare.waits, 0.99) * 1000:.2f} ms",
        ),
    ]
