"""`grn broker`: run the broker in the foreground; `grn broker stop` ends the one that runs.

Promises: every setting is an option, read from the settings' own table; `stop` returns when the
broker has left, and jobs that hold leases go on.
Must not: import the server before the command line was found right.
"""

from __future__ import annotations

import argparse
import sys

from grn.client import Client
from grn.errors import BrokerSilent, BrokerUnavailable
from grn.settings import known_flags, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.settings import Settings

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run or stop a broker; return the exit status."""
    args = _parser().parse_args(argv)
    settings = load(vars(args))
    if args.action == "stop":
        return _stop(settings)
    from grn.broker.server import main as serve  # noqa: PLC0415 - asyncio and all that

    return serve(settings, on_demand=args.on_demand, ready_fd=args.ready_fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn broker",
        description="Keep the books of this machine's devices, in the foreground.",
        epilog="Each option is also a variable (GRN_DEVICES for --devices) and a key in the "
        "configuration file. `grn run` starts a broker by itself if there is none.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=("run", "stop"),
        default="run",
        help="run (the default), or stop the broker that runs; its jobs go on",
    )
    for flag, metavar, text in known_flags():
        parser.add_argument(flag, metavar=metavar, help=text.replace("%", "%%"))
    # Between us and our own clients: leave when idle, and say READY on this descriptor.
    parser.add_argument("--on-demand", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    return parser


def _stop(settings: Settings) -> int:
    try:
        with Client(settings) as client:
            client.stop()
    except BrokerUnavailable as error:
        if isinstance(error, BrokerSilent):  # one runs
            raise
        sys.stderr.write("grn broker: none runs, so there is nothing to stop\n")
    return 0
