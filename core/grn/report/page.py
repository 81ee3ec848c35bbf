"""Puts the page together: one HTML file with its style, its script and its data inside.

Promises: nothing is loaded from anywhere, and the page itself forbids it (a content security policy
with the hashes of its own style and script, so that no text of a job could run even if it got out of
its place); the data cannot end the element that it stands in.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["SCRIPTS", "as_json", "render"]

SCRIPTS = (
    "base.js", "data.js", "layout.js", "view.js", "draw.js", "timeline.js", "details.js",
    "charts.js", "tables.js", "live.js", "main.js",
)  # fmt: skip
"""In the order in which they are put together, into one function."""

_PLACE = re.compile(r"@(TITLE|POLICY|STYLE|SCRIPT|DATA|LIVE)@")
# In JSON these stand only within texts, where an escape means the same character.
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(data: Mapping[str, Any], *, title: str, live: bool = False) -> bytes:
    """Return the page. A live one has a connection to where it came from, and to nothing else."""
    style, script = _file("page.css"), _script()
    parts = {
        "TITLE": html.escape(title),
        "POLICY": _policy(style, script, live=live),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": as_json(data),
        "LIVE": "true" if live else "false",
    }
    return _PLACE.sub(lambda found: parts[found[1]], _file("page.html")).encode()


def as_json(data: Mapping[str, Any]) -> str:
    """Return compact JSON in ASCII that may stand in an HTML element.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.translate(_UNSAFE)


def _policy(style: str, script: str, *, live: bool) -> str:
    connect = " connect-src 'self';" if live else ""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};{connect}"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _script() -> str:
    parts = "".join(_file(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


@cache
def _file(name: str) -> str:
    return (resources.files("grn.report") / "page" / name).read_text("utf-8")
