"""A device as one bar: its leases, what others hold, what is free and what nobody is given.

Pure. The bar's length is the device's memory. A lease's segment is as long as what it counts for, the
larger of booked and measured: full where it was measured, lighter where it is only booked. Borders
are rounded, not lengths: so the whole has the right length, and no segment is off by a column.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from grn.cli.table import clean
from grn.cli.top.look import colour_of, letter_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from grn.cli.top.look import Glyphs

__all__ = ["Part", "bar", "legend", "parts_of"]

_PROBE, _DRAINING = "probe", "draining"
_FOREIGN_STYLE = "grey62"
_FREE_STYLE = "grey35"
_KEPT_STYLE = "grey35"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar: so many MiB, drawn so; `letter` stands where its `lease` begins."""

    mib: float
    glyph: str
    style: str
    letter: str = ""
    lease: str = ""


def parts_of(
    device: Mapping[str, Any], leases: Sequence[Mapping[str, Any]], glyphs: Glyphs
) -> list[Part]:
    """Return the parts of a device's bar, in their order; they fill its memory, or more."""
    found: list[Part] = []
    for lease in leases:
        found += _lease_parts(lease, str(device["uuid"]), glyphs)
    found.append(Part(device["foreign_mib"] or 0, glyphs.foreign, _FOREIGN_STYLE))
    held = sum(part.mib for part in found)
    total = device["total_mib"]
    capacity = device.get("capacity_mib")
    kept = max(0, total - (total if capacity is None else capacity))
    found.append(Part(max(0, total - kept - held), glyphs.free, _FREE_STYLE))
    found.append(Part(min(kept, max(0, total - held)), glyphs.kept, _KEPT_STYLE))
    return found


def _lease_parts(lease: Mapping[str, Any], uuid: str, glyphs: Glyphs) -> Iterator[Part]:
    booked, measured = lease["booked_mib"] or 0, _measured(lease, uuid)
    colour, letter = colour_of(lease), letter_of(lease)
    style, ident = f"{'dim ' * (lease['state'] == _DRAINING)}{colour}", str(lease["id"])
    if measured:
        yield Part(measured, glyphs.measured, style, letter, ident)
    if booked > measured:
        glyph = glyphs.probe if lease["state"] == _PROBE else glyphs.booked
        yield Part(booked - measured, glyph, style, letter, ident)


def _measured(lease: Mapping[str, Any], uuid: str) -> float:
    """Return what it holds on one device: the figure for each, where the broker tells it."""
    each = dict(zip(lease["devices"], lease.get("measured_each_mib") or (), strict=False))
    found = each.get(uuid, lease["measured_mib"])
    return float(found or 0)


def bar(
    device: Mapping[str, Any],
    leases: Sequence[Mapping[str, Any]],
    width: int,
    glyphs: Glyphs,
) -> Text:
    """Draw a device in so many columns; one that is not well, and has no lease, says so instead."""
    if device["state"] != "ok" and not leases:
        said = f"{device['state']}: {device.get('reason') or 'no reason is known'}"
        text = Text(clean(said), style="bold red", no_wrap=True)
        text.truncate(width, overflow="crop", pad=True)
        return text
    parts = parts_of(device, leases, glyphs)
    scale = width / (max(device["total_mib"], sum(part.mib for part in parts)) or 1)
    text, begun, held, named = Text(no_wrap=True), 0, 0.0, ""
    for part in parts:
        held += part.mib
        columns = min(width, round(held * scale)) - begun
        if columns <= 0:
            continue
        begun += columns
        if part.lease != named and part.lease:
            named = part.lease
            text.append(part.letter, f"{part.style} reverse")
            columns -= 1
        text.append(part.glyph * columns, part.style)
    return text


def legend(width: int, glyphs: Glyphs) -> Text:
    """Explain the bars in one line; what has no room is left out."""
    entries = (
        (glyphs.measured, "#5b9bd5", "measured"),
        (glyphs.booked, "#5b9bd5", "booked"),
        (glyphs.probe, "#5b9bd5", "alone, to be measured"),
        (glyphs.foreign, _FOREIGN_STYLE, "others"),
        (glyphs.free, _FREE_STYLE, "free"),
        (glyphs.kept, _KEPT_STYLE, "kept back"),
    )
    text = Text(no_wrap=True)
    for glyph, style, what in entries:
        entry = Text("  " if text else " ").append(glyph, style=style).append(f" {what}", "grey62")
        if text.cell_len + entry.cell_len <= width:
            text.append_text(entry)
    return text
