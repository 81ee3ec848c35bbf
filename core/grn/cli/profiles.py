"""`grn profiles`: show, set and forget what was learnt about job types.

Promises: `--json` gives one object with `schema` and `profiles`, as they are after the action; a type
that is not known is an error that names the nearest one; it works without a broker, and starts none.
Must not: estimate or judge anything; the broker does.
"""

from __future__ import annotations

import argparse
import json

from grn.cli.table import Table, print_tables
from grn.client import Client
from grn.errors import BrokerSilent, BrokerUnavailable, UsageError
from grn.rules.units import format_mib, parse_size_mib
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from grn.cli.stored import StoredProfiles
    from grn.settings import Settings

__all__ = ["main"]

SCHEMA = 1


def main(argv: Sequence[str]) -> int:
    """Do what the words say and print the profiles concerned; return the exit status."""
    args = _parser().parse_args(argv)
    if args.action == "forget" and bool(args.type) == args.all:
        raise UsageError("`profiles forget` needs a type or --all, and not both")
    with _source(load({"socket": args.socket})) as source:
        found = _act(source, args)
    if args.json:
        print(json.dumps({"schema": SCHEMA, "profiles": found}))
    else:
        _print(args, found)
    return 0


def _source(settings: Settings) -> Client | StoredProfiles:
    """Return the broker that runs, else the file that the last one left."""
    try:
        return Client(settings)
    except BrokerUnavailable as error:
        if isinstance(error, BrokerSilent):  # one runs
            raise
    from grn.cli.stored import StoredProfiles  # noqa: PLC0415 - SQLite, and seldom needed

    return StoredProfiles(settings)


def _act(source: Client | StoredProfiles, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Send one action; the reply is the profiles concerned, as they are after it."""
    if args.action == "list":
        return source.profiles("list")
    if args.action == "set":
        return source.profiles(
            "set", type=args.type, device_model=args.device_model, memory_mib=args.memory
        )
    if not (args.action == "forget" and args.all):
        _must_exist(source, args.type)
    return source.profiles(args.action, type=args.type)


def _must_exist(source: Client | StoredProfiles, kind: str) -> None:
    known = {profile["type"] for profile in source.profiles("list")}
    if kind in known:
        return
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistake

    close = get_close_matches(kind, known, n=1, cutoff=0.4)
    meant = f"; did you mean {close[0]!r}?" if close else "; `grn profiles` lists those there are"
    raise UsageError(f"there is no profile of type {kind!r}{meant}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn profiles",
        description="Show, set or forget what was learnt about job types.",
        parents=[_common()],
    )
    parser.set_defaults(action="list", type=None, all=False, json=False, socket=None)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add(actions, "list", "all profiles (the default)")
    _add(actions, "show", "the profiles of one type").add_argument("type", metavar="TYPE")
    setter = _add(actions, "set", "say what jobs of a type need; counts as settled")
    setter.add_argument("type", metavar="TYPE")
    setter.add_argument(
        "--memory", metavar="SIZE", type=_size, required=True, help="for example 3GiB or 700MiB"
    )
    setter.add_argument("--device-model", metavar="MODEL", help="default: every model managed here")
    forget = _add(actions, "forget", "forget a type: its next run is measured alone again")
    forget.add_argument("type", metavar="TYPE", nargs="?")
    forget.add_argument("--all", action="store_true", help="forget every type")
    return parser


def _common() -> argparse.ArgumentParser:
    """Options that may stand before or after the action; a new object each time, as parents share."""
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: an option given before the action is not undone by the default of the action's parser.
    common.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="one JSON object (schema 1) on stdout",
    )
    common.add_argument(
        "--socket", metavar="PATH", default=argparse.SUPPRESS, help="the broker's socket"
    )
    return common


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text, parents=[_common()])
    parser.set_defaults(action=name)
    return parser


def _size(text: str) -> int:
    try:
        return parse_size_mib(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from error


def _print(args: argparse.Namespace, found: Sequence[dict[str, Any]]) -> None:
    if args.action == "forget":
        print_tables([], ["Forgot every type." if args.all else f"Forgot {args.type}."])
    elif not found:
        print_tables([], ["Nothing was learnt yet: no job has run to its end."])
    elif args.action == "show":
        _print_each(found)
    else:
        print_tables([_table(found)])


def _print_each(found: Sequence[dict[str, Any]]) -> None:
    from grn.cli.profile import notes, tables  # noqa: PLC0415 - for one action of several

    for number, profile in enumerate(found):
        if number:
            print()
        print_tables(tables(profile), notes(profile))


def _table(found: Sequence[dict[str, Any]]) -> Table:
    columns = (">estimate", ">peak", ">runs", "state", "source", "device model", "type")
    return Table("", columns, [_row(profile) for profile in found])


def _row(profile: dict[str, Any]) -> list[str]:
    estimate, peak = (
        "-" if profile[key] is None else format_mib(profile[key])
        for key in ("estimate_mib", "peak_mib")
    )
    return [
        estimate,
        peak,
        str(profile["runs"]),
        profile["state"],
        profile["source"] or "-",
        profile["device_model"] or "-",
        profile["type"],
    ]
