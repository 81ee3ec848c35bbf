"""The result as text for a bug report, and as JSON.

Promises: neither has the user's name, the machine's name, or a path below the user's home; the
text is complete in itself.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import socket
import sys
from typing import TYPE_CHECKING, Any

from grn import __version__
from grn.selftest.verdict import FAILED, OK, SKIPPED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grn.selftest.ground import Ground
    from grn.selftest.verdict import Result

__all__ = ["Scrubber", "as_object", "details", "heading", "line", "verdict", "verdict_line"]

SCHEMA = 1
_SAID = ("driver", "CUDA")  # the same for all
_SHORTEST_HOST = 4  # a shorter one is a common word
_ANY_USER = re.compile(r"\buser \S+ \(uid \d+\)")
_ANY_HOME = re.compile(r"/(?:home|Users)/[^/\s'\":;,]+")


class Scrubber:
    """Takes out of a text whatever says who and where it was made."""

    def __init__(self, folder: str, environ: Mapping[str, str]) -> None:
        account = _account()
        homes = {environ.get("HOME", ""), os.path.expanduser("~")} - {"", "/", "~"}
        self._swaps = [(folder, "<folder>"), (sys.prefix, "<python>"), (os.getcwd(), "<here>")]
        self._swaps += [(home, "~") for home in homes]
        self._swaps = [(path, word) for path, word in self._swaps if len(path) > 1]
        self._swaps.sort(key=lambda swap: -len(swap[0]))
        # A user's name may be a common word: only as a part of a path it surely is the name.
        self._names = [
            (re.compile(rf"/{re.escape(name)}(?![\w.-])"), "/<user>")
            for name in {account, environ.get("USER", "")} - {"", "root"}
        ]
        host = _host()
        if len(host) >= _SHORTEST_HOST and host != "localhost":
            self._names.append((re.compile(rf"(?<![\w-]){re.escape(host)}(?![\w-])"), "<host>"))

    def __call__(self, text: str) -> str:
        """Return the text without it."""
        for path, word in self._swaps:
            text = text.replace(path, word)
        text = _ANY_USER.sub("another user", _ANY_HOME.sub("~", text))
        for pattern, word in self._names:
            text = pattern.sub(word, text)
        return text

    def all_of(self, value: Any) -> Any:
        """Return an object of lists, dictionaries and texts without it."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key: self.all_of(entry) for key, entry in value.items()}
        return [self.all_of(entry) for entry in value] if isinstance(value, list) else value


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without an entry
        return ""


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def heading(ground: Ground, devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first lines: versions, the broker, the devices."""
    python = f"Python {platform.python_version()}"
    system = f"Linux {platform.release()} {platform.machine()}"
    whose = "our own" if ground.private else f"the one that runs (pid {ground.pid}), through leases"
    lines = [
        f"grn selftest: grn {__version__}, {python}, {system}",
        f"broker: {whose}; devices: {ground.spec}",
    ]
    lines += [
        f"device {device['index']}: {device['name']}, {device['total_mib']} MiB"
        f" ({device['free_mib']} free, {device['foreign_mib']} used by others),"
        f" {device['state']}, {device['uuid']}"
        for device in devices
    ]
    return lines


def line(result: Result) -> str:
    """Return what follows a check's title."""
    text = f": {result.text}" if result.text else ""
    return f"{result.state}{text} [{result.took_s:.1f} s]"


def details(facts: Mapping[str, Any], warnings: Sequence[str]) -> list[str]:
    """Return what the driver says of itself and its devices, and the broker's warnings."""
    driver, cuda = (facts.get(key) or "unknown" for key in ("driver", "cuda"))
    lines = [f"driver {driver}, CUDA {cuda}; CUDA in a job: {facts.get('libcuda') or 'none'}"]
    if facts.get("driver_problem"):
        lines.append(f"the driver was not asked: {facts['driver_problem']}")
    for device in facts.get("devices", ()):
        what = ", ".join(
            f"{name}: {answer}" for name, answer in device["capabilities"] if name not in _SAID
        )
        lines += [f"{device['uuid']}: {what}"] if what else []
    return lines + [f"warning of the broker: {warning}" for warning in warnings]


def verdict(results: Sequence[Result]) -> str:
    """Return `failed`, `ok`, or `not run` if no check could be made."""
    states = [result.state for result in results]
    if FAILED in states:
        return "failed"
    return "ok" if OK in states else "not run"


def verdict_line(results: Sequence[Result], took_s: float) -> str:
    """Return the last line."""
    count = {state: sum(r.state == state for r in results) for state in (OK, FAILED, SKIPPED)}
    return f"{count[OK]} ok, {count[FAILED]} failed, {count[SKIPPED]} skipped, in {took_s:.0f} s"


def as_object(
    ground: Ground,
    devices: Sequence[Mapping[str, Any]],
    results: Sequence[Result],
    facts: Mapping[str, Any],
    warnings: Sequence[str],
    took_s: float,
) -> dict[str, Any]:
    """Return all of it for programs; its keys stay."""
    return {
        "schema": SCHEMA,
        "verdict": verdict(results),
        "took_s": round(took_s, 1),
        "versions": {
            "grn": __version__,
            "python": platform.python_version(),
            "kernel": platform.release(),
            "driver": facts.get("driver"),
            "cuda": facts.get("cuda"),
            "libcuda": facts.get("libcuda") or None,
        },
        "broker": {"private": ground.private, "devices": ground.spec},
        "devices": [dict(device) for device in devices],
        "driver": {
            "problem": facts.get("driver_problem") or None,
            "devices": list(facts.get("devices", ())),
        },
        "checks": [
            {
                "name": result.name,
                "title": result.title,
                "state": result.state.lower(),
                "text": result.text,
                "took_s": result.took_s,
                "numbers": result.numbers,
            }
            for result in results
        ],
        "warnings": list(warnings),
    }
