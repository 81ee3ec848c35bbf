"""What a long history costs who looks at it: `grn history` as a whole process, a million records."""

from __future__ import annotations

import os
import sqlite3
import sys
from typing import TYPE_CHECKING

from grn.history.schema import FILE_NAME, SCHEMA_VERSION, TABLES
from tests.bench import stage
from tests.bench.command import wall_s
from tests.bench.figures import Figure, median

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure"]

_LIMIT_MS = 200
_RECORDS, _FEW = 1_000_000, 20_000
_TYPES, _DEVICES, _USERS = 400, 8, 5
_BEGAN = 1_700_000_000.0
_RARE = "evaluate"
_OLD = "old"
_CURVE = "[400, 2000, 3000, 3100, 3200, 3200, 3200, 3000, 2000, 400, 3300]"


def measure(*, quick: bool) -> list[Figure]:
    """Write a history, then look at it in the ways that people do."""
    records, rounds = (_FEW, 3) if quick else (_RECORDS, 15)
    middle = f"@{_BEGAN + records / 2:.0f}"
    looks = {
        "--last 50": [],
        "--last 50 --type of a few old leases": ["--type", f"{_OLD}*"],
        "--last 50 --type 'python *seed=1?'": ["--type", "python *seed=1?"],
        "--last 50 --type 'e*', one in a thousand": ["--type", "e*"],
        "--last 50 --outcome oom, one in a thousand": ["--outcome", "oom"],
        "--last 50 until half of it": ["--until", middle, "--since", f"@{_BEGAN + records / 2 - 9:.0f}"],
        "show ID": ["show", f"ab12cd-{records // 2}"],
        "show NUMBER": ["show", str(records // 2)],
    }  # fmt: skip
    with stage.private() as folder:
        _write(folder, records)
        times: dict[str, list[float]] = {name: [] for name in looks}
        bare: list[float] = []
        environ = stage.environment_in(folder)
        for turn in range(rounds + 1):
            for name, words in looks.items():
                last = [] if words[:1] == ["show"] else ["--last", "50"]
                command = [*stage.grn_command(), "history", *last, *words]
                times[name] += [wall_s(command, environ)] if turn else []
                if not turn:
                    wall_s(command, environ)  # what is on the disk is in memory from now on
            bare.append(wall_s([sys.executable, "-c", "pass"], environ))
        size_mib = os.path.getsize(os.path.join(folder, FILE_NAME)) / 2**20
    about = f"{records} records, {size_mib:.0f} MiB; python -c pass {1e3 * median(bare):.0f} ms"
    return [
        Figure("history", f"grn history {name}", 1e3 * median(took), "ms", _LIMIT_MS, about)
        for name, took in times.items()
    ]


def _write(folder: str, records: int) -> None:
    db = sqlite3.connect(os.path.join(folder, FILE_NAME))
    db.executescript(TABLES)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("PRAGMA synchronous = OFF")
    with db:
        db.executemany(
            "INSERT INTO lease (seq, id, type, label, uid, pid, engine, gpus, devices, booked_mib,"
            " probe, asked_at, granted_at, ended_at, freed_at, waited_s, ran_s, outcome, exit_code,"
            " peak_mib, source, cpu_s, rss_mib, curve)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            _rows(records),
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.close()


def _rows(records: int) -> Iterator[tuple[object, ...]]:
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(_DEVICES)]
    for seq in range(records):
        kind = f"python train.py --model m{seq % 8} --seed={seq % _TYPES}"
        if seq < records // 1000:
            kind = f"{_OLD}-{seq % 3}"
        elif seq % 1000 == 0:
            kind = f"{_RARE}.py"
        at = _BEGAN + seq
        oom = seq % 1000 == 1
        yield (
            seq, f"ab12cd-{seq}", kind, f"seed {seq % _TYPES}", 1000 + seq % _USERS, 4000 + seq, "run",
            1, uuids[seq % _DEVICES], 4096, 0, at - 2, at, at + 30, at + 30, 2.0, 30.0,
            "oom" if oom else "ok", int(oom), 3300, "sampled", 25.5, 900, _CURVE,
        )  # fmt: skip
