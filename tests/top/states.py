"""States of the books as a broker tells them, made up for `grn top` to draw."""

from __future__ import annotations

from typing import Any

NOW = 1_700_000_000.0


def device(index: int, **more: Any) -> dict[str, Any]:
    """A device of 16 GiB, of which 512 MiB are kept back."""
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "Simulated 16 GiB",
        "state": "ok",
        "reason": None,
        "total_mib": 16384,
        "capacity_mib": 15872,
        "free_mib": 15872,
        "booked_mib": 0,
        "measured_mib": 0,
        "foreign_mib": 0,
        "leases": 0,
        "parent": None,
        **more,
    }


def lease(number: int, *devices: int, **more: Any) -> dict[str, Any]:
    """A lease of 4 GiB of which 2 are held, granted `number` seconds before the first one would be."""
    held = more.get("measured_mib", 2048)
    return {
        "id": f"ab12cd-{number}",
        "type": "python train.py --seed *",
        "label": f"seed {number}",
        "pid": 4000 + number,
        "uid": 1000,
        "engine": "run",
        "devices": [f"GPU-{index}" for index in devices],
        "booked_mib": 4096,
        "measured_mib": held,
        "measured_each_mib": [held] * len(devices),
        "peak_mib": held,
        "state": "running",
        "since_s": 1000.0 - number,
        "left_over": [],
        **more,
    }


def waiter(number: int, **more: Any) -> dict[str, Any]:
    """A request for 14 GiB."""
    return {
        "ticket": number,
        "type": "python big.py",
        "label": f"big {number}",
        "pid": 9000 + number,
        "uid": 1000,
        "engine": "doit",
        "gpus": 1,
        "memory_mib": 14336,
        "since_s": 60.0,
        "priority": 0,
        "expected_s": None,
        "reason": "14336 MiB on 1 device wanted; device 0: 8 GiB free of 16384",
        **more,
    }


def ended(number: int, **more: Any) -> dict[str, Any]:
    """A lease that ended well, `number` minutes ago."""
    return {
        "event": "ended",
        "at": NOW - 60.0 * number,
        "lease": f"ab12cd-{number}",
        "type": "python train.py --seed *",
        "label": f"seed {number}",
        "uid": 1000,
        "engine": "run",
        "devices": ["GPU-0"],
        "outcome": "ok",
        "exit_code": 0,
        "signal": None,
        "peak_mib": 3000,
        "source": "sampled",
        "booked_mib": 4096,
        "waited_s": 1.0,
        "ran_s": 30.0,
        "cpu_s": None,
        "rss_mib": None,
        "draining": False,
        **more,
    }


def status(
    devices: list[dict[str, Any]],
    leases: list[dict[str, Any]] | None = None,
    waiters: list[dict[str, Any]] | None = None,
    recent: list[dict[str, Any]] | None = None,
    warnings: list[str] | None = None,
) -> dict[str, Any]:
    """The books."""
    return {
        "schema": 1,
        "devices": devices,
        "leases": leases or [],
        "waiters": waiters or [],
        "recent": recent or [],
        "warnings": warnings or [],
    }


def nothing() -> dict[str, Any]:
    """Two devices, and nobody there."""
    return status([device(0), device(1)])


def few() -> dict[str, Any]:
    """All that there can be, a little of each."""
    return status(
        [
            device(0, free_mib=6656, booked_mib=8192, leases=2),
            device(1, free_mib=0, foreign_mib=3072, leases=1),
            device(2, state="lost", reason="fell off the bus", free_mib=0),
        ],
        [
            lease(1, 0),
            lease(2, 0, state="draining", uid=1001, measured_mib=5120),
            lease(3, 1, state="probe", booked_mib=12800, type="probe.py", label="probe.py"),
        ],
        [waiter(1, expected_s=240.0), waiter(2), waiter(3, reason="1 device alone wanted", priority=5)],
        [ended(2), ended(1, outcome="oom", exit_code=1, peak_mib=None)],
        ["lease ab12cd-9 uses device 1, which it was not given"],
    )  # fmt: skip


def many() -> dict[str, Any]:
    """Hundreds of leases and waiters on sixteen devices."""
    return status(
        [device(index, leases=20) for index in range(16)],
        [lease(n, n % 16, booked_mib=700, measured_mib=n) for n in range(320)],
        [waiter(n, reason=f"reason {n} of many, each with numbers of its own") for n in range(300)],
        [ended(n) for n in range(50, 0, -1)],
    )


def slices() -> dict[str, Any]:
    """A card in MIG slices beside a whole one."""
    return status(
        [
            device(0, uuid="MIG-a", name="A100 3g.20gb", parent="GPU-p", total_mib=20480, capacity_mib=20480),
            device(1, uuid="MIG-b", name="A100 4g.20gb", parent="GPU-p", total_mib=20480, capacity_mib=20480),
            device(2),
        ],
        [lease(1, 2), lease(2, devices=["MIG-b"], measured_each_mib=[2048])],
    )  # fmt: skip


ALL = {"nothing": nothing(), "few": few(), "many": many(), "slices": slices(), "none": status([])}
