"""Change simulated devices by hand: `python -m grn.testing.devices --dir D foreign 1 18GiB`.

For demonstrations and shell scripts; in Python use `grn.devices.simfolder` itself.
"""

from __future__ import annotations

import argparse
import os
import sys

from grn.devices import simfolder
from grn.errors import GrnError, UsageError
from grn.rules.units import parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m grn.testing.devices", description=__doc__)
    parser.add_argument("--dir", default=os.environ.get("GRN_SIM_DIR"), help="or $GRN_SIM_DIR")
    actions = parser.add_subparsers(dest="action", required=True)
    foreign = actions.add_parser("foreign", help="let somebody else hold memory on a card")
    foreign.add_argument("card", type=int)
    foreign.add_argument("size")
    foreign.add_argument("name", nargs="?", default="hand")
    free = actions.add_parser("free", help="take such a holder away again")
    free.add_argument("name", nargs="?", default="hand")
    change = actions.add_parser("set", help="change a card's record: state=lost, base=512M, mode=3")
    change.add_argument("card", type=int)
    change.add_argument("change", nargs="+", metavar="KEY=VALUE", help="KEY= removes the key")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one change; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        if not options.dir:
            raise UsageError("name the state folder with --dir or GRN_SIM_DIR")
        _carry_out(options)
    except GrnError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_status
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _carry_out(options: argparse.Namespace) -> None:
    if options.action == "foreign":
        mib = parse_size_mib(options.size)
        simfolder.add_foreign(options.dir, options.card, mib, options.name)
    elif options.action == "free":
        simfolder.remove_foreign(options.dir, options.name)
    else:
        pairs = [word.partition("=") for word in options.change]
        simfolder.set_device(options.dir, options.card, **{k: v or None for k, _, v in pairs})


if __name__ == "__main__":
    sys.exit(main())
