"""`grn broker`: run it in the foreground; `stop` ends the one that runs, `reload` has it look again.

Promises: every setting is an option, read from the settings' own table; `stop` returns when the
broker has left, and jobs that hold leases go on; `reload` signals nothing but a broker.
Must not: import the server before the command line was found right.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys

from grn.client import Client
from grn.errors import BrokerSilent, BrokerUnavailable, LeaseError
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
    if args.action == "reload":
        return _reload(settings)
    # All that is imported stays: the garbage collector need not go through it, now or ever.
    gc.disable()
    from grn.broker.server import main as serve  # noqa: PLC0415 - asyncio and all that

    gc.freeze()
    gc.enable()
    # While the history's thread writes, whoever asks is heard after half a millisecond, not after five.
    sys.setswitchinterval(0.0005)
    return serve(settings, on_demand=args.on_demand, ready_fd=args.ready_fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn broker",
        description="Keep the books of this machine's devices, in the foreground.",
        epilog="Each option is also a variable (GRN_DEVICES for --devices) and a key in the "
        "configuration file. `grn run` starts a broker by itself if there is none.",
        allow_abbrev=False,
        # By itself it imports shutil for the width, and measures it for each option.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=_help_width()),
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=("run", "stop", "reload"),
        default="run",
        help="run (the default); stop the broker that runs, its jobs go on; or reload: have it look"
        " for devices that are new, and let in again those that errors keep out (as SIGHUP does)",
    )
    for flag, metavar, text in known_flags():
        parser.add_argument(flag, metavar=metavar, help=text.replace("%", "%%"))
    # Between us and our own clients: leave when idle, and say READY on this descriptor.
    parser.add_argument("--on-demand", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    return parser


def _help_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    try:
        return (int(columns) if columns.isdecimal() else os.get_terminal_size().columns) - 2
    except OSError:  # no terminal
        return 78


def _stop(settings: Settings) -> int:
    try:
        with Client(settings) as client:
            client.stop()
    except BrokerUnavailable as error:
        if isinstance(error, BrokerSilent):  # one runs
            raise
        sys.stderr.write("grn broker: none runs, so there is nothing to stop\n")
    return 0


def _reload(settings: Settings) -> int:
    with Client(settings) as client:
        pid: int = client.broker["pid"]
        by_hand = f"have its user run `kill -HUP {pid}` where it runs"
        if not _is_broker(pid):
            raise BrokerUnavailable(f"the broker, pid {pid}, cannot be seen from here: {by_hand}")
        try:
            os.kill(pid, signal.SIGHUP)
        except PermissionError:
            raise LeaseError(f"the broker, pid {pid}, is another user's: {by_hand}") from None
    print(f"the broker (pid {pid}) looks at its devices again; `grn devices` shows them")
    return 0


def _is_broker(pid: int) -> bool:
    """Whether this is a broker: in a container the number may be another process's."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"broker" in file.read().split(b"\0")
    except OSError:
        return False
