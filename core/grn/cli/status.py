"""`grn status`: what the broker's books say, for people and, with `--json`, for programs.

Promises: never starts a broker; the JSON is the broker's own object; everything in it that needs
somebody's attention (waiters' reasons, left-over processes, warnings) is in the text as well. Names of
jobs are shortened to a line; the JSON has them whole.
Must not: read devices or processes itself, or decide anything.
"""

from __future__ import annotations

import argparse
import json

from grn.cli.table import Table, format_seconds, print_tables, shortened, width
from grn.client import Client
from grn.rules.units import format_mib
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["main"]

_NAME_IN_A_SENTENCE = 40
_LEAST_OF_A_TYPE = 24
_LEAST_FOR_STARTS = 60


def main(argv: Sequence[str]) -> int:
    """Print the state of the broker; return the exit status."""
    args = _parser().parse_args(argv)
    with Client(load({"socket": args.socket}), start=False) as client:
        status = client.status()
    if args.json:
        print(json.dumps(status))
    else:
        print_tables(tables(status), notes(status))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn status", description="Show devices, leases, and what every waiting job waits for."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    return parser


def tables(status: Mapping[str, Any]) -> list[Table]:
    """Arrange devices, leases and waiters as tables; the longest text is in the last column."""
    index = {device["uuid"]: str(device["index"]) for device in status["devices"]}
    return [
        Table(
            _device_title(status.get("broker", {})),
            (">device", "state", ">total", ">free", ">booked", ">measured", ">others", "name"),
            [_device_row(device) for device in status["devices"]],
        ),
        Table(
            "leases",
            ("lease", "state", "on", ">booked", ">measured", ">peak", ">pid", "job"),
            [_lease_row(lease, index) for lease in status["leases"]],
            shorten=_fitted,
        ),
        _waiting(status["waiters"]),
    ]


def _waiting(waiters: Sequence[Mapping[str, Any]]) -> Table:
    """Show expected starts where any is known and there is room beside the reasons."""
    starts = width() >= _LEAST_FOR_STARTS and any(
        waiter.get("expected_s") is not None for waiter in waiters
    )
    columns = (">since", *([">starts in"] if starts else []), "job and reason")
    rows: list[Sequence[str]] = [_waiter_row(waiter, starts=starts) for waiter in waiters]
    return Table("waiting", columns, rows, shorten=_fitted)


def notes(status: Mapping[str, Any]) -> list[str]:
    """Say in sentences what does not fit a table: nothing there, left-overs, warnings."""
    found: list[str] = []
    if not status["devices"]:
        found.append("The broker manages no device.")
    if not status["leases"] and not status["waiters"]:
        found.append("No job runs or waits.")
    found += [
        f"device {device['index']} is {device['state']}: {device['reason']}"
        for device in status["devices"]
        if device.get("reason")
    ]
    for lease in status["leases"]:
        if extras := _extras(lease):
            found.append(f"lease {lease['id']}: {extras}")
        if lease["left_over"]:
            pids = ", ".join(map(str, lease["left_over"]))
            name = _fitted(_job(lease), _NAME_IN_A_SENTENCE)
            found.append(f"left over by lease {lease['id']} ({name}): process {pids}")
    return found + [f"warning: {text}" for text in status["warnings"]]


def _extras(lease: Mapping[str, Any]) -> str:
    """Say what few leases have: cores of their own, a part of the multiprocessors, limits."""
    cores, compute = lease.get("cores"), lease.get("compute")
    parts = [f"bound to cores {', '.join(map(str, cores))}"] if cores else []
    if compute:
        parts.append(f"{compute} % of its devices' multiprocessors")
    if lease.get("enforced_by") == "mps":
        parts.append("held to its limits by MPS")
    elif compute:
        parts.append("trusted to keep to it, as no MPS daemon answers")
    return "; ".join(parts)


def _device_title(broker: Mapping[str, Any]) -> str:
    return f"devices ({broker['devices']}; broker {broker['pid']})" if broker else "devices"


def _device_row(device: Mapping[str, Any]) -> list[str]:
    sizes = (
        device[key]
        for key in ("total_mib", "free_mib", "booked_mib", "measured_mib", "foreign_mib")
    )
    return [str(device["index"]), device["state"], *map(_size, sizes), device["name"]]


def _lease_row(lease: Mapping[str, Any], index: Mapping[str, str]) -> list[str]:
    on = ",".join(index.get(uuid, uuid) for uuid in lease["devices"]) or "-"
    sizes = (lease[key] for key in ("booked_mib", "measured_mib", "peak_mib"))
    return [
        str(lease["id"]),
        lease["state"],
        on,
        *map(_size, sizes),
        str(lease["pid"]),
        _job(lease),
    ]


def _waiter_row(waiter: Mapping[str, Any], *, starts: bool) -> list[str]:
    start = [_expected(waiter)] if starts else []
    return [format_seconds(waiter["since_s"]), *start, f"{_job(waiter)}\n{waiter['reason']}"]


def _expected(waiter: Mapping[str, Any]) -> str:
    """Write in how long it is expected to start, by what was learnt of run times."""
    seconds = waiter.get("expected_s")
    if seconds is None:
        return "?"
    return "a moment" if seconds < 1 else format_seconds(seconds)


def _job(entry: Mapping[str, Any]) -> str:
    """Name a job by its label and its type; a label that is the type cut short says nothing more.

    Of the program that a type begins with, people know the name; the JSON has its folder as well.
    """
    label, kind = str(entry["label"]), _without_folder(str(entry["type"]))
    begins_as = _without_folder(label).removesuffix("..")
    return kind if kind.startswith(begins_as) else f"{label} ({kind})"


def _fitted(name: str, room: int) -> str:
    """Make a job's name fit: its label goes before its type, of which a few letters tell nothing."""
    label, there, _ = name.partition(" (")
    if there and len(name) > room and room - len(label) < _LEAST_OF_A_TYPE:
        return shortened(label, room)
    return shortened(name, room)


def _without_folder(command: str) -> str:
    program, blank, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]}{blank}{rest}"


def _size(mib: int | None) -> str:
    """Write a size; a driver's "unknown" is shown as such, never as 0."""
    return "?" if mib is None else format_mib(mib)
