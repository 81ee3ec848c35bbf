"""One frame of `grn top`: what is seen, the view, and the room there is, as lines.

Pure, and the same for a terminal, a page of text and the tests. Promises: no line is longer than the
width; with a height exactly so many lines, and each list gets room by what it has to show: nothing is
left blank while a list could show more. Without a height all of everything is there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from grn.cli.table import clean
from grn.cli.top.bars import legend
from grn.cli.top.devices import device_line, device_lines
from grn.cli.top.look import FANCY
from grn.cli.top.panes import Pane, Scene, leases_pane, recent_pane, waiting_pane
from grn.cli.top.view import DEVICES, LEASES, RECENT, WAITING, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from grn.cli.top.look import Glyphs

__all__ = ["Frame", "Seen", "draw"]

_GREY = "grey62"
_ALARM = "bold red"
_WEIGHTS = {DEVICES: 6, LEASES: 4, WAITING: 3, RECENT: 2}
_FOCUS_WEIGHT = 4
_ORDER = (DEVICES, LEASES, WAITING, RECENT)
_LEGEND_FROM = 16
"""Lines from which there is one for the legend."""
_LEAST_ROWS = 2
_NAMED_FROM = 60
"""Columns from which there is room for our own name."""
_MOST_WARNINGS = 3

_HELP = (
    ("m t d n u", "leases by memory, time, device, name, user; again, or r: the other way"),
    ("/", "show only what has a text in its names; Esc shows all"),
    ("Tab", "the next list: the arrows, Page Up and Page Down scroll it"),
    ("q", "leave"),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the broker.

    Attributes:
        status: its last state of the books.
        at: when that was told, seconds since 1970.
        gone: what is said while there is no broker; '' while there is one.
        users: names by user id.
    """

    status: Mapping[str, Any]
    at: float
    gone: str = ""
    users: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frame:
    """The lines, and how far each list can be scrolled."""

    lines: list[Text]
    most: Mapping[str, int]


def draw(
    seen: Seen,
    view: View,
    width: int,
    height: int | None,
    now: float,
    glyphs: Glyphs = FANCY,
) -> Frame:
    """Draw what is seen at this moment (seconds since 1970).

    With a height it is a screen with keys at its bottom, else a page without.
    """
    scene = _scene(seen, width, now, glyphs)
    top = [_header(scene, seen), *_warnings(scene, view, height)]
    if height is None:
        return Frame([*top, *_page(scene, view)], {})
    bottom = [_footer(scene, view)]
    body = height - len(top) - len(bottom)
    most: dict[str, int] = {}
    if view.help:
        lines = _help(scene)[: max(0, body)]
    else:
        lines, most = _screen(scene, view, body, legended=height >= _LEGEND_FROM)
    blank = [Text()] * max(0, body - len(lines))
    return Frame([*top, *lines, *blank, *bottom][:height], most)


def _scene(seen: Seen, width: int, now: float, glyphs: Glyphs) -> Scene:
    status = seen.status
    index = {device["uuid"]: str(device["index"]) for device in status["devices"]}
    uids = {entry.get("uid") for entry in (*status["leases"], *status["waiters"])}
    return Scene(status, seen.at, now, width, glyphs, seen.users, index, len(uids) > 1)


def _page(scene: Scene, view: View) -> list[Text]:
    lines = [device_line(scene, number) for number in range(device_lines(scene))]
    lines += [legend(scene.width, scene.glyphs)] if lines else []
    for pane in _full([*_lists(scene, view), waiting_pane(scene, view, roomy=True)]):
        lines += [_rule(scene, pane.title), *_headings(pane)]
        lines += [pane.line(number) for number in range(pane.length)]
    return lines


def _screen(
    scene: Scene, view: View, body: int, *, legended: bool
) -> tuple[list[Text], dict[str, int]]:
    """Fill the lines between top and bottom; return with them how far each list can scroll."""
    explained = [legend(scene.width, scene.glyphs)] if legended and scene.status["devices"] else []
    room = body - len(explained)
    devices = Pane(DEVICES, "", None, device_lines(scene), lambda n: device_line(scene, n))
    lists = [devices, *_lists(scene, view)]
    left = room - sum(pane.length + _extra(pane) for pane in lists)
    waiting = waiting_pane(scene, view, roomy=2 * len(scene.status["waiters"]) < left)
    if waiting.length + _extra(waiting) > left:
        waiting = waiting_pane(scene, view, roomy=False)
    panes = _full([*lists, waiting])
    rows = _shared_out(panes, view, room)
    lines: list[Text] = []
    most: dict[str, int] = {}
    for pane in panes:
        given = rows.get(pane.name, 0)
        most[pane.name] = max(0, pane.length - given)
        if given:
            lines += _visible(scene, pane, given, view, most[pane.name])
        if pane is devices:
            lines += explained
    return lines, most


def _shared_out(panes: Sequence[Pane], view: View, room: int) -> dict[str, int]:
    """Give each list rows: the least that it needs, then one by one to who has least for its weight.

    Where there is not even the least for all, the last lists are left out, but not the one in use.
    """
    kept = [pane for pane in panes if pane.length]
    order = sorted(kept, key=lambda pane: pane.name != view.pane)
    while kept and sum(_least(pane) + _extra(pane) for pane in kept) > room and len(kept) > 1:
        dropped = next(pane for pane in reversed(kept) if pane.name != view.pane)
        kept.remove(dropped)
    rows = {pane.name: _least(pane) for pane in kept}
    left = room - sum(rows[pane.name] + _extra(pane) for pane in kept)
    growing = [pane for pane in order if pane in kept]
    while left > 0:
        growing = [pane for pane in growing if rows[pane.name] < pane.length]
        if not growing:
            break
        poorest = min(growing, key=lambda pane: rows[pane.name] / _weight(pane, view))
        rows[poorest.name] += 1
        left -= 1
    if left < 0:
        rows = {name: max(0, count + left) for name, count in rows.items()}
    return rows


def _weight(pane: Pane, view: View) -> int:
    return _WEIGHTS[pane.name] + _FOCUS_WEIGHT * (pane.name == view.pane)


def _least(pane: Pane) -> int:
    return min(pane.length, _LEAST_ROWS)


def _extra(pane: Pane) -> int:
    """Return the lines beside a list's rows."""
    return (pane.name != DEVICES) + (pane.heading is not None) if pane.length else 0


def _visible(scene: Scene, pane: Pane, given: int, view: View, most: int) -> Iterable[Text]:
    offset = min(view.offset(pane.name), most)
    if pane.name != DEVICES:
        title = pane.title
        if most:
            title += f"  {offset + 1}-{offset + given} of {pane.length} lines"
        yield _rule(scene, title, focus=pane.name == view.pane)
        yield from _headings(pane)
    yield from (pane.line(number) for number in range(offset, offset + given))


def _headings(pane: Pane) -> list[Text]:
    return [] if pane.heading is None else [pane.heading]


def _lists(scene: Scene, view: View) -> list[Pane]:
    """Return the lists whose length does not depend on the room."""
    return [leases_pane(scene, view), recent_pane(scene, view)]


def _full(panes: Iterable[Pane]) -> list[Pane]:
    """Return those that have something, in their order on the screen."""
    return sorted((pane for pane in panes if pane.length), key=lambda pane: _ORDER.index(pane.name))


# -- lines ----------------------------------------------------------------------------------------


def _header(scene: Scene, seen: Seen) -> Text:
    clock = Text(time.strftime("%H:%M:%S", time.localtime(scene.now)), style=_GREY)
    left = Text().append("grn top  ", "bold") if scene.width >= _NAMED_FROM else Text()
    if seen.gone:
        return _ends(left.append(clean(seen.gone), _ALARM), clock, scene.width)
    status = scene.status
    counts = (
        (len(status["devices"]), "device", "devices"),
        (len(status["leases"]), "lease", "leases"),
        (len(status["waiters"]), "waiting", "waiting"),
    )
    between = f"  {scene.glyphs.bullet}  " if scene.width >= _NAMED_FROM else ", "
    said = (f"{count} {one if count == 1 else many}" for count, one, many in counts)
    left.append(between.join(said))
    models = {str(device["name"]) for device in status["devices"]}
    if len(models) == 1:
        name = f"  {clean(models.pop())}"
        if left.cell_len + cell_len(name) + clock.cell_len < scene.width:
            left.append(name, _GREY)
    return _ends(left, clock, scene.width)


def _ends(left: Text, right: Text, width: int) -> Text:
    """Put one text at each end of a line; what is at the right gives way."""
    blank = width - left.cell_len - right.cell_len
    line = left.copy()
    line.no_wrap = True
    if blank > 0:
        line.append(" " * blank).append_text(right)
    line.truncate(width, overflow="crop")
    return line


def _warnings(scene: Scene, view: View, height: int | None) -> list[Text]:
    """Say what somebody should look at, a line each; on a page all of it, on a screen as fits."""
    said = [
        f"device {device['index']} is {device['state']}: {device['reason']}"
        for device in scene.status["devices"]
        if device["state"] != "ok" and device.get("reason") and device["leases"]
    ]
    said += scene.status["warnings"]
    if height is not None:
        most = min(_MOST_WARNINGS, max(1, height // 8))
        more = len(said) - most
        said = said[:most] + ([f"and {more} more: grn status"] if more > 0 else [])
    elif not scene.status["leases"] and not scene.status["waiters"]:
        said.append("No job runs or waits.")
    lines = [Text(f"! {clean(text)}", style="yellow", no_wrap=True) for text in said]
    for line in lines:
        line.truncate(scene.width, overflow="crop")
    if view.filter and height is None:
        lines.append(Text(f"only what has {view.filter!r} in its names", style=_GREY))
    return lines


def _footer(scene: Scene, view: View) -> Text:
    if view.editing:
        said = Text(f"/{view.filter}{scene.glyphs.cursor}  Enter keeps it, Esc shows all")
    elif view.help:
        said = Text("any key: back")
    else:
        said = _hints(scene, view)
    said.no_wrap = True
    said.truncate(scene.width, overflow="crop")
    return said


def _hints(scene: Scene, view: View) -> Text:
    hints = (
        ("q", "leave"),
        ("/", repr(view.filter) if view.filter else "filter"),
        ("m t d n u", f"by {view.sort}"),
        ("Tab", f"scrolls {view.pane}"),
        ("?", "keys"),
    )
    line = Text()
    for key, what in hints:
        hint = Text("  " if line else "").append(key, "bold").append(f" {what}", _GREY)
        if line.cell_len + hint.cell_len <= scene.width:
            line.append_text(hint)
    return line


def _help(scene: Scene) -> list[Text]:
    lines = [Text(), _rule(scene, "keys")]
    for keys, what in _HELP:
        line = Text(no_wrap=True).append(f"{keys:>12}  ", "bold").append(what)
        line.truncate(scene.width, overflow="crop")
        lines.append(line)
    return lines


def _rule(scene: Scene, title: str, *, focus: bool = False) -> Text:
    rule = scene.glyphs.rule
    line = Text(no_wrap=True).append(rule * 2 + " ", _GREY).append(title, "bold" if focus else "")
    line.append(" " + rule * max(0, scene.width - line.cell_len - 1), _GREY)
    line.truncate(scene.width, overflow="crop")
    return line
