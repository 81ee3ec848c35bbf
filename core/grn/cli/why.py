"""`grn explain JOB|TYPE`: why a job waits or where it would go, when, and what is known of its type.

Promises: never starts a broker; without one, what was learnt of a type is explained all the same;
`--json` gives the broker's own object. A word that names nothing is taken for a type that never ran,
and what looks like it is named.
Must not: reckon anything; the broker does.
"""

from __future__ import annotations

import argparse
import json

from grn.cli.numbers import whole
from grn.cli.whytext import lines
from grn.client import Client
from grn.errors import BrokerSilent, BrokerUnavailable, UsageError
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from grn.settings import Settings

__all__ = ["main"]

SCHEMA = 1
_NAMED = 5


def main(argv: Sequence[str]) -> int:
    """Print the explanation; return the exit status."""
    args = _parser().parse_args(argv)
    settings = load({"socket": args.socket})
    client = _client(settings)
    if client is None:
        told = _of_store(settings, args.subject)
    else:
        with client:
            told = _of_broker(client, args.subject, args.gpus)
    print(json.dumps(told) if args.json else "\n".join(lines(told)))
    return 0


def _client(settings: Settings) -> Client | None:
    """Connect to the broker; `None` if none runs."""
    try:
        return Client(settings)
    except BrokerUnavailable as error:
        if isinstance(error, BrokerSilent):
            raise
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn explain",
        description="Explain a job or a job type: why it waits or where it would go now, what would let"
        " it start and when, and what is known of its type.",
    )
    parser.add_argument(
        "subject",
        metavar="JOB|TYPE",
        help="a lease's id, a waiting request's ticket, a pid, a label or a job type; a part will do"
        " if nothing else has it",
    )
    parser.add_argument(
        "--gpus", type=whole, default=1, metavar="N", help="of a type: for a job on N devices"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    return parser


def _of_broker(client: Client, subject: str, gpus: int) -> dict[str, Any]:
    """Ask the broker; what it does not know by heart may be a part of a type in its store."""
    told = client.explain(subject, gpus)
    if told["kind"] != "type" or told["known"] or told.get("runs") or told.get("waits"):
        return told
    names = {profile["type"] for profile in client.profiles("list")}
    part = _one_with(subject, names)
    if part is not None:
        return client.explain(part, gpus)
    return {**told, "like": _like(subject, names)}


def _of_store(settings: Settings, subject: str) -> dict[str, Any]:
    """Tell what the last broker learnt; nothing runs or waits while there is none."""
    from grn.cli.stored import StoredProfiles  # noqa: PLC0415 - SQLite, and seldom needed

    if subject.isdecimal():
        raise UsageError(f"no broker runs, so no job is called {subject}: see `grn history`")
    with StoredProfiles(settings) as stored:
        names = {profile["type"] for profile in stored.profiles("list")}
        name = subject if subject in names else _one_with(subject, names) or subject
        told = {
            "schema": SCHEMA,
            "subject": subject,
            "kind": "type",
            "type": name,
            "broker": None,
            "known": stored.knowledge(name),
        }
    return told if told["known"] else {**told, "like": _like(subject, names)}


def _one_with(part: str, names: Iterable[str]) -> str | None:
    """Find the one type that has this part.

    Raises:
        UsageError: several have.
    """
    found = sorted(name for name in names if part in name)
    if len(found) > 1:
        shown = ", ".join(map(repr, found[:_NAMED])) + (", ..." if len(found) > _NAMED else "")
        raise UsageError(f"{part!r} is a part of {len(found)} types ({shown}): name one")
    return found[0] if found else None


def _like(subject: str, names: Iterable[str]) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistake

    return get_close_matches(subject, list(names), n=3, cutoff=0.5)
