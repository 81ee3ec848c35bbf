"""`grn queue ls` and `grn queue info`: the list, and one job in full."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time

from grn.cli.table import Table, clean, format_seconds, print_tables
from grn.queue.places import Places
from grn.queue.store import Store
from grn.queue.view import job_object, queue_object
from grn.rules import queueing as q
from grn.rules.units import format_mib
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["info", "ls"]

_SECRET = re.compile(
    r"pass(word|wd|phrase)?|secret|token|credential|api_?key|private", re.IGNORECASE
)
_LAST_LINES = 10
_TAIL_BYTES = 1 << 14


def ls(argv: Sequence[str]) -> int:
    """Show the list."""
    parser = argparse.ArgumentParser(
        prog="grn queue ls",
        description="Show the queue: what runs, what waits and why, and what has ended.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--all", action="store_true", help="all that has ended, not only the last ten"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    args = parser.parse_args(argv)
    settings = load({})
    seen = queue_object(Places(settings.state_dir), settings, everything=args.all)
    if args.json:
        print(json.dumps(seen))
        return 0
    jobs = seen["jobs"]
    living = [job for job in jobs if job["state"] not in q.OVER]
    over = [job for job in jobs if job["state"] in q.OVER]
    print(_headline(seen))
    print_tables(
        [
            Table(
                "",
                (">#", ">id", "state", "on", ">peak", ">for", "job"),
                [_living_row(job) for job in living],
            ),
            Table(
                "ended",
                (">id", "state", "on", ">peak", ">ran", "job"),
                [_ended_row(job) for job in over],
            ),
        ]
    )
    return 0


def _headline(seen: Mapping[str, Any]) -> str:
    counts = seen["counts"]
    parts = [f"{counts[state]} {state}" for state in q.STATES if counts.get(state)]
    if seen["owner"] is None:
        how = "nobody works it off: `grn queue start`"
    else:
        how = f"worked off by process {seen['owner']}"
        how += ", paused" if seen["paused"] else ""
        how += ", ends when all is done" if seen["mode"] == "drain" else ""
        how += f", {seen['limit']} at a time" if seen["limit"] else ""
    return f"queue: {', '.join(parts) or 'empty'}; {how}"


def _living_row(job: Mapping[str, Any]) -> list[str]:
    since = job["started_s"] if job["state"] == q.RUNNING else job["added_s"]
    lines = [job["name"]]
    if job["state"] == q.RUNNING and job["left_s"] is not None:
        lines.append(f"ends in about {format_seconds(job['left_s'])}")
    elif job["probe"] and job["state"] == q.RUNNING:
        lines.append("the first of its type: measured alone")
    elif job["reason"]:
        lines.append(job["reason"])
    return [
        "" if job["position"] is None else str(job["position"]),
        str(job["id"]),
        job["state"],
        _on(job),
        _size(job["peak_mib"]),
        format_seconds(max(0.0, time.time() - since)),
        "\n".join(lines),
    ]


def _ended_row(job: Mapping[str, Any]) -> list[str]:
    lines = [job["name"]]
    if job["state"] != q.OK and job["text"]:
        said = job["last_words"]
        lines.append(f"{job['text']}: {said}" if said and job["state"] == q.FAILED else job["text"])
    ran = "-" if job["ran_s"] is None else format_seconds(job["ran_s"])
    return [str(job["id"]), job["state"], _on(job), _size(job["peak_mib"]), ran, "\n".join(lines)]


def _on(job: Mapping[str, Any]) -> str:
    return ",".join(map(str, job["indexes"])) or "-"


def _size(mib: int | None) -> str:
    return "-" if mib is None else format_mib(mib)


def info(argv: Sequence[str]) -> int:
    """Show one job in full."""
    parser = argparse.ArgumentParser(
        prog="grn queue info", description="Show all that is known of one job.", allow_abbrev=False
    )
    parser.add_argument("job", type=int, metavar="ID")
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    args = parser.parse_args(argv)
    with Store(Places(load({}).state_dir)) as store:
        entry = store.get(args.job)
    job = job_object(entry)
    environ = {
        name: "(not shown)" if _SECRET.search(name) else value
        for name, value in sorted(entry.spec.environ.items())
    }
    if args.json:
        print(json.dumps({"schema": 1, **job, "environ": environ}))
        return 0
    for name in ("id", "name", "state", "reason", "command", "notebook", "cwd", "options", "after",
                 "type", "devices", "peak_mib", "ran_s", "exit_code", "outcome", "text", "last_words", "notes", "tries",
                 "runner", "pid", "log"):  # fmt: skip
        value = job[name]
        if value not in (None, [], ""):
            print(f"{name:>10}  {clean(_text(name, value))}")
    print(f"{'environ':>10}  {len(environ)} variables, kept in a file that only you can read")
    last = _last_lines(entry.log)
    if last:
        print(f"\nlast lines of its log:\n{last}")
    return 0


def _text(name: str, value: object) -> str:
    return (
        ("; " if name == "notes" else " ").join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )


def _last_lines(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return "" if not path else f"({error.strerror}: {path})"
    sys.stdout.flush()
    return "\n".join(f"  {clean(line)}" for line in lines[-_LAST_LINES:])
