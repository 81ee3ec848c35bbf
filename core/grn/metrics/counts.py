"""What has happened, summed up: counters and histograms, from a broker's events.

Must not: know how they are written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any

from grn.metrics.names import Names
from grn.metrics.table import RUN_BUCKETS_S, SWIFT_BUCKETS_S, WAIT_BUCKETS_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Event = Mapping[str, Any]

__all__ = ["Counts", "Histogram"]

_MOST_ENGINES = 16
_MOST_CODES = 32
_MOST_MODELS = 64
_OOM = ("oom", "oom-suspected")
_MIB = 1 << 20


class Histogram:
    """Observations by upper bound. Buckets are cumulative only when they are read."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, how many are at most that), the last bound `+Inf`."""
        names = [*map(_bound, self._bounds), "+Inf"]
        return [(name, sum(self._counts[: i + 1])) for i, name in enumerate(names)]


def _bound(seconds: float) -> str:
    return repr(float(seconds))


class Counts:
    """Sums of all events that were taken in.

    Attributes:
        totals: by name of the metric and values of its labels.
        histograms: the same.
        learnt: by type and model, what the last `learnt` event said, in bytes.
        started_at: when the broker said that it had started, seconds since 1970.
    """

    def __init__(self, types: Names) -> None:
        self.totals: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.histograms: dict[tuple[str, tuple[str, ...]], Histogram] = {}
        self.learnt: dict[tuple[str, str], tuple[int | None, int | None]] = {}
        self.started_at: float | None = None
        self._types = types
        self._engines = Names(_MOST_ENGINES)
        self._codes = Names(_MOST_CODES)
        self._models = Names(_MOST_MODELS)
        self._waiting: set[int] | None = None
        """Tickets of those that wait; `None`: nobody has said who does."""
        self._handlers: dict[str, Callable[[Event], None]] = {
            "broker": self._broker,
            "queued": self._queued,
            "granted": self._granted,
            "refused": self._refused,
            "cancelled": self._cancelled,
            "ended": self._ended,
            "learnt": self._learnt,
            "gap": self._gap,
        }

    def take(self, event: Event) -> None:
        """Count one event; what is of no interest here is passed over."""
        handler = self._handlers.get(event["event"])
        if handler is not None:
            handler(event)

    def waiting(self, tickets: Iterable[int]) -> None:
        """Learn who waits: a grant of one of them says nothing of how fast the broker is."""
        self._waiting = set(tickets)

    def forget_waiting(self) -> None:
        """Forget who waits: the tickets of another broker are others."""
        self._waiting = None

    def engine(self, event: Event) -> str:
        """Name what made a request."""
        return self._engines.of(event.get("engine") or "unknown")

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        # A Counter holds floats as well; its type says otherwise.
        self.totals[(name, labels)] += by  # type: ignore[assignment]

    def _observe(self, name: str, bounds: Sequence[float], value: float, *labels: str) -> None:
        histogram = self.histograms.get((name, labels))
        if histogram is None:
            histogram = self.histograms[(name, labels)] = Histogram(bounds)
        histogram.observe(value)

    def _broker(self, event: Event) -> None:
        if event["state"] == "started":
            self.started_at = event["at"]
            self._waiting = set()

    def _queued(self, event: Event) -> None:
        self._count("grn_requests_queued_total", self.engine(event))
        if self._waiting is not None:
            self._waiting.add(event["ticket"])

    def _granted(self, event: Event) -> None:
        waited = self._waits_no_more(event)
        if event["nested"]:
            self._count("grn_nested_grants_total")
            return
        job_type, engine = self._types.of(event["type"]), self.engine(event)
        self._count("grn_grants_total", job_type, engine)
        self._observe("grn_wait_seconds", WAIT_BUCKETS_S, event["waited_s"], engine)
        if event["probe"]:
            self._count("grn_probes_total", job_type)
        if waited is False:
            self._observe("grn_broker_latency_seconds", SWIFT_BUCKETS_S, event["waited_s"])

    def _waits_no_more(self, event: Event) -> bool | None:
        """Return whether a request had waited; `None`: nobody knows."""
        ticket = event["ticket"]
        if self._waiting is None:
            return None
        waited = ticket in self._waiting
        self._waiting.discard(ticket)
        return waited

    def _refused(self, event: Event) -> None:
        self._waits_no_more(event)
        self._count("grn_refusals_total", self._codes.of(event["code"]))

    def _cancelled(self, event: Event) -> None:
        self._waits_no_more(event)
        self._count("grn_cancellations_total")

    def _ended(self, event: Event) -> None:
        job_type, outcome = self._types.of(event["type"]), event["outcome"]
        self._count("grn_ends_total", job_type, outcome)
        if outcome in _OOM:
            self._count("grn_out_of_memory_total", job_type, outcome)
        if event["ran_s"] is not None:
            self._observe("grn_run_seconds", RUN_BUCKETS_S, event["ran_s"], self.engine(event))
        if event["cpu_s"] is not None:
            self._count("grn_job_cpu_seconds_total", job_type, by=event["cpu_s"])

    def _learnt(self, event: Event) -> None:
        job_type = self._types.of(event["type"])
        key = (job_type, self._models.of(event["device_model"]))
        if not self._types.has_own(event["type"]):
            return  # of many types together there is no estimate
        self.learnt[key] = (_bytes(event["estimate_mib"]), _bytes(event["peak_mib"]))

    def _gap(self, event: Event) -> None:
        self._count("grn_events_missed_total", by=event["missed"] or 0)


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * _MIB
