"""The lists of `grn top`: leases, who waits and why, and what has ended, as rows of cells.

Pure. A pane has a title, and entries of one or two lines; only those that are seen are drawn.
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass

from rich.text import Text

from grn.cli.names import fitted, job_name
from grn.cli.table import clean
from grn.cli.top.grid import Cell, Column, Grid
from grn.cli.top.look import OUTCOME_STYLES, colour_of, letter_of, number_of, size, span
from grn.cli.top.view import LEASES, RECENT, WAITING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from grn.cli.top.look import Glyphs
    from grn.cli.top.view import View

    Entry = Mapping[str, Any]

__all__ = ["Pane", "Scene", "leases_pane", "recent_pane", "waiting_pane"]

_GREY = "grey62"
_STATE_STYLES = {"probe": "bold magenta", "draining": "yellow"}
_INDENT = 4
_WIDE = 100
"""Columns from which leases have their whole ids."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What all panes are drawn from.

    Attributes:
        status: the broker's state of the books.
        at: when it was told, seconds since 1970; `now`: when it is drawn.
        index: a device's index, by its UUID.
        several_users: whether it says something to name users at all.
        users: names by user id, as far as they are known.
    """

    status: Mapping[str, Any]
    at: float
    now: float
    width: int
    glyphs: Glyphs
    users: Mapping[int, str]
    index: Mapping[str, str]
    several_users: bool

    def since(self, seconds: float | None) -> float | None:
        """Return a time that has gone on since the status was told."""
        return None if seconds is None else seconds + self.now - self.at

    def user(self, entry: Entry) -> str:
        """Return who an entry's job is from."""
        uid = entry.get("uid")
        return "" if uid is None else self.users.get(uid, str(uid))

    def on(self, entry: Entry) -> str:
        """Return the indexes of an entry's devices."""
        return ",".join(self.index.get(uuid, "?") for uuid in entry["devices"]) or "-"


@dataclass(frozen=True, slots=True)
class Pane:
    """A list: what it is called, how long it is, and how any line of it is drawn."""

    name: str
    title: str
    heading: Text | None
    length: int
    line: Callable[[int], Text]


def leases_pane(scene: Scene, view: View) -> Pane:
    """List the leases that match the filter, in the chosen order."""
    every = scene.status["leases"]
    found = [lease for lease in every if _matches(scene, lease, view)]
    found.sort(key=lambda lease: -number_of(lease))  # among equals the newest is first
    found.sort(key=_order(scene, view.sort), reverse=view.reverse)
    columns = (
        Column(""),
        Column("lease", right=True, rank=5),
        Column("on"),
        Column("state", rank=1),
        Column("held", right=True),
        Column("booked", right=True, rank=1),
        Column("peak", right=True, rank=4),
        Column("for", right=True, rank=2),
        Column("busy", right=True, rank=4),
        Column("user", rank=3),
        Column("via", rank=6),
        Column("pid", right=True, rank=7),
        Column("job"),
    )
    rows = [_lease_cells(scene, lease) for lease in found]
    grid = Grid(columns, rows, scene.width, shorten=_shortened(scene.glyphs))
    title = _title("leases", len(found), len(every), view)
    if len(found) > 1:
        title += f", {_ordered(view)}"
    return Pane(LEASES, title, grid.heading(), len(rows), grid.row)


def _lease_cells(scene: Scene, lease: Entry) -> list[Cell]:
    state = str(lease["state"])
    held, booked = lease["measured_mib"], lease["booked_mib"]
    over = booked is not None and held is not None and held > booked
    ident = str(lease["id"])
    return [
        Cell(letter_of(lease), f"{colour_of(lease)} reverse"),
        Cell(ident if scene.width >= _WIDE else ident.rpartition("-")[2], _GREY),
        Cell(scene.on(lease)),
        Cell("" if state == "running" else state, _STATE_STYLES.get(state, "")),
        Cell(size(held), "bold red" if over else ""),
        Cell(size(booked)),
        Cell("-" if lease["peak_mib"] is None else size(lease["peak_mib"])),
        Cell(span(scene.since(lease.get("since_s")))),
        Cell("" if lease.get("utilization") is None else f"{lease['utilization']}%", "cyan"),
        Cell(scene.user(lease) if scene.several_users else "", "cyan"),
        Cell(str(lease.get("engine") or "") if scene.width >= _WIDE else "", _GREY),
        Cell(str(lease["pid"]) if scene.width >= _WIDE else "", _GREY),
        Cell(job_name(lease)),
    ]


def _order(scene: Scene, sort: str) -> Callable[[Entry], Any]:
    """Return the key by which leases stand in an order; the most memory and the newest come first."""
    orders: dict[str, Callable[[Entry], Any]] = {
        "memory": lambda lease: -max(lease["measured_mib"] or 0, lease["booked_mib"] or 0),
        "time": lambda lease: lease.get("since_s") or 0,
        "device": scene.on,
        "name": lambda lease: job_name(lease).casefold(),
        "user": scene.user,
    }
    return orders[sort]


def _ordered(view: View) -> str:
    if view.sort == "time":
        return "oldest first" if view.reverse else "newest first"
    return f"by {view.sort}{', reversed' if view.reverse else ''}"


def waiting_pane(scene: Scene, view: View, *, roomy: bool) -> Pane:
    """List who waits, in the order of the queue, and why.

    A reason that the job above has as well is not said again. The first one has lines of its own, as
    many as it needs, and with `roomy` all have; else they stand beside the job, as far as they fit.
    """
    every = scene.status["waiters"]
    found = [(n, entry) for n, entry in enumerate(every, 1) if _matches(scene, entry, view)]
    ranked = any(entry.get("priority") for entry in every)
    columns = (
        Column("#", right=True),
        Column("for", right=True),
        Column("starts", right=True, rank=1),
        Column("wants", rank=2),
        Column("prio", right=True, rank=3),
        Column("user", rank=4),
        Column("job and what it waits for"),
    )
    said = ["", *(str(entry["reason"]) for _, entry in found)]
    news = [reason if reason != before else "" for before, reason in itertools.pairwise(said)]
    below = news if roomy else news[:1]
    rows = [
        _waiter_cells(scene, n, entry, ranked=ranked, reason=reason)
        for (n, entry), reason in zip(found, [*[""] * len(below), *news[len(below) :]], strict=True)
    ]
    grid = Grid(columns, rows, scene.width, shorten=_shortened(scene.glyphs, whole=not roomy))
    lines: list[int | Text] = []
    for number in range(len(rows)):
        lines.append(number)
        lines += _reason(scene, below[number]) if number < len(below) else ()

    def line(number: int) -> Text:
        what = lines[number]
        return what if isinstance(what, Text) else grid.row(what)

    title = _title("waiting", len(found), len(every), view) + _unused(scene)
    return Pane(WAITING, title, grid.heading(), len(lines), line)


def _waiter_cells(
    scene: Scene, number: int, entry: Entry, *, ranked: bool, reason: str
) -> list[Cell]:
    expected = entry.get("expected_s")
    starts = "" if expected is None else f"~{span(max(0.0, expected - (scene.now - scene.at)))}"
    name = job_name(entry)
    return [
        Cell(str(number), _GREY),
        Cell(span(scene.since(entry["since_s"]))),
        Cell(starts, "green"),
        Cell(_wish(scene, entry)),
        Cell(str(entry.get("priority") or 0) if ranked else ""),
        Cell(scene.user(entry) if scene.several_users else "", "cyan"),
        Cell(f"{fitted(name, scene.width // 4)}: {reason}" if reason else name),
    ]


def _wish(scene: Scene, entry: Entry) -> str:
    """Write what is wanted: `2x4G`, `1x?` where nobody knows how much, `-` for no device."""
    gpus, memory = entry.get("gpus", ""), entry.get("memory_mib")
    if gpus == "":
        return ""
    if not gpus:
        return "-"
    each = "all" if memory == "whole" else size(memory)
    return f"{gpus}{scene.glyphs.times}{each}"


def _unused(scene: Scene) -> str:
    """Say how much memory nobody can use meanwhile, and why."""
    lost = {cause: mib for cause, mib in (scene.status.get("lost") or {}).items() if mib}
    if not lost:
        return ""
    return (
        f", meanwhile unused: {', '.join(f'{size(mib)} ({cause})' for cause, mib in lost.items())}"
    )


def _reason(scene: Scene, reason: str) -> list[Text]:
    room = max(1, scene.width - _INDENT)
    lines = textwrap.wrap(clean(reason), room, break_on_hyphens=False)
    return [Text(" " * _INDENT + line, style=_GREY, no_wrap=True) for line in lines]


def recent_pane(scene: Scene, view: View) -> Pane:
    """List what has ended, the last one first."""
    every = scene.status.get("recent", ())
    found = [event for event in reversed(every) if _matches(scene, event, view)]
    columns = (
        Column("ended", right=True, rank=1),
        Column("lease", right=True, rank=5),
        Column("outcome"),
        Column("on", rank=2),
        Column("peak", right=True),
        Column("booked", right=True, rank=3),
        Column("ran", right=True, rank=1),
        Column("job"),
    )
    rows = [_recent_cells(scene, event) for event in found]
    grid = Grid(columns, rows, scene.width, shorten=_shortened(scene.glyphs))
    title = _title("ended", len(found), len(every), view)
    return Pane(RECENT, title, grid.heading(), len(rows), grid.row)


def _recent_cells(scene: Scene, event: Entry) -> list[Cell]:
    ident, outcome = str(event["lease"]), str(event["outcome"])
    return [
        Cell(span(scene.now - event["at"]), _GREY),
        Cell(ident if scene.width >= _WIDE else ident.rpartition("-")[2], _GREY),
        Cell(_how(event), OUTCOME_STYLES.get(outcome, "")),
        Cell(scene.on(event)),
        Cell("-" if event["peak_mib"] is None else size(event["peak_mib"])),
        Cell("" if event.get("booked_mib") is None else size(event["booked_mib"])),
        Cell(span(event["ran_s"])),
        Cell(job_name(event)),
    ]


def _how(event: Entry) -> str:
    """Write an outcome with the exit code or signal behind it, where that says more."""
    outcome = str(event["outcome"])
    if outcome == "failed" and event.get("exit_code") is not None:
        return f"failed {event['exit_code']}"
    if outcome == "killed" and event.get("signal") is not None:
        return f"killed {event['signal']}"
    return "oom?" if outcome == "oom-suspected" else outcome


def _matches(scene: Scene, entry: Entry, view: View) -> bool:
    """Whether any of an entry's names has the filter in it; case does not count."""
    if not view.filter:
        return True
    wanted = view.filter.casefold()
    names = (
        entry["type"],
        entry["label"],
        entry.get("id") or entry.get("lease") or "",
        entry.get("engine") or "",
        entry.get("outcome") or entry.get("state") or "",
        entry.get("pid") or "",
        scene.user(entry),
    )
    return any(wanted in str(name).casefold() for name in names)


def _title(what: str, found: int, every: int, view: View) -> str:
    return f"{what} {found} of {every}" if view.filter else f"{what} {every}"


def _shortened(glyphs: Glyphs, *, whole: bool = False) -> Callable[[str, int], str]:
    """Return what makes a text fit: a job's name in its middle, a reason (`whole`) at its end."""

    def shorten(text: str, room: int) -> str:
        if len(text) <= room:
            return text
        if whole or room < _INDENT * 2:
            return text[: max(0, room - 1)] + glyphs.more
        return fitted(text, room)

    return shorten
