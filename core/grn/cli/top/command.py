"""`grn top`: devices, leases, the queue and recent ends; live on a terminal, else once as text.

Promises: never starts a broker; without a terminal, or with `--once`, one page of plain text with all
of it, and no escape sequence; with `NO_COLOR` no colour; ASCII where the locale has no more.
Must not: decide or estimate anything.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

from grn.cli.glyphs import shows_unicode
from grn.cli.table import width
from grn.cli.top.frame import Seen, draw
from grn.cli.top.live import Ended, live, names_of
from grn.cli.top.look import ASCII, FANCY
from grn.cli.top.view import SORTS, View
from grn.client import Client
from grn.errors import UsageError
from grn.rules.units import parse_duration_s
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.cli.top.look import Glyphs

__all__ = ["main"]

_EVERY_S = 0.5
_LEAST_S, _MOST_S = 0.1, 3600.0


def main(argv: Sequence[str]) -> int:
    """Show what the broker does; return the exit status."""
    args = _parser().parse_args(argv)
    view = View(sort=args.sort, filter=args.filter)
    if args.once or not (_is_terminal(sys.stdin.fileno()) and _is_terminal(sys.stdout.fileno())):
        return _once(args, view)
    from grn.cli.top.screen import Screen  # noqa: PLC0415 - needs a terminal
    from grn.watching import Watch  # noqa: PLC0415 - the same

    def watch() -> Watch:
        return Watch(args.socket, events=False, status_every_s=args.every)

    try:
        live(watch(), view, Screen(), _glyphs(), again=watch)
    except Ended as end:
        signal.signal(end.number, signal.SIG_DFL)
        os.kill(os.getpid(), end.number)  # the caller sees what ended us
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn top",
        description="Show live what runs where, who waits for what and until when, and what has ended.",
        epilog="On a terminal, ? explains the keys.",
        allow_abbrev=False,
    )
    parser.add_argument("--once", action="store_true", help="print it once, and all of it")
    parser.add_argument(
        "--sort",
        choices=list(SORTS.values()),
        default="time",
        help="the order of the leases (default: time, the newest first)",
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="only what has this in its names"
    )
    parser.add_argument(
        "--every",
        type=_every,
        default=_EVERY_S,
        metavar="TIME",
        help=f"draw what has changed at most so often (default: {_EVERY_S:g}s)",
    )
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    return parser


def _every(text: str) -> float:
    try:
        seconds = parse_duration_s(text, what="--every")
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    if not _LEAST_S <= seconds <= _MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not between {_LEAST_S:g}s and 1h")
    return seconds


def _is_terminal(descriptor: int) -> bool:
    return os.isatty(descriptor) and os.environ.get("TERM") != "dumb"


def _glyphs() -> Glyphs:
    return FANCY if shows_unicode() else ASCII


def _once(args: argparse.Namespace, view: View) -> int:
    """Print all of it; in colour on a terminal."""
    with Client(load({"socket": args.socket}), start=False) as client:
        status = client.status()
    now = time.time()
    seen = Seen(status, now, "", names_of(status))
    lines = draw(seen, view, width(), None, now, _glyphs()).lines
    if _is_terminal(sys.stdout.fileno()):
        from rich.console import Console  # noqa: PLC0415 - needs a terminal

        console = Console(highlight=False, width=width())
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop")
    else:
        for line in lines:
            print(line.plain.rstrip())
    return 0
