"""What a page that has just been opened is told first: the last day, in the form of a report's data.

Promises: reading takes place in a thread, so the loop goes on; a history that is missing or damaged is
no obstacle: the page then begins with what runs now, and says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from grn.errors import JournalError
from grn.history.reader import path_in
from grn.report.data import Maker, report_data
from grn.report.learnt import learnt
from grn.report.source import HistoryFile, Span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.rules.model import Device
    from grn.settings import Settings

__all__ = ["DAY_S", "empty", "snapshot"]

DAY_S = 86400.0
MOST_LEASES = 4000
"""Of more, the newest are drawn: the page is read anew with each connection."""


def snapshot(settings: Settings, devices: Iterable[Device], maker: Maker) -> dict[str, Any]:
    """Return the data of the last day, with the devices that are managed now. For a thread."""
    span = Span(maker.now - DAY_S, maker.now)
    known, problem = learnt(
        os.path.join(settings.state_dir, "profiles.sqlite"), settings.margin_rule
    )
    notes = [problem] if problem else []
    try:
        with HistoryFile(path_in(settings.state_dir)) as history:
            data = report_data(history, span, maker, learnt=known, notes=notes, limit=MOST_LEASES)
    except FileNotFoundError:
        data = empty(maker)
    except JournalError as error:
        data = empty(maker) | {"notes": [*notes, error.message]}
    _complete(data, devices)
    return data


def empty(maker: Maker) -> dict[str, Any]:
    """Return data of which nothing is known yet."""
    nothing: dict[str, Any] = {"base": maker.now, "step_s": 60, "bins": []}
    return {
        "schema": 1,
        "host": maker.host,
        "version": maker.version,
        "made_at": round(maker.now, 3),
        "since": maker.now - DAY_S,
        "until": maker.now,
        "leases_in_all": 0,
        "devices": [],
        "leases": {"count": 0, "base": 0},
        "totals": [],
        "types_in_all": 0,
        "learnt": [],
        "usage": {**nothing, "devices": []},
        "lost": nothing,
        "events": [],
        "notes": [],
        "words": [],
    }


def _complete(data: dict[str, Any], devices: Iterable[Device]) -> None:
    """Add devices that the history does not know yet."""
    there = {device["uuid"] for device in data["devices"]}
    for device in devices:
        if device.uuid not in there:
            data["devices"].append(
                {
                    "uuid": device.uuid,
                    "index": device.index,
                    "model": device.model,
                    "total_mib": device.total_mib,
                    "capacity_mib": device.capacity_mib,
                }
            )
            data["usage"]["devices"].append(None)
