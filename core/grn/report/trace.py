"""The leases as a trace in Chrome's JSON format, which https://ui.perfetto.dev and chrome://tracing open.

A device is a process, a lease a slice on each of its devices, in a lane of its own among those that run
at the same time; booked and measured memory are counters, an end for want of memory is an instant.
Promises: slices of one lane never overlap; times are microseconds from `otherData.base`, none is below
0; the format is that of "Trace Event Format" (JSON object form).
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["trace"]

_US = 1_000_000
_STEPS = 10
_NO_DEVICE = ""
_OOM = ("oom", "oom-suspected")
_ARGS = (
    "id", "label", "engine", "policy", "uid", "pid", "booked_mib", "peak_mib", "source", "waited_s",
    "ran_s", "outcome", "exit_code", "signal", "cpu_s", "rss_mib",
)  # fmt: skip


def trace(
    leases: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]], *, now: float
) -> dict[str, Any]:
    """Return the trace of these leases, as the history has them. Those that run end at `now`.

    `devices` are as `grn.report.data.device_list` gives them; it names every device of a lease.
    """
    base = min((lease["granted_at"] for lease in leases), default=now)
    by_device: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for lease in leases:
        for uuid in lease["devices"].split() or [_NO_DEVICE]:
            by_device[uuid].append(lease)
    events: list[dict[str, Any]] = []
    places = [*devices, {"uuid": _NO_DEVICE, "index": None, "model": None}]
    for pid, device in enumerate(places, 1):
        held = by_device.get(device["uuid"], [])
        if held or device["uuid"]:
            events += _process(pid, _name(device))
            events += _slices(pid, held, base, now)
        if held and device["uuid"]:
            events += _counters(pid, held, base, now)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"schema": 1, "base": base, "made_at": now},
    }


def _name(device: Mapping[str, Any]) -> str:
    if not device["uuid"]:
        return "no device"
    index = "" if device["index"] is None else f" {device['index']}"
    return f"device{index}: {device['model'] or device['uuid']}"


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    for kind, args in (
        ("process_name", {"name": name}),
        ("process_sort_index", {"sort_index": pid}),
    ):
        yield {"ph": "M", "name": kind, "pid": pid, "tid": 0, "args": args}


def _slices(
    pid: int, held: Iterable[Mapping[str, Any]], base: float, now: float
) -> Iterator[dict[str, Any]]:
    """Give each lease the lowest lane that is free: leases come in the order of granting."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = 0
    for lease in held:
        begin, end = _us(lease["granted_at"], base), _us(_end(lease, now), base)
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            lanes += 1
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": lanes, "args": {"name": f"lane {lanes}"}}  # fmt: skip
            free.append(lanes)
        lane = heapq.heappop(free)
        end = max(end, begin + 1)
        heapq.heappush(busy, (end, lane))
        args = {key: lease[key] for key in _ARGS if lease[key] not in (None, "")}
        yield {
            "ph": "X", "name": lease["type"], "cat": "probe" if lease["probe"] else "lease",
            "pid": pid, "tid": lane, "ts": begin, "dur": end - begin, "args": args,
        }  # fmt: skip
        if lease["outcome"] in _OOM:
            name = f"out of memory: {lease['label'] or lease['type']}"
            yield {
                "ph": "i",
                "s": "t",
                "name": name,
                "cat": "oom",
                "pid": pid,
                "tid": lane,
                "ts": end,
            }


def _counters(
    pid: int, held: Iterable[Mapping[str, Any]], base: float, now: float
) -> Iterator[dict[str, Any]]:
    """Sum up, wherever one changes, what is booked and what was measured in tenths of each run.

    A probe is booked its whole device until its need is foreseen, and others begin beside it; from then
    on it counts for what it held.
    """
    booked: dict[int, int] = defaultdict(int)
    measured: dict[int, int] = defaultdict(int)
    leases = list(held)
    for number, lease in enumerate(leases):
        begin, end = _us(lease["granted_at"], base), _us(_end(lease, now), base)
        level = lease["booked_mib"] or 0
        booked[begin] += level
        if lease["probe"] and lease["peak_mib"] is not None:
            # In the order of granting, so the next one is the first that may have begun beside it.
            for other in leases[number + 1 : number + 2]:
                at = _us(other["granted_at"], base)
                less = max(0, level - lease["peak_mib"]) if at < end else 0
                booked[at] -= less
                level -= less
        booked[end] -= level
        before = 0
        steps = _steps(lease)
        for step, mib in enumerate(steps):
            measured[begin + (end - begin) * step // len(steps)] += mib - before
            before = mib
        measured[end] -= before
    yield from _counter(pid, "booked MiB", booked)
    yield from _counter(pid, "measured MiB", measured)


def _counter(pid: int, name: str, changes: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    level = 0
    for at in sorted(changes):
        if changes[at]:
            level += changes[at]
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at, "args": {"MiB": level}}


def _steps(lease: Mapping[str, Any]) -> list[int]:
    """Return what the lease held in each tenth of its run; nothing where it is not known."""
    try:
        curve = json.loads(lease["curve"] or "[]")
    except ValueError:
        return []
    return [round(mib or 0) for mib in curve[:_STEPS]] if isinstance(curve, list) else []


def _end(lease: Mapping[str, Any], now: float) -> float:
    ends = (lease["freed_at"], lease["ended_at"])
    return float(next((end for end in ends if end is not None), max(now, lease["granted_at"])))


def _us(at: float, base: float) -> int:
    return max(0, round((at - base) * _US))
