"""`grn history`: what ran here, when, with what, and how it ended; `grn history show ID` in full.

Promises: needs no broker and starts none; one that runs writes down first what has happened; what is asked for by a name that nobody has, or by a moment
that cannot be read, is an error that says so; `--json` gives one object with `schema` and `leases`.
Must not: write to the history, or judge what is in it.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time

from grn.cli.names import fitted, job_name
from grn.cli.numbers import LARGEST
from grn.cli.table import Table, format_seconds, print_tables
from grn.errors import UsageError
from grn.history.filters import Filters, as_kept
from grn.history.moments import EXAMPLES, parse_moment
from grn.history.reader import History, path_in
from grn.history.record import COLUMNS, RUNNING
from grn.history.written import let_write
from grn.rules import outcome
from grn.rules.units import format_mib, parse_count
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from grn.history.record import Record
    from grn.settings import Settings

__all__ = ["main", "table"]

SCHEMA = 1

_LAST = 20
_DAY_S = 86400
_OUTCOMES = (
    outcome.OK,
    outcome.FAILED,
    outcome.KILLED,
    outcome.OOM,
    outcome.OOM_SUSPECTED,
    outcome.CANCELLED,
    outcome.LOST,
    RUNNING,
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def main(argv: Sequence[str]) -> int:
    """Print the records that the words ask for; return the exit status."""
    args = _parser().parse_args(argv)
    now = time.time()
    settings = load({"state_dir": args.state_dir})
    path = path_in(settings.state_dir)
    let_write(settings)
    try:
        history = History(path)
    except FileNotFoundError:
        return _nothing_yet(args, settings)
    with history:
        if args.action == "show":
            from grn.cli.historyshow import show  # noqa: PLC0415 - not for the list

            return show(history, args.lease, now, as_json=args.json)
        filters = _filters(args, history, now)
        _write(args, history.leases(filters, args.last), history, now)
    return 0


def _nothing_yet(args: argparse.Namespace, settings: Settings) -> int:
    """Say that there is no history; check the words all the same, as far as that goes."""
    path = path_in(settings.state_dir)
    said = f"there is no history yet: the broker begins it with the first job, in {path}"
    if not (settings.history_days and settings.history_mib):
        said = f"there is no history in {path}, and history_days or history_mib says to keep none"
    if args.action == "show":
        raise UsageError(said)
    _filters(args, None, time.time())
    if args.json or args.csv:
        _write(args, (), None, time.time())
    else:
        print_tables([], [said[0].upper() + said[1:]])
    return 0


# -- words ----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn history",
        description="Show what ran here: the last leases, the newest first. `grn history show ID`"
        " shows one in full.",
        parents=[_common()],
        allow_abbrev=False,
    )
    parser.set_defaults(action="list", json=False, state_dir=None)
    _add_filters(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    text = "all that is known of one lease"
    shower = actions.add_parser(
        "show", help=text, description=f"Show {text}.", parents=[_common()], allow_abbrev=False
    )
    shower.add_argument(
        "lease", metavar="ID", help="its id, the beginning of it, or the number that it ends with"
    )
    shower.set_defaults(action="show")
    return parser


def _common() -> argparse.ArgumentParser:
    """Options that may stand before or after the action."""
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: an option given before the action is not undone by the default of the action's parser.
    common.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="one JSON object (schema 1) on stdout",
    )
    common.add_argument(
        "--state-dir",
        metavar="PATH",
        default=argparse.SUPPRESS,
        help="the folder of the broker whose history is wanted",
    )
    return common


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", action="store_true", help="comma-separated values on stdout")
    parser.add_argument(
        "--last",
        metavar="N",
        type=_count,
        default=_LAST,
        help=f"at most so many, or `all` (default: {_LAST})",
    )
    parser.add_argument("--type", metavar="TYPE", help="of this type; may be a glob: 'train*'")
    parser.add_argument("--label", metavar="LABEL", help="with this label; may be a glob")
    parser.add_argument("--user", metavar="USER", help="of this user: a name or a number")
    parser.add_argument("--engine", metavar="ENGINE", help="run, queue, notebook, doit, ...")
    parser.add_argument("--outcome", choices=_OUTCOMES, help="which ended so, or are running")
    parser.add_argument(
        "--device", metavar="DEVICE", help="on this device: its index, or its UUID's beginning"
    )
    parser.add_argument("--since", metavar="TIME", help=f"which ran after it: {EXAMPLES}")
    parser.add_argument("--until", metavar="TIME", help="which had begun by then")


def _count(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return parse_count(text, what="--last", minimum=1)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message}, or `all`") from error


def _filters(args: argparse.Namespace, history: History | None, now: float) -> Filters:
    """Make filters of the words.

    Raises:
        UsageError: no such user or device; a moment that is none; an end before the beginning.
    """
    if args.json and args.csv:
        raise UsageError("--json or --csv, not both")
    since, until = (
        None if text is None else parse_moment(text, now, what=what)
        for what, text in (("--since", args.since), ("--until", args.until))
    )
    if since is not None and until is not None and until < since:
        raise UsageError(f"--until {args.until!r} is before --since {args.since!r}")
    return Filters(
        type=None if args.type is None else as_kept(args.type),
        label=None if args.label is None else as_kept(args.label),
        uid=None if args.user is None else _uid(args.user),
        engine=None if args.engine is None else as_kept(args.engine),
        outcome=args.outcome,
        devices=None if args.device is None else _uuids(args.device, history),
        since=since,
        until=until,
    )


def _uid(name: str) -> int:
    if name.isascii() and name.isdigit() and int(name) <= LARGEST:
        return int(name)
    import pwd  # noqa: PLC0415 - for one filter

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise UsageError(
            f"--user {name!r}: there is no such user here; a number will do"
        ) from error


def _uuids(name: str, history: History | None) -> tuple[str, ...]:
    """Return the devices that are meant: several had the same index, if cards were exchanged."""
    known = history.devices() if history else []
    found = tuple(
        device.uuid for device in known if name == str(device.index) or device.uuid.startswith(name)
    )
    if found or not known:
        return found
    indexes = ", ".join(dict.fromkeys(str(device.index) for device in known))
    raise UsageError(
        f"--device {name!r}: the history knows devices {indexes}; `grn devices` shows their UUIDs"
    )


# -- output ---------------------------------------------------------------------------------------


def _write(
    args: argparse.Namespace, found: Iterable[Record], history: History | None, now: float
) -> None:
    if args.json:
        _write_json(found)
    elif args.csv:
        _write_csv(found)
    else:
        _print(list(found), history, now)


def _write_json(found: Iterable[Record]) -> None:
    """Write one object, record by record: all of a history may be asked for."""
    sys.stdout.write(f'{{"schema": {SCHEMA}, "leases": [')
    for number, record in enumerate(found):
        sys.stdout.write(("," if number else "") + "\n" + json.dumps(record.as_json()))
    sys.stdout.write("]}\n")


def _write_csv(found: Iterable[Record]) -> None:
    import csv  # noqa: PLC0415 - few ask for it

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold what the locale lacks
    columns = [name for name in COLUMNS if name != "curve"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for record in found:
        plain = record.as_json()
        plain["devices"] = " ".join(record.devices)
        plain["probe"] = None if record.probe is None else int(record.probe)
        writer.writerow([plain[name] for name in columns])


def _print(found: Sequence[Record], history: History | None, now: float) -> None:
    if not found:
        print_tables([], ["No lease is in the history that was asked for."])
        return
    devices = history.devices() if history else []
    index = {device.uuid: str(device.index) for device in devices}
    print_tables([table(found, index, now)])


def table(found: Sequence[Record], index: Mapping[str, str], now: float) -> Table:
    """Arrange records as a table; `index` names devices by their UUID."""
    columns = ("lease", "began", ">waited", ">ran", "on", ">peak", "outcome", "job")
    return Table("", columns, [_row(each, index, now) for each in found], shorten=fitted)


def _row(record: Record, index: Mapping[str, str], now: float) -> list[str]:
    return [
        record.id,
        "?" if record.granted_at is None else _moment(record.granted_at, now),
        _seconds(record.waited_s),
        _seconds(record.ran_until(now)),
        ",".join(index.get(uuid, uuid) for uuid in record.devices) or "-",
        "-" if record.peak_mib is None else format_mib(record.peak_mib),
        outcome_text(record),
        job_name({"label": record.label, "type": record.type}),
    ]


def outcome_text(record: Record) -> str:
    """Write how it ended, with the exit code or the signal where that says more."""
    if record.outcome is None:
        return RUNNING if record.running else "?"
    if record.outcome == outcome.OOM_SUSPECTED:
        return "oom?"
    if record.outcome == outcome.FAILED and record.exit_code is not None:
        return f"failed ({record.exit_code})"
    if record.outcome == outcome.KILLED and record.signal is not None:
        return f"killed ({record.signal})"
    return record.outcome


def _moment(at: float, now: float) -> str:
    """Write a moment as short as it stays clear: with the day if that is another one."""
    then, today = time.localtime(at), time.localtime(now)
    clock = f"{then.tm_hour:02}:{then.tm_min:02}"
    day = f"{then.tm_mday} {_MONTHS[then.tm_mon - 1]}"
    if then[:3] == today[:3]:
        return clock
    if abs(now - at) < _DAY_S * 180:
        return f"{day} {clock}"
    return f"{day} {then.tm_year}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)
