"""`grn queue ls` and `grn queue info`: the list, and one job in full."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import textwrap
import time

from grn.cli.numbers import whole
from grn.cli.table import Table, clean, format_seconds, print_tables, shortened, width
from grn.queue.places import Places
from grn.queue.store import Store
from grn.queue.view import job_now, queue_object
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
_MOST = 20
"""Of what is queued: one screen, and quick with thousands in the list."""
_IN_LINE = (q.QUEUED, q.HELD, q.STARTING, q.WAITING)
_TAIL_BYTES = 1 << 14


def ls(argv: Sequence[str]) -> int:
    """Show the list."""
    parser = argparse.ArgumentParser(
        prog="grn queue ls",
        description="Show the queue: what runs, what waits and why, and what has ended.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"all that is queued or has ended, not only the next {_MOST} and the last ten",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    args = parser.parse_args(argv)
    settings = load({})
    most = -1 if args.all or args.json else _MOST
    seen = queue_object(Places(settings.state_dir), settings, everything=args.all, most=most)
    if args.json:
        print(json.dumps(seen))
        return 0
    jobs = seen["jobs"]
    living = [job for job in jobs if job["state"] not in q.OVER]
    over = [job for job in jobs if job["state"] in q.OVER]
    shown = sum(job["state"] in _IN_LINE for job in living)
    more = sum(seen["counts"].get(state, 0) for state in _IN_LINE) - shown
    said = _said_above(living, headline=seen["owner"] is None or seen["paused"])
    print(textwrap.fill(_headline(seen), width(), break_on_hyphens=False))
    print_tables(
        [
            Table(
                "",
                (">#", ">id", "state", "on", ">peak", ">for", "job"),
                [_living_row(job, said) for job in living],
                shorten=shortened,
            )
        ],
        [f"and {more} more: `grn queue ls --all` lists them"] if more > 0 else [],
    )
    if living and over:
        print()
    print_tables(
        [
            Table(
                "ended",
                (">id", "state", "on", ">peak", ">ran", "job"),
                [_ended_row(job) for job in over],
                shorten=shortened,
            )
        ]
    )
    return 0


def _said_above(living: Sequence[Mapping[str, Any]], *, headline: bool) -> set[int]:
    """Return the jobs whose reason the job above has, or the headline: it is not said again."""
    plain = [job for job in living if job["state"] == q.QUEUED and not job["after"]]
    if headline:
        return {job["id"] for job in plain}
    pairs = itertools.pairwise(plain)
    return {job["id"] for before, job in pairs if job["reason"] == before["reason"]}


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


def _living_row(job: Mapping[str, Any], said: set[int]) -> list[str]:
    since = job["started_s"] if job["state"] == q.RUNNING else job["added_s"]
    lines = [clean(job["name"])]
    if job["state"] == q.RUNNING and job["left_s"] is not None:
        lines.append(f"ends in about {format_seconds(job['left_s'])}")
    elif job["probe"] and job["state"] == q.RUNNING:
        lines.append("the first of its type: measured alone")
    elif job["reason"] and job["id"] not in said:
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
    lines = [clean(job["name"])]
    if job["state"] != q.OK and job["text"]:
        said = job["last_words"]
        text = (
            f"{job['text']}: {said}" if said and job["state"] in (q.FAILED, q.OOM) else job["text"]
        )
        lines.append(" ".join(text.split()))
    if job["log_incomplete"]:
        lines.append("its log is incomplete: there was no room on the disk")
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
    parser.add_argument("job", type=whole, metavar="ID")
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    args = parser.parse_args(argv)
    settings = load({})
    with Store(Places(settings.state_dir)) as store:
        entry = store.get(args.job)
    job = job_now(entry, settings)
    environ = {
        name: "(not shown)" if _SECRET.search(name) else value
        for name, value in sorted(entry.spec.environ.items())
    }
    if args.json:
        print(json.dumps({"schema": 1, **job, "environ": environ}))
        return 0
    for name in ("id", "name", "state", "priority", "reason", "command", "notebook", "cwd", "options", "after",
                 "type", "devices", "peak_mib", "ran_s", "exit_code", "outcome", "text", "last_words", "notes", "tries", "retried_as",
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
