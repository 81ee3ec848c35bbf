"""`grn events`: what happens on this machine, one line an event, for people and for programs.

Promises: never starts a broker; with `--follow` it outlasts the broker and goes on with the next one;
a line is written when its event is told, not when a buffer is full.
Must not: decide what an event says (docs/events.md), or ask again and again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from grn.cli.numbers import whole
from grn.cli.table import clean, format_seconds
from grn.client import Client
from grn.errors import BrokerGone, BrokerUnavailable
from grn.rules.outcome import describe_end
from grn.rules.units import format_mib
from grn.settings import load
from grn.watching import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Event = Mapping[str, Any]

__all__ = ["line_of", "main"]

_LOOK_EVERY_S = 1.0
_OF_A_UUID = 12


def main(argv: Sequence[str]) -> int:
    """Print events; return the exit status."""
    args = _parser().parse_args(argv)
    show = _as_json if args.json else _as_text(args.socket)
    if not args.follow:
        with Watch(args.socket, since=args.since or 0) as watch:
            if watch.missed != 0 or (args.since or 0) < watch.seq:
                _show_kept(watch, show)
        return 0
    since = args.since
    watch = Watch(args.socket, since=since)
    while True:
        with watch:
            _follow(watch, show)
        sys.stderr.write("grn events: the broker has left; waiting for the next one\n")
        watch = _next(args.socket)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn events",
        description="Show what happens: requests, grants, ends, and what becomes of the devices. Without"
        " --follow, the last events that the broker still knows (at most 1,000).",
    )
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what happens next")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line (schema 1, see docs/events.md)"
    )
    parser.add_argument(
        "--since",
        type=whole,
        metavar="N",
        help="only what came after event N (0: all that is known)",
    )
    parser.add_argument("--socket", metavar="PATH", help="the broker's socket")
    return parser


def _show_kept(watch: Watch, show: Callable[[Event], None]) -> None:
    """Show what is known by now, and no more."""
    for _, event in watch:
        show(event)
        if event["seq"] >= watch.seq and event["event"] != "gap":
            return


def _follow(watch: Watch, show: Callable[[Event], None]) -> None:
    try:
        for _, event in watch:
            show(event)
    except BrokerGone:
        return


def _next(socket: str | None) -> Watch:
    """Wait for the next broker; all that it has to tell is new."""
    while True:
        try:
            return Watch(socket, since=0)
        except (BrokerUnavailable, BrokerGone):
            time.sleep(_LOOK_EVERY_S)


def _as_json(event: Event) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _as_text(socket: str | None) -> Callable[[Event], None]:
    with Client(load({"socket": socket}), start=False) as client:
        devices = client.status()["devices"]
    numbers = {device["uuid"]: str(device["index"]) for device in devices}

    def show(event: Event) -> None:
        if event["event"] == "device":
            numbers[event["uuid"]] = str(event["index"])
        sys.stdout.write(clean(line_of(event, numbers)) + "\n")
        sys.stdout.flush()

    return show


# -- for people -----------------------------------------------------------------------------------


def line_of(event: Event, numbers: Mapping[str, str]) -> str:
    """Put an event on one line; `numbers` are those of devices, by UUID."""
    clock = time.strftime("%H:%M:%S", time.localtime(event["at"]))
    name = str(event["event"])
    say = _WORDS.get(name)
    if say is None:  # of a newer broker
        rest = {k: v for k, v in event.items() if k not in ("schema", "seq", "at", "event")}
        return f"{clock} {name:<9} {json.dumps(rest)}"
    subject = str(event.get("lease") or event.get("ticket") or "-")
    parts = [part for part in say(event, numbers) if part]
    return f"{clock} {name:<9} {subject:<12} {', '.join(parts)}"


def _job(event: Event) -> str:
    kind, label = str(event["type"]), str(event["label"])
    return f"{label} ({kind})" if label and label != kind else kind


def _on(event: Event, numbers: Mapping[str, str]) -> str:
    uuids = event["devices"]
    if not uuids:
        return "no device"
    said = " ".join(numbers.get(uuid, uuid[:_OF_A_UUID]) for uuid in uuids)
    return f"device{'s' if len(uuids) > 1 else ''} {said}"


def _queued(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    return [_job(event), str(event["reason"])]


def _granted(event: Event, numbers: Mapping[str, str]) -> list[str]:
    booked = event["booked_mib"]
    return [
        _job(event),
        _on(event, numbers),
        f"{format_mib(booked)} booked" if event["devices"] and booked is not None else "",
        "probe" if event["probe"] else "",
        "inside its outer lease" if event["nested"] else "",
        f"waited {format_seconds(event['waited_s'])}",
    ]


def _ended(event: Event, numbers: Mapping[str, str]) -> list[str]:
    peak = event["peak_mib"]
    how = event["outcome"]
    if how in ("failed", "killed"):
        how += f" ({describe_end(event['exit_code'], event['signal'])})"
    return [
        _job(event),
        how,
        _on(event, numbers),
        f"peak {format_mib(peak)}" if peak is not None else "",
        f"ran {format_seconds(event['ran_s'])}",
        "its memory is still held" if event["draining"] else "",
    ]


def _refused(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    return [_job(event), str(event["message"])]


def _cancelled(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    return [_job(event)]


def _started(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    return [f"process {event['pid']}"]


def _freed(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del event, numbers
    return ["what it had booked is free"]


def _learnt(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    estimate, runs = event["estimate_mib"], event["runs"]
    return [
        str(event["type"]),
        f"next booked at {format_mib(estimate)}" if estimate is not None else "",
        f"{runs} run{'' if runs == 1 else 's'} measured",
        f"on {event['device_model']}",
    ]


def _device(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    return [f"device {event['index']} is {event['state']}", str(event["reason"] or "")]


def _disk(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    failed = event["state"] == "failed"
    text = "cannot write: nothing new is granted" if failed else "can write again"
    return [text, str(event["reason"] or "")]


def _broker(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    return [
        f"the broker (process {event['pid']}) {'has started' if event['state'] == 'started' else 'leaves'}",
        str(event["reason"] or ""),
        f"devices {event['devices']}",
    ]


def _gap(event: Event, numbers: Mapping[str, str]) -> list[str]:
    del numbers
    missed = event["missed"]
    if missed is None:
        return ["the number is another broker's: what came before is not known"]
    return [f"{missed} event{'' if missed == 1 else 's'} before this are not known any more"]


_WORDS: dict[str, Callable[[Event, Mapping[str, str]], list[str]]] = {
    "broker": _broker,
    "queued": _queued,
    "granted": _granted,
    "refused": _refused,
    "cancelled": _cancelled,
    "started": _started,
    "ended": _ended,
    "freed": _freed,
    "learnt": _learnt,
    "device": _device,
    "disk": _disk,
    "gap": _gap,
}
