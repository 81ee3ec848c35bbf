"""Draw accuracy by size, and when each training was on which device. Prints what was shared."""

# ruff: noqa: F821 - Snakemake puts `snakemake` in front of its scripts

import json
from typing import Any

WIDTH, LEFT, ROW = 640, 120, 22
COLOURS = {"forest": "#2a7", "network": "#36c"}


def at_once(runs: list[dict[str, Any]]) -> int:
    """Return how many of the runs there were at one moment, at most."""
    return max(sum(a["began"] <= b["began"] < a["ended"] for a in runs) for b in runs)


def text(x: float, y: float, words: str, **more: str) -> str:
    """Return a line of text."""
    style = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{style}>{words}</text>'


def bar(x: float, y: float, width: float, run: dict[str, Any]) -> str:
    """Return a bar in the colour of the kind of model."""
    colour = COLOURS[run["name"]]
    return (
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{max(1.0, width):.1f}" height="{ROW - 6}"'
        f' fill="{colour}"/>'
    )


runs = []
for path in snakemake.input:
    with open(path, encoding="utf-8") as file:
        runs += json.load(file)
start, end = min(run["began"] for run in runs), max(run["ended"] for run in runs)
shapes, y = [text(10, 20, "accuracy on the test images", font_weight="bold")], 34
for run in sorted(runs, key=lambda run: (run["name"], run["size"])):
    shapes += [
        text(10, y + 12, f"{run['name']} {run['size']}"),
        bar(LEFT, y, (WIDTH - LEFT - 70) * run["accuracy"], run),
        text(WIDTH - 60, y + 12, f"{run['accuracy']:.3f}"),
    ]
    y += ROW
scale = (WIDTH - LEFT - 20) / (end - start)
for device in sorted({run["device"] for run in runs}):
    y += ROW
    shapes.append(text(10, y + 12, f"on device {device}", font_weight="bold"))
    here = sorted((run for run in runs if run["device"] == device), key=lambda run: run["began"])
    print(f"device {device}: {len(here)} trainings, {at_once(here)} at once at most")
    for run in here:
        x = LEFT + scale * (run["began"] - start)
        shapes.append(bar(x, y, scale * (run["ended"] - run["began"]), run))
        shapes.append(text(x + 4, y + 12, f"{run['size']}", fill="white"))
        y += ROW
shapes.append(text(LEFT, y + 14, f"{end - start:.1f} s from the first to the last"))

with open(snakemake.output[0], "w", encoding="utf-8") as file:
    file.write(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 30}"'
        ' font-family="sans-serif" font-size="12">\n' + "\n".join(shapes) + "\n</svg>\n"
    )
