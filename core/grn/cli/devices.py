"""`grn devices`: the devices as GRN sees them, with or without a broker.

Promises: never starts a broker and changes nothing; the JSON objects are those of `grn status`; what
was left out is said, with the reason. An answer comes within seconds, whatever the driver does.
Must not: decide which devices are managed; `grn.doctor.devicelook` asks the same rules as a broker.
"""

from __future__ import annotations

import argparse
import json
import os

from grn.cli.status import tables
from grn.cli.table import Table, print_tables
from grn.doctor.brokerlook import ask_broker, place_of
from grn.doctor.devicelook import device_objects, see, wants_driver
from grn.doctor.driverlook import look
from grn.doctor.facts import BrokerFacts, DriverFacts
from grn.errors import UsageError
from grn.rules.units import format_mib
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.settings import Settings

__all__ = ["main"]

SCHEMA = 1


def main(argv: Sequence[str]) -> int:
    """Print the devices; return the exit status."""
    args = _parser().parse_args(argv)
    settings = load({"socket": args.socket, "devices": args.devices})
    asked = BrokerFacts() if args.devices else _asked(settings)
    shown = _without_broker(settings, asked) if asked.status is None else _told(asked.status)
    if args.json:
        print(json.dumps({"schema": SCHEMA, **shown}))
    else:
        more = [_details(device) for device in shown["devices"]] if args.verbose else []
        print_tables([_table(shown), *more], _notes(shown))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn devices",
        description="Show the devices as GRN sees them: those of the broker that runs, else those"
        " that one started here would manage. Starts none.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also UUID, bus, MIG parent, and what each driver query answered",
    )
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    parser.add_argument(
        "--devices", metavar="SPEC", help="these, and no broker's: for example sim:4x16GiB or nvml"
    )
    return parser


def _asked(settings: Settings) -> BrokerFacts:
    """Ask the broker that runs, if one does."""
    place = place_of(os.environ, settings.socket, "")
    return ask_broker(place.path) if place.path else BrokerFacts(problem=place.problem)


def _told(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "devices": status["devices"],
        "warnings": status["warnings"],
        "broker": status["broker"],
        "spec": status["broker"]["devices"],
    }


def _without_broker(settings: Settings, asked: BrokerFacts) -> dict[str, Any]:
    """Return what a broker that is started now would find.

    Raises:
        UsageError: the description of the devices makes no sense.
    """
    driver = look() if wants_driver(settings.devices) else DriverFacts.none()
    seen = see(settings.devices, os.environ.get("CUDA_VISIBLE_DEVICES"), driver)
    if seen.problem:
        raise UsageError(f"devices {seen.spec!r}: {seen.problem}")
    return {
        "devices": device_objects(seen, settings.headroom_rule),
        "warnings": [*([asked.problem] if asked.problem else []), *seen.notes],
        "broker": None,
        "spec": seen.spec,
    }


def _table(shown: Mapping[str, Any]) -> Table:
    broker = shown["broker"] or {}
    table = tables({"devices": shown["devices"], "leases": [], "waiters": [], "broker": broker})[0]
    if not broker:
        table.title = f"devices ({shown['spec']}; no broker)"
    return table


def _details(device: Mapping[str, Any]) -> Table:
    """Arrange what is known of one device, its driver's answers last."""
    rows: list[Sequence[str]] = [("UUID", device["uuid"])]
    if device.get("bus_id"):
        rows.append(("bus", device["bus_id"]))
    if device.get("parent"):
        rows.append(("MIG slice of", device["parent"]))
    rows.append(("memory", format_mib(device["total_mib"])))
    rows += [(f"asked: {query}", answer) for query, answer in device.get("capabilities", ())]
    return Table(f"device {device['index']}", ("", ""), rows)


def _notes(shown: Mapping[str, Any]) -> list[str]:
    notes = [] if shown["devices"] else ["There are no devices."]
    notes += [
        f"device {device['index']} is {device['state']}: {device['reason']}"
        for device in shown["devices"]
        if device.get("reason")
    ]
    return notes + [f"note: {text}" for text in shown["warnings"]]
