"""`grn history show ID`: all that is known of one lease, with its memory over time as a sparkline."""

from __future__ import annotations

import json
import time

from grn.cli.glyphs import shows_unicode
from grn.cli.profile import SOURCES
from grn.cli.table import Table, clean, format_seconds, print_tables
from grn.history.curve import sparkline
from grn.rules.outcome import describe_end
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from grn.history.curve import Curve
    from grn.history.reader import History
    from grn.history.record import Record

__all__ = ["facts", "show"]

SCHEMA = 1


def show(history: History, name: str, now: float, *, as_json: bool) -> int:
    """Print the lease of this name; return the exit status.

    Raises:
        UsageError: there is none, or there are several.
    """
    record = history.lease(name)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "lease": record.as_json()}))
        return 0
    devices = {
        device.uuid: f"{device.index} ({clean(device.model)}, {device.uuid})"
        for device in history.devices()
    }
    on = [devices.get(uuid, uuid) for uuid in record.devices]
    print_tables([Table(f"lease {record.id}", ("", ""), facts(record, on, now))])
    return 0


def facts(record: Record, on: Sequence[str], now: float) -> list[Sequence[str]]:
    """Arrange what is known of a lease as names and values; `on` describes its devices.

    What is not known, or does not apply, is left out.
    """
    found = {
        "type": record.type,
        "label": record.label,
        "asked by": _asked_by(record),
        "wish": _wish(record),
        "devices": "\n".join(on),
        "asked": _moment(record.asked_at),
        "granted": _after(record.granted_at, record.waited_s, "waiting for"),
        "ended": _ended(record, now),
        "freed": _freed(record),
        "outcome": _outcome(record),
        "booked": _booked(record),
        "peak": _peak(record),
        "memory": _memory(record.curve),
        "processor": _processor(record),
        "host memory": _size(record.rss_mib, "in its largest process"),
    }
    return [(name, value) for name, value in found.items() if value]


def _asked_by(record: Record) -> str:
    parts = [_user(record.uid)] if record.uid is not None else []
    parts += [f"process {record.pid}"] if record.pid is not None else []
    parts += [f"through {record.engine}"] if record.engine else []
    return ", ".join(parts)


def _user(uid: int) -> str:
    import pwd  # noqa: PLC0415 - only here

    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


def _wish(record: Record) -> str:
    parts = [] if record.gpus is None else [f"{record.gpus} device{'s' * (record.gpus != 1)}"]
    parts += [record.policy] if record.policy and record.gpus else []
    parts += [f"priority {record.priority}"] if record.priority else []
    return ", ".join(parts)


def _moment(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _after(at: float | None, seconds: float | None, what: str) -> str:
    moment = _moment(at)
    if not moment or seconds is None:
        return moment
    return f"{moment}, after {what} {format_seconds(seconds)}"


def _ended(record: Record, now: float) -> str:
    if record.running:
        ran_s = record.ran_until(now)
        return "not yet" if ran_s is None else f"not yet: it has run for {format_seconds(ran_s)}"
    return _after(record.ended_at, record.ran_s, "running for")


def _freed(record: Record) -> str:
    """Say when its memory was free, if that was not at its end."""
    if record.freed_at is None or record.ended_at is None or record.freed_at - record.ended_at < 1:
        return ""
    return _after(record.freed_at, record.freed_at - record.ended_at, "draining for")


def _outcome(record: Record) -> str:
    if record.outcome is None or (record.exit_code is None and record.signal is None):
        return record.outcome or ""
    return f"{record.outcome}: {describe_end(record.exit_code, record.signal)}"


def _booked(record: Record) -> str:
    what = "on each device" if len(record.devices) > 1 else ""
    size = _size(record.booked_mib, what)
    return f"{size}, alone: the first run of its type" if size and record.probe else size


def _peak(record: Record) -> str:
    size = _size(record.peak_mib, "on its fullest device" if len(record.devices) > 1 else "")
    source = SOURCES.get(record.source or "", record.source)
    return f"{size}, {source}" if size and source else size


def _memory(curve: Curve | None) -> str:
    if curve is None:
        return ""
    return "".join(_drawn(curve))


def _drawn(curve: Curve) -> Iterator[str]:
    known = (point for point in (*curve.points, curve.maximum) if point is not None)
    top = max(known, default=0)
    yield sparkline(curve.points, top, ascii_only=not shows_unicode())
    if curve.least is not None:
        yield f"  least {format_mib(curve.least)}, most {format_mib(top)}"
    elif top:
        yield f"  most {format_mib(top)}"


def _processor(record: Record) -> str:
    if record.cpu_s is None:
        return ""
    text = f"{format_seconds(record.cpu_s)} of CPU time"
    if record.ran_s:
        text += f", {record.cpu_s / record.ran_s:.1f} cores on average"
    return text


def _size(mib: int | None, what: str = "") -> str:
    return "" if mib is None else f"{format_mib(mib)} {what}".rstrip()
