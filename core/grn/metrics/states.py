"""The state of the books as gauges, from the object that `grn status --json` prints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from grn.metrics.names import OTHER, Names, label_value
from grn.rules.lost import CAUSES
from grn.rules.model import DeviceState, LeaseState

if TYPE_CHECKING:
    from collections.abc import Mapping

    Told = Mapping[str, Any]

__all__ = ["MOST_LEASES", "Gauges", "Times", "gauges"]

Gauges = dict[str, dict[tuple[str, ...], float]]
"""By the name of the metric: by the values of its labels, the figure."""

MOST_LEASES = 1000
"""So many get series of their own; sums count all of them."""

_MIB = 1 << 20
_PERCENT = 100


def gauges(status: Told, types: Names, times: Times) -> Gauges:
    """Return all gauges that a state tells; what it does not know is not in it."""
    found: Gauges = {}
    _broker(found, status)
    for device in status["devices"]:
        _device(found, device)
    _pools(found, status)
    _leases(found, status["leases"], types, times)
    _queue(found, status, times)
    return found


class Times:
    """When leases and requests began, by the time of day.

    A state says how long ago that was. Reckoned anew each time it would move by milliseconds, so the
    first result stays.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, object], float] = {}

    def keep(self, status: Told, at: float) -> None:
        """Take in a state that was told `at` seconds since 1970; forget what is not in it."""
        here: dict[tuple[str, object], float]
        here = {("lease", lease["id"]): lease["since_s"] for lease in status["leases"]}
        here |= {("waiter", waiter["ticket"]): waiter["since_s"] for waiter in status["waiters"]}
        before = self._known
        self._known = {key: before.get(key, round(at - s, 3)) for key, s in here.items()}

    def of(self, kind: str, key: object) -> float:
        """Return when it began, in seconds since 1970."""
        return self._known[(kind, key)]


def _set(found: Gauges, name: str, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        found.setdefault(name, {})[labels] = float(value)


def _set_mib(found: Gauges, name: str, labels: tuple[str, ...], mib: int | None) -> None:
    _set(found, name, labels, None if mib is None else mib * _MIB)


def _broker(found: Gauges, status: Told) -> None:
    _set(found, "grn_broker_warnings", (), len(status["warnings"]))
    if "disk_problem" in status:
        _set(found, "grn_broker_disk_failed", (), bool(status["disk_problem"]))


def _device(found: Gauges, device: Told) -> None:
    labels = (str(device["index"]), device["uuid"])
    _set(found, "grn_device_info", (*labels, label_value(device["name"])), 1)
    sizes = {
        "": "total_mib",
        "capacity_": "capacity_mib",
        "free_": "free_mib",
        "booked_": "booked_mib",
        "measured_": "measured_mib",
        "foreign_": "foreign_mib",
    }
    for name, key in sizes.items():
        _set_mib(found, f"grn_device_memory_{name}bytes", labels, device.get(key))
    booked = device.get("compute_booked")
    _set(found, "grn_device_compute_booked_ratio", labels, _ratio(booked))
    _set(found, "grn_device_utilization_ratio", labels, _ratio(device.get("utilization")))
    _set(found, "grn_device_leases", labels, device.get("leases"))
    for state in DeviceState:
        _set(found, "grn_device_state", (*labels, str(state)), device["state"] == state)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / _PERCENT


def _pools(found: Gauges, status: Told) -> None:
    cpus, ram = status.get("cpus", {}), status.get("ram_mib", {})
    _set(found, "grn_cpus", (), cpus.get("total"))
    _set(found, "grn_cpus_booked", (), cpus.get("booked"))
    _set_mib(found, "grn_ram_bytes", (), ram.get("total"))
    _set_mib(found, "grn_ram_booked_bytes", (), ram.get("booked"))


def _leases(found: Gauges, leases: list[Told], types: Names, times: Times) -> None:
    states = Counter(lease["state"] for lease in leases)
    for state in LeaseState:
        _set(found, "grn_leases", (str(state),), states[state])
    for number, lease in enumerate(leases):
        job_type = types.of(lease["type"])
        if number < MOST_LEASES:
            _lease(found, lease, job_type, times)
        _add(found, "grn_type_leases", job_type, 1)
        devices = len(lease["devices"]) * _MIB
        _add(found, "grn_type_memory_booked_bytes", job_type, devices * lease["booked_mib"])
        measured = lease["measured_mib"]
        if measured is not None:
            _add(found, "grn_type_memory_measured_bytes", job_type, devices * measured)


def _add(found: Gauges, name: str, job_type: str, value: float) -> None:
    by_type = found.setdefault(name, {})
    by_type[(job_type,)] = by_type.get((job_type,), 0.0) + value


def _lease(found: Gauges, lease: Told, job_type: str, times: Times) -> None:
    labels = (str(lease["id"]), job_type)
    whose = (
        label_value(str(lease["label"])),
        label_value(lease.get("engine") or "unknown"),
        str(lease.get("uid", OTHER)),
        lease["state"],
    )
    _set(found, "grn_lease_info", (*labels, *whose), 1)
    on_a_device = bool(lease["devices"])
    for name in ("booked", "measured", "peak"):
        mib = lease[f"{name}_mib"] if on_a_device else None
        _set_mib(found, f"grn_lease_memory_{name}_bytes", labels, mib)
    _set(found, "grn_lease_utilization_ratio", labels, _ratio(lease.get("utilization")))
    _set(found, "grn_lease_start_time_seconds", labels, times.of("lease", lease["id"]))


def _queue(found: Gauges, status: Told, times: Times) -> None:
    waiters = status["waiters"]
    oldest = min((times.of("waiter", waiter["ticket"]) for waiter in waiters), default=None)
    _set(found, "grn_waiting_requests", (), len(waiters))
    _set(found, "grn_waiting_oldest_time_seconds", (), oldest)
    lost = status.get("lost", {})
    for cause in CAUSES:  # while nobody waits, nothing is
        _set_mib(found, "grn_memory_lost_bytes", (cause,), lost.get(cause, 0))
