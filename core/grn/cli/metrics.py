"""`grn metrics`: a broker's figures for Prometheus, once or as a file that is kept up to date.

Promises: standard output is Prometheus' text format; never starts a broker; as a file it is whole at any
moment; SIGTERM ends it with status 0, after a last text.
Must not: reckon anything; `grn.metrics` does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec

from grn.errors import BrokerUnavailable, UsageError
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["main"]

_DASHBOARD = os.path.join(os.path.dirname(os.path.dirname(__file__)), "metrics", "grafana.json")


def main(argv: Sequence[str]) -> int:
    """Print or write the figures; return the exit status."""
    args = _parser().parse_args(argv)
    if args.dashboard:
        sys.stdout.write(_dashboard())
        return 0
    if find_spec("prometheus_client") is None:
        raise UsageError(
            "prometheus_client is not installed: `pip install 'grn-plugins[metrics]'` brings it"
        )
    socket = load({"socket": args.socket}).socket
    if args.every is None:
        return _once(socket, args.textfile)
    if args.textfile is None:
        raise UsageError("--every needs --textfile")
    return _follow(socket, args.textfile, args.every)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn metrics",
        description="Print a broker's figures in Prometheus' text format, or keep them in a file for"
        " node_exporter.",
    )
    parser.add_argument(
        "--textfile", metavar="PATH", help="write them to this file, whose name ends in .prom"
    )
    parser.add_argument(
        "--every", metavar="S", type=_seconds, help="go on, and write the file every S seconds"
    )
    parser.add_argument(
        "--dashboard", action="store_true", help="print a dashboard for Grafana, and nothing else"
    )
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004 - what a watcher may ask for
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600 seconds")
    return seconds


def _dashboard() -> str:
    with open(_DASHBOARD, encoding="utf-8") as file:
        return file.read()


def _once(socket: str | None, path: str | None) -> int:
    from grn.metrics.collector import Collector  # noqa: PLC0415 - an extra
    from grn.metrics.following import once  # noqa: PLC0415 - the same
    from grn.metrics.textfile import TextFile  # noqa: PLC0415 - the same

    file = None if path is None else TextFile(path)
    try:
        collector = once(socket)
    except BrokerUnavailable:
        if file is None:
            raise
        collector = Collector(count=False)  # a file that stays would go on telling of an old state
    if not collector.count:
        sys.stderr.write(
            "grn metrics: the broker has forgotten its first events, so that nothing is counted here;"
            " with --textfile and --every, or at the broker's own /metrics, it is\n"
        )
    if file is None:
        sys.stdout.write(collector.text().decode())
    else:
        file.write(collector.text())
    return 0


def _follow(socket: str | None, path: str, every_s: float) -> int:
    from grn.metrics.following import Follower  # noqa: PLC0415 - an extra
    from grn.metrics.textfile import TextFile  # noqa: PLC0415 - the same

    file = TextFile(path)
    with _Ending() as ending:
        Follower(socket, every_s=every_s, wake=ending.wake).run(file.write)
    if ending.by == signal.SIGINT:
        raise KeyboardInterrupt  # a shell that runs this in a loop must see it
    return 0


class _Ending:
    """Turns SIGTERM and Ctrl-C into a descriptor that becomes readable: no write is broken off."""

    def __init__(self) -> None:
        self.by: int | None = None
        self.wake, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._before: dict[int, Any] = {}

    def _ended(self, number: int, frame: object) -> None:
        del frame
        self.by = number

    def __enter__(self) -> _Ending:  # noqa: PYI034 - typing.Self is too heavy here
        self._fd = signal.set_wakeup_fd(self._tell)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._ended)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)
        os.close(self.wake)
        os.close(self._tell)
