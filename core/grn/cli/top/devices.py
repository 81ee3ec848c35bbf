"""The devices of `grn top`: a bar each, with its index and what is free of it.

Pure. Many devices stand side by side where the terminal is wide.
"""

from __future__ import annotations

from rich.text import Text

from grn.cli.table import clean
from grn.cli.top.bars import bar
from grn.cli.top.look import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from grn.cli.top.panes import Scene

__all__ = ["device_line", "device_lines"]

_GREY = "grey62"
_ALARM = "bold red"
_LEAST_BAR = 10
_BESIDE = 66
"""Columns of a device where several stand side by side."""
_NAMED_FROM = 84
"""Columns of a device that has room for its name."""


def _beside(scene: Scene) -> int:
    """Return how many devices stand side by side: several where there are many, and room."""
    return max(1, min(len(scene.status["devices"]), scene.width // _BESIDE))


def device_lines(scene: Scene) -> int:
    """Return how many lines the devices take."""
    return -(-len(scene.status["devices"]) // _beside(scene))


def device_line(scene: Scene, number: int) -> Text:
    """Draw one of the lines."""
    beside = _beside(scene)
    devices = scene.status["devices"][number * beside : (number + 1) * beside]
    room = (scene.width - 2 * (beside - 1)) // beside
    line = Text(no_wrap=True)
    for device in devices:
        line.append("  " if line else "").append_text(_device(scene, device, room))
    return line


def _device(scene: Scene, device: Mapping[str, Any], room: int) -> Text:
    devices = scene.status["devices"]
    at = max(len(str(each["index"])) for each in devices)
    index = f"{device['index']:>{at}} "
    figures = _figures(device, max(map(_figures_width, devices)))
    if any(each.get("utilization") is not None for each in devices):
        figures.append_text(_busy(device))
    name = ""
    if room >= _NAMED_FROM and len({each["name"] for each in devices}) > 1:
        longest = max(len(str(each["name"])) for each in devices)
        name = f"  {clean(str(device['name'])):<{longest}}"[: room // 4]
    width = room - len(index) - len(figures) - len(name)
    if width < _LEAST_BAR:
        figures = Text(f" {size(device['free_mib'])} free")
        width = max(0, room - len(index) - len(figures))
    on = [lease for lease in scene.status["leases"] if device["uuid"] in lease["devices"]]
    line = Text(no_wrap=True).append(index, "bold")
    line.append_text(bar(device, on, width, scene.glyphs))
    line.append_text(figures).append(name, _GREY)
    line.truncate(room, overflow="crop", pad=True)
    return line


def _busy(device: Mapping[str, Any]) -> Text:
    """Write how much of the time a device computes, where the driver tells."""
    percent = device.get("utilization")
    return Text("     " if percent is None else f"{percent:>4}%", style="cyan")


def _figures_width(device: Mapping[str, Any]) -> int:
    return len(size(device["free_mib"])) + len(size(device["total_mib"])) + len("  free of ")


def _figures(device: Mapping[str, Any], width: int) -> Text:
    if device["state"] != "ok":
        text = Text(f" {device['state']}, {size(device['total_mib'])}", style=_ALARM)
    else:
        text = Text(" ").append(size(device["free_mib"]), "bold").append(" free of ", _GREY)
        text.append(size(device["total_mib"]))
    text.pad_left(max(0, width - text.cell_len))
    return text
