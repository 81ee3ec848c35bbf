"""What asking a real driver costs, and what it cannot spoil: four cards behind a stand-in library.

The unmodified `nvidia-ml-py` calls the stand-in libnvidia-ml of the tests, so all of the way is real
but the driver's own work. The stand-in's (it looks every process up in `/proc`) is in the figures of
the workers, which are told only; the broker's own process is what the limit is about.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from grn import procs
from grn.connection import connect
from grn.rules.environment import job_environment
from tests.bench import stage
from tests.bench.figures import Figure, median, percentile
from tests.bench.upkeep import cpu_s
from tests.fakenvml.box import Box
from tests.fakenvml.build import build, compiler
from tests.talker import Talker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grn.client import Client, Lease

__all__ = ["measure"]

_CARDS = 4
_LEASES = (1, 10, 50)
_ON_ONE_CARD = (10, 50)
"""What a look costs the broker at all is shared by no other card there: told only."""

_MIB = 1024
_SETTLE_S = 2.0
_WITHIN_S = 60

_SLOW_S = 10.0
_REQUESTS = 20
_REST_S = 0.6
"""What was read for the request before serves no more; so many last until a stuck worker is killed."""

_SPIKES = 20
_BEFORE_MIB, _SPIKE_MIB = 512, 3072
_SPIKE_S = 0.2


def measure(*, quick: bool) -> list[Figure]:
    """Measure sampling, a slow card, spikes and grants, each on brokers of its own."""
    cc = compiler()
    if cc is None:
        why = "no C compiler here (cc, gcc or clang) to build the stand-in driver"
        return [Figure("driver", "the way to a driver", None, "", note=why)]
    with stage.private() as library:
        build(cc, library)
        return [
            *_sampling(library, known=True, seconds=10 if quick else 20),
            *_sampling(library, known=False, seconds=5 if quick else 10),
            *_beside_a_slow_card(library),
            _spikes(library),
            *_grants(library, 20 if quick else 100),
        ]


@contextmanager
def _broker(library: str, cards: int = _CARDS) -> Iterator[tuple[Box, stage.Stage]]:
    """Run a broker, with the settings that everybody has, on cards of its own."""
    with ExitStack() as stack:
        box = Box(stack.enter_context(stage.private()), library, f"{cards}x80GiB")
        # A server and its clients inherit this process's environment.
        with patch.dict("os.environ", {**box.environ, **box.job_environ}):
            broker = stack.enter_context(stage.broker("nvml"))
        yield box, broker


# -- what sampling costs --------------------------------------------------------------------------


class _Watched:
    """A broker that watches so many sleeping jobs, each with memory, spread over all cards."""

    def __init__(
        self, stack: ExitStack, library: str, leases: int, *, cards: int, known: bool
    ) -> None:
        self.leases = leases
        self.cards = cards
        box, self.broker = stack.enter_context(_broker(library, cards))
        self._talker = Talker(connect(self.broker.settings))
        stack.callback(self._talker.close)
        if known:
            self._talker.call("profiles", action="set", type="known", memory_mib=_MIB)
        wish = {} if known else {"memory_mib": _MIB}
        for _ in range(leases):
            grant = self._talker.acquire("known" if known else "fresh", **wish)
            environ, _ = job_environment(grant, self.broker.environ, {})
            job = stack.enter_context(subprocess.Popen(["sleep", "3600"], env=environ))
            stack.callback(job.kill)
            self._talker.tell("started", lease=grant["lease"], pid=job.pid)
            box.add_process(box.uuids.index(grant["devices"][0]["uuid"]), _MIB // 2, pid=job.pid)
        self._wait_until_seen()
        self._before = (0.0, 0.0)
        self.spent_s = (0.0, 0.0)

    def _wait_until_seen(self) -> None:
        end = time.monotonic() + _WITHIN_S
        while any(not lease["measured_mib"] for lease in self._talker.status()["leases"]):
            if time.monotonic() > end:
                raise RuntimeError(f"the broker did not see all {self.leases} jobs")
            time.sleep(0.1)

    def _used_s(self) -> tuple[float, float]:
        """Return the CPU seconds of the broker and of its processes that ask the driver."""
        pid = self.broker.process.pid
        return cpu_s([pid]), cpu_s(procs.descendants(pid))

    def begin(self) -> None:
        self._before = self._used_s()

    def end(self) -> None:
        before, now = self._before, self._used_s()
        self.spent_s = (now[0] - before[0], now[1] - before[1])


def _sampling(library: str, *, known: bool, seconds: float) -> list[Figure]:
    """Let all brokers sample side by side, one of them idle: others disturb all alike."""
    with ExitStack() as stack:
        plan = [(leases, _CARDS) for leases in (0, *_LEASES)]
        plan += [(leases, 1) for leases in _ON_ONE_CARD] if known else []
        brokers = [_Watched(stack, library, n, cards=cards, known=known) for n, cards in plan]
        time.sleep(_SETTLE_S)
        for each in brokers:
            each.begin()
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        for each in brokers:
            each.end()
    idle, *watched = brokers
    return [_cost(each, idle, took, known=known) for each in watched]


def _cost(one: _Watched, idle: _Watched, seconds: float, *, known: bool) -> Figure:
    def ms(spent_s: float) -> float:
        return 1000 * spent_s / seconds / one.cards

    settings = one.broker.settings
    pace_s = settings.sample_slow_s if known else settings.sample_fast_s
    broker = ms(one.spent_s[0] - idle.spent_s[0])
    # Those of an idle broker wait for a question, and do nothing.
    workers = ms(one.spent_s[1])
    where = f"{_number(one.leases, 'lease')} on {_number(one.cards, 'card')}"
    return Figure(
        "driver",
        f"CPU a second and card, every {pace_s:g} s or more, {where}",
        broker,
        "ms",
        1 if known else None,
        f"idle broker's {ms(idle.spent_s[0]):.3f} ms taken off; all its workers {workers:.2f} ms",
        raw={"broker_ms": broker, "workers_ms": workers, "seconds": seconds},
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# -- a slow card ----------------------------------------------------------------------------------


def _beside_a_slow_card(library: str) -> list[Figure]:
    """Ask for devices before and while every call about one card takes ten seconds."""
    with _broker(library) as (box, broker), broker.client() as client:
        # A card with little room left is nobody's first choice: the grants are the others'.
        box.add_process(0, 70 * 1024)
        well = _request(client, broker, box.uuids[1:])
        box.fail(card=0, delay_s=_SLOW_S)
        slow = _request(client, broker, box.uuids[1:])
        box.heal()
    beside = f"max of {_REQUESTS} before it {max(well.grants_ms):.1f} ms"
    raw = {"before_ms": well.grants_ms, "slow_ms": slow.grants_ms}
    return [
        Figure(
            "driver",
            f"request to grant, one card {_SLOW_S:g} s late, max",
            max(slow.grants_ms),
            "ms",
            1000,
            f"{beside}; p50 {median(slow.grants_ms):.1f} ms, the first {slow.grants_ms[0]:.1f} ms",
            raw=raw,
        ),
        Figure(
            "driver",
            "release, likewise, max",
            max(slow.releases_ms),
            "ms",
            baseline=f"before it {max(well.releases_ms):.1f} ms",
        ),
    ]


class _Requests:
    """How long each grant and each release took."""

    def __init__(self) -> None:
        self.grants_ms: list[float] = []
        self.releases_ms: list[float] = []


def _request(
    client: Client, broker: stage.Stage, expected: Sequence[str], count: int = _REQUESTS
) -> _Requests:
    """Take and give back, at rest in between, so that each time the driver must be asked."""
    taken = _Requests()
    for _ in range(count):
        time.sleep(_REST_S)
        began = time.perf_counter()
        lease = client.acquire("bench", memory_mib=_MIB)
        taken.grants_ms.append(1000 * (time.perf_counter() - began))
        uuid = lease.grant["devices"][0]["uuid"]
        if uuid not in expected:
            raise RuntimeError(f"{uuid} was granted, not one of {expected}: {broker.folder}")
        began = time.perf_counter()
        lease.release()
        taken.releases_ms.append(1000 * (time.perf_counter() - began))
    return taken


# -- a short spike --------------------------------------------------------------------------------


def _spikes(library: str) -> Figure:
    """Run jobs of fresh types, as many at once as there are cards; count the peaks that were seen."""
    peaks: list[Any] = []
    with _broker(library) as (_, broker):
        for first in range(0, _SPIKES, _CARDS):
            jobs = [_spiking(number, broker) for number in range(first, first + _CARDS)]
            said = [job.communicate()[0] for job in jobs]
            peaks += [json.loads(text)["jobs"][0]["peak_mib"] for text in said]
    seen = sum(peak == _SPIKE_MIB for peak in peaks)
    what = f"of {_SPIKES} spikes of {1000 * _SPIKE_S:g} ms in new types, seen"
    return Figure("driver", what, seen, "", _SPIKES, least=True, raw={"peaks_mib": peaks})


def _spiking(number: int, broker: stage.Stage) -> subprocess.Popen[bytes]:
    """Start a job whose spike falls elsewhere between two readings than the others' do."""
    at_s = 0.5 + number * 0.1 / _SPIKES
    job = [
        *(sys.executable, "-m", "grn.testing.job", "--memory", f"{_BEFORE_MIB}MiB"),
        *("--spike", f"{at_s}:{_SPIKE_MIB - _BEFORE_MIB}MiB:{_SPIKE_S}", "--seconds", "1.2"),
    ]
    return subprocess.Popen(
        [*stage.grn_command(), "run", "--json", "--type", f"spike {number}", "--", *job],
        env=broker.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )


# -- request and release to grant -----------------------------------------------------------------


def _grants(library: str, count: int) -> list[Figure]:
    with _broker(library) as (box, broker), broker.client() as client:
        asked = _request(client, broker, box.uuids, count).grants_ms
    with _broker(library, 1) as (_, broker):
        passed = [_pass_on(broker) for _ in range(count)]
    return [
        _told("request to grant after a rest", asked),
        _told("release to grant of the next waiter", passed),
    ]


def _pass_on(broker: stage.Stage) -> float:
    """Return the milliseconds from a release to the grant of who waited for the only card."""
    with broker.client() as holder, broker.client() as waiter:
        lease = holder.acquire("bench", whole=True)
        granted: list[tuple[float, Lease]] = []

        def wait() -> None:
            next_lease = waiter.acquire("bench", whole=True)
            granted.append((time.perf_counter(), next_lease))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(_REST_S)
        began = time.perf_counter()
        lease.release()
        thread.join()
        (at, next_lease), *_ = granted
        next_lease.release()
    return 1000 * (at - began)


def _told(what: str, times_ms: Sequence[float]) -> Figure:
    worst = percentile(times_ms, 0.99)
    return Figure(
        "driver",
        f"{what}, p50",
        median(times_ms),
        "ms",
        baseline=f"p99 {worst:.1f} ms of {len(times_ms)}",
        raw={"ms": list(times_ms)},
    )
