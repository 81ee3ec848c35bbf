"""Writes a history as a broker would have: leases that fit their devices, with ends of every kind.

The same seed gives the same history. For tests of what reads it, and for the bench; a history of a
real broker is in `tests/report/test_examples.py`.
"""

from __future__ import annotations

import heapq
import json
import random
import sqlite3
from typing import TYPE_CHECKING, Any

from grn.history.schema import SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["lease_row", "make_history", "write_history"]

GIB = 1024
START = 1_767_225_600.0  # 2026-01-01 00:00 UTC
KINDS = (
    # type, GiB, mean seconds, share of leases
    ("python train_resnet.py --depth 50", 6, 900, 5),
    ("python train_resnet.py --depth 18", 3, 400, 6),
    ("flows/sweep.py::train", 9, 1500, 3),
    ("preprocess", 1, 60, 8),
    ("evaluate", 2, 120, 8),
    ("python finetune.py --model large", 20, 2600, 1),
    ("notebooks/explore.ipynb", 4, 600, 2),
    ("embed", 2, 300, 4),
    ("bench/gemm", 5, 45, 2),
    ("distil", 7, 700, 2),
    ("quantise", 3, 240, 2),
    ("python serve_check.py", 1, 90, 3),
    ("rule align", 4, 350, 3),
    ("rule call_variants", 5, 500, 2),
)
ENGINES = ("run", "queue", "doit", "snakemake", "prefect", "python", "notebook")
COLUMNS = (
    "seq", "id", "type", "label", "uid", "pid", "engine", "policy", "priority", "gpus", "devices",
    "booked_mib", "probe", "asked_at", "granted_at", "ended_at", "freed_at", "waited_s", "ran_s",
    "outcome", "exit_code", "signal", "peak_mib", "source", "cpu_s", "rss_mib", "curve",
)  # fmt: skip


def lease_row(**values: Any) -> dict[str, Any]:
    """Return a row with these values; nothing is known of the others."""
    return {"label": "", "devices": "", **values}


def write_history(
    path: str,
    leases: Iterable[Mapping[str, Any]],
    devices: Iterable[Sequence[Any]],
    *,
    usage: Iterable[Sequence[Any]] = (),
    lost: Iterable[Sequence[Any]] = (),
    events: Iterable[Sequence[Any]] = (),
) -> None:
    """Write a history file with these rows."""
    db = sqlite3.connect(path)
    with db:
        db.executescript(TABLES)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        marks = ", ".join("?" for _ in COLUMNS)
        db.executemany(
            f"INSERT INTO lease ({', '.join(COLUMNS)}) VALUES ({marks})",  # noqa: S608
            [[row.get(name) for name in COLUMNS] for row in leases],
        )
        db.executemany("INSERT INTO device VALUES (?, ?, ?, ?, ?, ?)", devices)
        db.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?)", usage)
        db.executemany("INSERT INTO lost VALUES (?, ?, ?)", lost)
        db.executemany("INSERT INTO event VALUES (?, ?, ?, ?)", events)
    db.close()


def make_history(
    path: str, count: int, *, devices: int = 4, total_mib: int = 24 * GIB, seed: int = 1
) -> float:
    """Write `count` leases in order of granting; return the moment at which the last one is freed."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
    uuids = [f"GPU-{number:08x}-0000-4000-8000-{seed:012x}" for number in range(devices)]
    capacity = total_mib - 256
    used = [0] * devices
    ends: list[tuple[float, int, int]] = []
    rows: list[dict[str, Any]] = []
    now, probed = START, set[str]()
    weights = [share for *_, share in KINDS]
    for seq in range(1, count + 1):
        job_type, gib, mean_s, _ = rng.choices(KINDS, weights)[0]
        asked = now
        probe = job_type not in probed
        probed.add(job_type)
        booked = capacity if probe else gib * GIB + 256
        while True:
            room = [d for d in range(devices) if used[d] + booked <= capacity]
            if room:
                break
            now, device, mib = heapq.heappop(ends)
            used[device] -= mib
        device = min(room, key=lambda d: used[d])
        row, free_at = _lease(rng, seq, (job_type, gib, mean_s), uuids[device], booked, probe=probe)
        row |= {"asked_at": asked, "granted_at": now, "waited_s": round(now - asked, 3)}
        row |= {"ended_at": now + row["ran_s"], "freed_at": now + free_at}
        rows.append(row)
        used[device] += booked
        heapq.heappush(ends, (now + free_at, device, booked))
        if rng.random() < 0.5:
            now += rng.expovariate(1 / 20)
            while ends and ends[0][0] <= now:
                _, device, mib = heapq.heappop(ends)
                used[device] -= mib
    last = max(row["freed_at"] for row in rows)
    table = [(u, n, "NVIDIA A30", total_mib, capacity, last) for n, u in enumerate(uuids)]
    write_history(
        path, rows, table, usage=_usage(rows, last), lost=_lost(rng, last), events=_events()
    )
    return last


def _lease(
    rng: random.Random, seq: int, kind: tuple[str, int, int], uuid: str, booked: int, *, probe: bool
) -> tuple[dict[str, Any], float]:
    """Return a row, and how many seconds after its grant its memory is free."""
    job_type, gib, mean_s = kind
    ran = max(0.3, rng.gammavariate(3, mean_s / 3))
    peak = int(gib * GIB * rng.uniform(0.8, 1.0))
    luck = rng.random()
    outcome, code, number = "ok", 0, None
    if luck > 0.985:
        outcome, code, ran, peak = "oom", 1, ran * rng.random(), booked + 40
    elif luck > 0.965:
        outcome, code, ran = "failed", 1, ran * rng.random()
    elif luck > 0.955:
        outcome, code, number = "killed", None, 9
    elif luck > 0.95:
        outcome, code = "cancelled", None
    growth = sorted(rng.random() for _ in range(9))
    curve = [int(peak * min(1.0, 0.3 + share)) for share in (0.0, *growth)]
    row = lease_row(
        seq=seq, id=f"a1b2c3-{seq}", type=job_type,
        label=f"{job_type.split()[-1].rpartition('/')[2]} #{seq % 97}" if seq % 3 else "",
        uid=1000 + seq % 4, pid=4000 + seq, engine=ENGINES[seq % len(ENGINES)], policy="spread",
        priority=0, gpus=1, devices=uuid, booked_mib=booked, probe=int(probe), ran_s=round(ran, 3),
        outcome=outcome, exit_code=code, signal=number, peak_mib=peak, source="sampled",
        cpu_s=round(ran * rng.uniform(0.4, 3), 2), rss_mib=rng.randrange(300, 6000),
        curve=json.dumps([*curve, peak]),
    )  # fmt: skip
    return row, ran + (rng.uniform(2, 20) if luck > 0.9 else 0.0)


def _usage(rows: list[dict[str, Any]], last: float) -> list[tuple[Any, ...]]:
    """Return means over minutes, as rows of the table."""
    sums: dict[tuple[int, str], list[float]] = {}
    for row in rows:
        step = row["ran_s"] / 10
        pieces = [
            (row["granted_at"] + i * step, step, mib)
            for i, mib in enumerate(json.loads(row["curve"])[:10])
        ]
        for column, spans in (
            (0, [(row["granted_at"], row["freed_at"] - row["granted_at"], row["booked_mib"])]),
            (1, pieces),
        ):
            for begin, length, mib in spans:
                at, end = begin, begin + length
                while at < end:
                    minute = int(at // 60)
                    until = min(end, (minute + 1) * 60.0)
                    slot = sums.setdefault((minute, row["devices"]), [0.0, 0.0])
                    slot[column] += mib * (until - at) / 60
                    at = until if until > at else end
    del last
    return [
        (
            minute * 60.0,
            uuid,
            booked,
            measured,
            800.0 if uuid.startswith("GPU-00000001") else 0.0,
            60.0 + minute % 30,
        )
        for (minute, uuid), (booked, measured) in sums.items()
    ]


def _lost(rng: random.Random, last: float) -> list[tuple[float, str, float]]:
    weights = {"probe": 40_000, "fragmentation": 90_000, "head": 20_000}
    minutes = range(int(START // 60), int(last // 60))
    return [
        (minute * 60.0, cause, rng.random() * weight)
        for minute in minutes
        for cause, weight in weights.items()
        if rng.random() < 0.3
    ]


def _events() -> list[tuple[int, float, str, str]]:
    told = [
        {"event": "broker", "state": "started"},
        {"event": "device", "index": 2, "state": "lost", "reason": "fell off the bus"},
        {"event": "device", "index": 2, "state": "ok", "reason": None},
        {"event": "refused", "type": "python huge.py", "label": "", "message": "asks for 80 GiB on a device; the largest has 24 GiB"},
    ]  # fmt: skip
    return [
        (
            seq,
            START + 600 * seq,
            str(event["event"]),
            json.dumps({"schema": 1, "seq": seq, **event}),
        )
        for seq, event in enumerate(told, 1)
    ]
