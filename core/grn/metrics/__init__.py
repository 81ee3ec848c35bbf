"""A broker's figures for Prometheus: kept from its states and events, told as text.

    collector = Collector()
    collector.status(status)  # as `grn status --json` has it
    collector.event(event)    # as `grn events` has them
    collector.text()          # bytes, for /metrics or a textfile

Needs the extra `metrics` (`pip install 'grn-plugins[metrics]'`). The figures are in docs/metrics.md.
"""

from __future__ import annotations

from grn.metrics.collector import CONTENT_TYPE, Collector

__all__ = ["CONTENT_TYPE", "Collector"]
