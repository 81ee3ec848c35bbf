"""What it costs to be watched: three viewers and the history, beside a broker without either.

A viewer is a process that follows all events and the state of the books each second, as `grn top` does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.bench import stage
from tests.bench.figures import Figure, percentile
from tests.bench.upkeep import cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.client import Client, Lease

__all__ = ["measure"]

_VIEWERS = 3
_LEASES = 200
_DEVICES = "sim:16x80GiB"
_MIB = 4096
_REST_S = 0.005
_US = 1e6
_PLAIN = ("--history-days", "0")
_VIEWER = """
import sys
from grn.watching import Watch
with Watch(sys.argv[1], status_every_s=1.0) as watch:
    print("watching", flush=True)
    for _ in watch:
        pass
"""


def measure(*, quick: bool) -> list[Figure]:
    """Measure what a lease costs, how long a grant takes, and what 200 leases cost while watched."""
    rounds, seconds = (6, 5.0) if quick else (30, 20.0)
    with ExitStack() as stack:
        brokers = {
            "plain": stack.enter_context(stage.broker(flags=_PLAIN)),
            "history": stack.enter_context(stage.broker()),
            "watched": stack.enter_context(stage.broker()),
        }
        stack.enter_context(_viewers(brokers["watched"], _VIEWERS))
        figures = _leases(brokers, rounds)
    with stage.broker(_DEVICES) as broker:
        figures.append(_many(broker, 0, seconds))
        with _viewers(broker, _VIEWERS):
            figures.append(_many(broker, _VIEWERS, seconds))
    return figures


@contextmanager
def _viewers(broker: stage.Stage, count: int) -> Iterator[None]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _VIEWER, broker.socket],
            env=broker.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=stage.ROOT,
        )
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"watching\n"
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


# -- one lease after the other --------------------------------------------------------------------


def _leases(brokers: dict[str, stage.Stage], rounds: int) -> list[Figure]:
    waits: dict[str, list[float]] = {name: [] for name in brokers}
    spent: dict[str, list[float]] = {name: [] for name in brokers}
    clients = {name: broker.client() for name, broker in brokers.items()}
    for name, client in clients.items():
        _block(client, 100, waits[name])
        waits[name].clear()
    for _ in range(rounds):
        for name, client in clients.items():
            before = cpu_s([brokers[name].process.pid])
            _block(client, 100, waits[name])
            time.sleep(
                1.7
            )  # what was gathered is told and written by then: it is a part of the cost
            spent[name].append((cpu_s([brokers[name].process.pid]) - before) / 100)
    for client in clients.values():
        client.close()
    return [*_added(spent), _ratio(waits)]


def _block(client: Client, count: int, waits: list[float]) -> None:
    for _ in range(count):
        time.sleep(_REST_S)
        began = time.perf_counter()
        lease = client.acquire("bench", memory_mib=_MIB, label="bench")
        waits.append(time.perf_counter() - began)
        lease.release()


def _added(spent: dict[str, list[float]]) -> list[Figure]:
    middle = {name: percentile(values, 0.5) * _US for name, values in spent.items()}
    plain = middle["plain"]
    limits = {"history": 1.1, "watched": None}
    what = {"history": "with history", "watched": f"with history and {_VIEWERS} viewers"}
    return [
        Figure(
            "watching",
            f"broker CPU a lease, {what[name]}, beside without",
            middle[name] / plain,
            "x",
            limit,
            baseline=f"{middle[name]:,.0f} us, without {plain:,.0f} us",
            raw=middle,
        )
        for name, limit in limits.items()
    ]


def _ratio(waits: dict[str, list[float]]) -> Figure:
    own, base = (percentile(waits[name], 0.5) * _US for name in ("watched", "plain"))
    return Figure(
        "watching",
        f"request to grant, {_VIEWERS} viewers and history, p50",
        own / base,
        "x",
        1.2,
        baseline=f"{own:,.0f} us, without {base:,.0f} us",
        raw={name: percentile(values, 0.5) * _US for name, values in waits.items()},
    )


# -- many that run --------------------------------------------------------------------------------


def _many(broker: stage.Stage, viewers: int, seconds: float) -> Figure:
    """Hold 200 leases of which five a second end and begin."""
    with broker.client() as client:
        client.profiles("set", type="bench", memory_mib=_MIB)
        held = [client.acquire("bench", memory_mib=_MIB, label="bench") for _ in range(_LEASES)]
        time.sleep(3.0)
        before, began = cpu_s([broker.process.pid]), time.monotonic()
        while time.monotonic() - began < seconds:
            _exchange(client, held)
            time.sleep(0.2)
        spent = 100 * (cpu_s([broker.process.pid]) - before) / (time.monotonic() - began)
        for lease in held:
            lease.release()
    return Figure(
        "watching",
        f"{_LEASES} leases on 16 devices, {viewers} viewers",
        spent,
        "% of a core",
        5 if viewers else None,
    )


def _exchange(client: Client, held: list[Lease]) -> None:
    held.pop(0).release()
    held.append(client.acquire("bench", memory_mib=_MIB, label="bench"))
