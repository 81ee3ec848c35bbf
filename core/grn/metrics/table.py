"""Which figures there are: name, kind, labels and meaning, in one place.

Names and units are as Prometheus would have them (https://prometheus.io/docs/practices/naming): base
units (bytes, seconds, ratios), counters end in `_total`. `docs/metrics.md` has this table, and a test
holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["METRICS", "RUN_BUCKETS_S", "SWIFT_BUCKETS_S", "WAIT_BUCKETS_S", "Metric"]

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure. `name` is the full name; a histogram's samples have suffixes of their own."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names that queries use."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "count", "sum"))
        return (self.name,)


_DEVICE = ("device", "uuid")
_LEASE = ("lease", "type")

_ALL: tuple[tuple[str, Kind, tuple[str, ...], str], ...] = (
    # the broker
    ("grn_broker_up", "gauge", (), "Whether the broker answers (1) or not (0)."),
    (
        "grn_broker_start_time_seconds",
        "gauge",
        (),
        "When the broker started, in seconds since 1970.",
    ),
    (
        "grn_broker_latency_seconds",
        "histogram",
        (),
        "From a request to its grant, of requests that did not have to wait.",
    ),
    ("grn_broker_warnings", "gauge", (), "Warnings that `grn status` shows now."),
    (
        "grn_broker_disk_failed",
        "gauge",
        (),
        "Whether nothing is granted since the disk cannot be written (1), or all is well (0).",
    ),
    # devices
    ("grn_device_info", "gauge", (*_DEVICE, "model"), "Always 1; which model a device is."),
    ("grn_device_memory_bytes", "gauge", _DEVICE, "Memory of the device."),
    (
        "grn_device_memory_capacity_bytes",
        "gauge",
        _DEVICE,
        "Memory that can be handed out: without the driver's reserve and the headroom.",
    ),
    ("grn_device_memory_free_bytes", "gauge", _DEVICE, "Memory that can be granted now."),
    ("grn_device_memory_booked_bytes", "gauge", _DEVICE, "Memory set aside for leases."),
    (
        "grn_device_memory_measured_bytes",
        "gauge",
        _DEVICE,
        "Memory that processes of leases were last seen to hold.",
    ),
    (
        "grn_device_memory_foreign_bytes",
        "gauge",
        _DEVICE,
        "Memory held by processes that belong to no lease.",
    ),
    (
        "grn_device_compute_booked_ratio",
        "gauge",
        _DEVICE,
        "Part of the multiprocessors set aside for leases, 0 to 1.",
    ),
    (
        "grn_device_utilization_ratio",
        "gauge",
        _DEVICE,
        "Part of the time in which the device computed, as its driver last said, 0 to 1.",
    ),
    ("grn_device_leases", "gauge", _DEVICE, "Leases on the device."),
    (
        "grn_device_state",
        "gauge",
        (*_DEVICE, "state"),
        "1 for the state of the device (ok, stale, lost, unhealthy), 0 for the others.",
    ),
    # the host
    ("grn_cpus", "gauge", (), "CPUs that can be booked."),
    ("grn_cpus_booked", "gauge", (), "CPUs that leases have booked."),
    ("grn_ram_bytes", "gauge", (), "RAM that can be booked."),
    ("grn_ram_booked_bytes", "gauge", (), "RAM that leases have booked."),
    # leases that are held
    ("grn_leases", "gauge", ("state",), "Leases held, by state (probe, running, draining)."),
    (
        "grn_lease_info",
        "gauge",
        ("lease", "type", "label", "engine", "uid", "state"),
        "Always 1; whose a lease is that is held.",
    ),
    (
        "grn_lease_memory_booked_bytes",
        "gauge",
        _LEASE,
        "Memory set aside for the lease on each of its devices.",
    ),
    (
        "grn_lease_memory_measured_bytes",
        "gauge",
        _LEASE,
        "Memory that its processes were last seen to hold, on its fullest device.",
    ),
    (
        "grn_lease_memory_peak_bytes",
        "gauge",
        _LEASE,
        "The most that its processes held so far, on one device.",
    ),
    (
        "grn_lease_utilization_ratio",
        "gauge",
        _LEASE,
        "Part of the time in which its processes computed on a device, as the driver said, 0 to 1.",
    ),
    (
        "grn_lease_start_time_seconds",
        "gauge",
        _LEASE,
        "When the lease was granted, in seconds since 1970.",
    ),
    # types
    ("grn_type_leases", "gauge", ("type",), "Leases held by jobs of the type."),
    (
        "grn_type_memory_booked_bytes",
        "gauge",
        ("type",),
        "Memory set aside for jobs of the type, over all devices.",
    ),
    (
        "grn_type_memory_measured_bytes",
        "gauge",
        ("type",),
        "Memory that jobs of the type were last seen to hold (of each its fullest device, for all).",
    ),
    (
        "grn_type_memory_estimate_bytes",
        "gauge",
        ("type", "model"),
        "What the next run of the type books on a device of this model, as last learnt.",
    ),
    (
        "grn_type_memory_peak_bytes",
        "gauge",
        ("type", "model"),
        "The largest peak that counts for the type on this model, as last learnt.",
    ),
    # the queue
    ("grn_waiting_requests", "gauge", (), "Requests that wait."),
    (
        "grn_waiting_oldest_time_seconds",
        "gauge",
        (),
        "When the request that waits longest was made, in seconds since 1970; none while none waits.",
    ),
    (
        "grn_memory_lost_bytes",
        "gauge",
        ("cause",),
        "Memory that nobody can use while somebody waits, by cause (probe, fragmentation, head).",
    ),
    # what has happened
    ("grn_requests_queued_total", "counter", ("engine",), "Requests that had to wait."),
    ("grn_grants_total", "counter", ("type", "engine"), "Leases granted."),
    ("grn_nested_grants_total", "counter", (), "Requests granted inside a lease that is held."),
    ("grn_probes_total", "counter", ("type",), "Leases granted to measure an unknown type."),
    ("grn_refusals_total", "counter", ("code",), "Requests refused, by the code of the error."),
    ("grn_cancellations_total", "counter", (), "Requests withdrawn while they waited."),
    ("grn_ends_total", "counter", ("type", "outcome"), "Jobs that ended, by outcome."),
    (
        "grn_out_of_memory_total",
        "counter",
        ("type", "outcome"),
        "Jobs that died of device memory: as they said (oom), or as it looked (oom-suspected).",
    ),
    (
        "grn_job_cpu_seconds_total",
        "counter",
        ("type",),
        "CPU time of jobs that ended, as far as it was told.",
    ),
    (
        "grn_wait_seconds",
        "histogram",
        ("engine",),
        "From a request to its grant, of all leases granted.",
    ),
    ("grn_run_seconds", "histogram", ("engine",), "How long jobs ran that ended."),
    ("grn_events_missed_total", "counter", (), "Events that were missed: counters lack them."),
)

METRICS = {name: Metric(name, kind, labels, text) for name, kind, labels, text in _ALL}

SWIFT_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
RUN_BUCKETS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)
