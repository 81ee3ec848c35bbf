"""`grn report`: one page about what ran, to look at in a browser; and a trace for Perfetto.

Promises: it reads the history and nothing else, so no broker is needed and none is started (one that
runs writes down first what has happened); the page
holds all it needs; a file appears under its name only when it is whole; `-o -` writes to standard
output, and nothing else goes there then.
Must not: draw or count anything itself.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from grn import __version__
from grn.errors import GrnError, UsageError
from grn.history.moments import EXAMPLES, parse_moment
from grn.history.reader import path_in
from grn.history.written import let_write
from grn.report.data import MOST_LEASES, Maker, device_list, report_data
from grn.report.learnt import learnt
from grn.report.page import render
from grn.report.source import HistoryFile, Span
from grn.report.trace import trace
from grn.settings import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.settings import Settings

__all__ = ["main"]

_PAGE = "grn-report.html"
_DAYS = 7.0
_DAY_S = 86400
_KIB = 1024
_ALL = -1


def main(argv: Sequence[str]) -> int:
    """Write what was asked for and name it; return the exit status."""
    args = _parser().parse_args(argv)
    settings = load({"state_dir": args.state_dir})
    now = time.time()
    span = _span(args, now)
    if args.output == args.trace == "-":
        raise UsageError("page and trace cannot both go to standard output: name a file for one")
    let_write(settings)
    with _history(path_in(settings.state_dir)) as history:
        if args.trace:
            _write_trace(history, span, args.trace, now)
        if args.output or not args.trace:
            _write_page(history, span, settings, args.output or _PAGE, now)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn report",
        description="Write one page about what ran where: a timeline of the devices, memory booked and"
        " measured, waits, ends for want of memory, and what is known of each type.",
        epilog=f"TIME is such as {EXAMPLES}. The page is one file that needs no network.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"the page (default: {_PAGE}; -: standard output)"
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the leases as a trace for ui.perfetto.dev; the page only with -o then",
    )
    parser.add_argument(
        "--days", type=_days, metavar="N", help=f"the last N days (default: {_DAYS:g})"
    )
    parser.add_argument("--since", metavar="TIME", help="from then on")
    parser.add_argument("--until", metavar="TIME", help="until then (default: now)")
    parser.add_argument("--state-dir", metavar="DIR", help="where the history is kept")
    return parser


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days < 1e6:  # noqa: PLR2004 - three thousand years
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days above 0")
    return days


def _span(args: argparse.Namespace, now: float) -> Span:
    if args.days is not None and args.since is not None:
        raise UsageError("--days and --since both say where the report begins: give one of them")
    until = now if args.until is None else parse_moment(args.until, now, what="--until")
    days = _DAYS if args.days is None else args.days
    since = until - days * _DAY_S
    if args.since is not None:
        since = parse_moment(args.since, now, what="--since")
    if since >= until:
        raise UsageError(
            f"the report would begin {since - until:.0f} s after its end: --since must be before --until"
        )
    return Span(since, until)


def _history(path: str) -> HistoryFile:
    try:
        return HistoryFile(path)
    except FileNotFoundError:
        raise UsageError(
            f"there is no history yet: the broker begins it with the first job, in {path}"
        ) from None


def _write_page(
    history: HistoryFile, span: Span, settings: Settings, path: str, now: float
) -> None:
    profiles = os.path.join(settings.state_dir, "profiles.sqlite")
    known, problem = learnt(profiles, settings.margin_rule)
    host = socket.gethostname()
    data = report_data(
        history,
        span,
        Maker(host, __version__, now),
        learnt=known,
        notes=[problem] if problem else [],
    )
    page = render(data, title=f"GRN report of {host}")
    _write(path, page)
    if path == "-":
        return
    shown, there = data["leases"]["count"], data["leases_in_all"]
    more = (
        "" if shown == there else f", the newest of {there:,} (at most {MOST_LEASES:,} are drawn)"
    )
    print(f"{path}: {shown:,} leases{more}, {len(page) / _KIB:,.0f} KiB")


def _write_trace(history: HistoryFile, span: Span, path: str, now: float) -> None:
    leases = history.rows(span, _ALL)
    made = trace(leases, device_list(history.device_rows(), leases, span), now=min(now, span.until))
    _write(path, json.dumps(made, separators=(",", ":"), allow_nan=False).encode())
    if path != "-":
        print(f"{path}: {len(leases):,} leases; open it at https://ui.perfetto.dev")


def _write(path: str, content: bytes) -> None:
    """Write a file whole or not at all, or to standard output."""
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    beside = f"{path}.{os.getpid()}.part"
    if os.path.exists(path) and not os.path.isfile(path):
        beside = path  # a pipe or a device such as /dev/null is written to, never replaced
    try:
        with open(beside, "wb") as file:
            file.write(content)
        if beside != path:
            os.replace(beside, path)
    except OSError as error:
        if beside != path and os.path.exists(beside):
            os.unlink(beside)
        raise GrnError(f"cannot write {path}: {error.strerror}") from error
