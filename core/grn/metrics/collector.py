"""The figures of one broker, put together for Prometheus: gauges of its last state, sums of its events.

Promises: what is not known is left out, never 0; a lease's series end with it; a registry of its own,
so that whoever embeds this has none of it in theirs. For one thread at a time.

Must not: ask a broker anything. `grn metrics` and the dashboard do, and hand over what they are told.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from grn.metrics.counts import Counts
from grn.metrics.names import Names
from grn.metrics.states import Gauges, Times, gauges
from grn.metrics.table import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CONTENT_TYPE", "Collector"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Of what `text` returns, for an HTTP header."""

_MOST_TYPES = 100
_ALWAYS_THERE = (
    "grn_nested_grants_total",
    "grn_cancellations_total",
    "grn_events_missed_total",
)
"""Counters without labels begin at 0, so that a first rise is seen."""


class Collector:
    """Figures of one broker.

    Args:
        most_types: how many job types get a label value of their own; all others are `other`.
        count: whether events are counted. Who cannot see all of them since the broker's start, and
            lives for a moment only, would tell counters that fall.
    """

    def __init__(self, *, most_types: int = _MOST_TYPES, count: bool = True) -> None:
        self._types = Names(most_types)
        self._counts = Counts(self._types)
        self._gauges: Gauges = {}
        self._times = Times()
        self._started_at: float | None = None
        self._up = False
        self.count = count
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Source(self))

    def began(self, at: float) -> None:
        """Take in when the broker started, seconds since 1970."""
        self._started_at = at

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in one event, see docs/events.md."""
        self._counts.take(event)

    def status(self, status: Mapping[str, Any], at: float | None = None) -> None:
        """Take in the state of the books, which replaces the one before.

        Args:
            status: as `grn status --json` has it, all its pages put together.
            at: when it was told, in seconds since 1970; `None`: now.
        """
        self._up = True
        self._counts.waiting(waiter["ticket"] for waiter in status["waiters"])
        self._times.keep(status, time.time() if at is None else at)
        self._gauges = gauges(status, self._types, self._times)

    def gone(self) -> None:
        """Take in that the broker is away: of its books nothing is known."""
        self._up = False
        self._gauges = {}
        self._times = Times()
        self._started_at = None
        self._counts.forget_waiting()

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format (of type `CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    # -- for the registry -----------------------------------------------------------------------

    def families(self) -> Iterator[Metric]:
        """Yield what is known now."""
        known = self._known()
        for name, metric in METRICS.items():
            if metric.kind == "gauge" and known.get(name):
                gauge = GaugeMetricFamily(name, metric.help, labels=metric.labels)
                for labels, value in known[name].items():
                    gauge.add_metric(labels, value)
                yield gauge
        if self.count:
            yield from self._counters()
            yield from self._histograms()

    def _known(self) -> Gauges:
        """Return the gauges: the last state, and what events say that no state does."""
        known: Gauges = {**self._gauges, "grn_broker_up": {(): float(self._up)}}
        if not self._up:
            return known
        started = self._started_at if self._started_at is not None else self._counts.started_at
        if started is not None:
            known["grn_broker_start_time_seconds"] = {(): started}
        for place, name in enumerate(("estimate", "peak")):
            known[f"grn_type_memory_{name}_bytes"] = {
                key: float(size)
                for key, sizes in self._counts.learnt.items()
                if (size := sizes[place]) is not None
            }
        return known

    def _counters(self) -> Iterator[Metric]:
        found: dict[str, CounterMetricFamily] = {}
        totals = {(name, ()): 0 for name in _ALWAYS_THERE} | self._counts.totals
        for (name, labels), value in totals.items():
            metric = METRICS[name]
            if name not in found:
                found[name] = CounterMetricFamily(name, metric.help, labels=metric.labels)
            found[name].add_metric(labels, value)
        yield from found.values()

    def _histograms(self) -> Iterator[Metric]:
        found: dict[str, HistogramMetricFamily] = {}
        for (name, labels), histogram in self._counts.histograms.items():
            metric = METRICS[name]
            if name not in found:
                found[name] = HistogramMetricFamily(name, metric.help, labels=metric.labels)
            found[name].add_metric(labels, buckets=histogram.buckets(), sum_value=histogram.sum)
        yield from found.values()


class _Source:
    """What a registry wants to have."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        """Yield what is known now."""
        return self._collector.families()
