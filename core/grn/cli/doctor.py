"""`grn doctor`: what was found, what is missing, and what to do about it.

Promises: ends within half a minute whatever hangs, starts no broker, changes nothing, and works for
anybody on any machine; whatever cannot be looked at is a finding like the others. Exit status 0
without a problem, 1 with one.
Must not: judge; `grn.doctor.diagnosis` does.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict

from grn.cli.table import Table, print_tables
from grn.doctor.diagnosis import findings
from grn.doctor.gathering import gather
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from grn.doctor.facts import Facts, Holder
    from grn.doctor.finding import Finding

__all__ = ["main"]

SCHEMA = 1


def main(argv: Sequence[str]) -> int:
    """Print the findings; return the exit status."""
    args = _parser().parse_args(argv)
    facts = gather({"socket": args.socket, "devices": args.devices}, os.environ)
    found = findings(facts)
    problems = sum(finding.level == "problem" for finding in found)
    if args.json:
        print(json.dumps(_as_json(found, facts, problems)))
    else:
        shown = [one for one in found if not (args.quiet and one.level == "ok")]
        print_tables([_table(shown), _holders(facts)], ["", _sum(found, problems)])
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn doctor",
        description="Look at driver, devices, mask, broker, packages and machine, and say what is"
        " wrong and what to do. Changes nothing, and starts no broker.",
        epilog="Exit status: 0 if there is no problem (notes are none), 1 if there is one, 2 if the"
        " command line was wrong.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="leave out what is as it should be"
    )
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    parser.add_argument(
        "--devices", metavar="SPEC", help="the devices to look at, instead of those configured"
    )
    return parser


def _as_json(found: Sequence[Finding], facts: Facts, problems: int) -> dict[str, Any]:
    """Return the object that others may rely on; more keys may come, these stay."""
    return {
        "schema": SCHEMA,
        "problems": problems,
        "findings": [asdict(finding) for finding in found],
        "holders": [asdict(holder) for holder in facts.holders],
    }


def _table(found: Sequence[Finding]) -> Table:
    return Table("", ("level", "about", "what was found, and what to do"), list(map(_row, found)))


def _row(finding: Finding) -> list[str]:
    level = finding.level
    return [level.upper() if level == "problem" else level, finding.about, _text(finding)]


def _text(finding: Finding) -> str:
    return f"{finding.what}\n-> {finding.do}" if finding.do else finding.what


def _holders(facts: Facts) -> Table:
    """Arrange who holds memory now."""
    managed = (facts.broker.status or {}).get("devices", ())
    index = {device["uuid"]: str(device["index"]) for device in managed} | {
        device.uuid: str(card.index)
        for card in facts.driver.inventory.cards
        for device in card.devices
    }
    return Table(
        "memory in use",
        (">device", ">memory", ">pid", "user", "lease", "command"),
        [_holder(holder, index.get(holder.device, holder.device)) for holder in facts.holders],
    )


def _holder(holder: Holder, device: str) -> list[str]:
    command = holder.command or "(not visible here)"
    return [
        device,
        "?" if holder.mib is None else format_mib(holder.mib),
        str(holder.pid) if holder.pid else "?",
        holder.user or "?",
        holder.lease or "-",
        f"{command} (MPS server)" if holder.server else command,
    ]


def _sum(found: Sequence[Finding], problems: int) -> str:
    notes = sum(finding.level == "note" for finding in found)
    if not problems:
        return f"No problem found; notes: {notes}."
    return f"Problems: {problems}, notes: {notes}."
