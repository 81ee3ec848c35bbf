"""`grn selftest`: whether GRN does on this machine's devices what it promises.

Promises: each check is told as soon as it is made; the text can be pasted into a bug report as it
is; nothing of the user's books and profiles is changed; it is over within three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time

from grn.errors import BrokerUnavailable, GrnError, PathError
from grn.selftest import report, suite
from grn.selftest.ground import open_ground

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

    from grn.selftest.ground import Ground
    from grn.selftest.verdict import Result

__all__ = ["main"]

_ANSWER_WITHIN_S, _LAST_ANSWER_WITHIN_S = 30.0, 2.0
_STATUS = {"ok": 0, "failed": 1, "not run": GrnError.exit_status}


def main(argv: Sequence[str]) -> int:
    """Make all checks; return the exit status."""
    options = _parser().parse_args(argv)
    begun_s = time.monotonic()
    folder = tempfile.mkdtemp(prefix="grn-selftest-")
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        text = _Text(report.Scrubber(folder, os.environ), to_stderr=options.json)
        ground = open_ground(folder, devices=options.devices, socket=options.socket)
        try:
            return _checked(ground, text, options, begun_s)
        finally:
            ground.close()
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder, ignore_errors=True)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


class _Text:
    """Writes the report as it grows, and keeps it."""

    def __init__(self, scrub: report.Scrubber, *, to_stderr: bool) -> None:
        self.scrub = scrub
        self._stream = sys.stderr if to_stderr else sys.stdout
        self.whole = ""

    def add(self, text: str, end: str = "\n") -> None:
        """Write a line, or its beginning."""
        text = self.scrub(text) + end
        self.whole += text
        self._stream.write(text)
        self._stream.flush()

    def begins(self, title: str) -> None:
        """Write the beginning of a check's line."""
        self.add(f"{title} ... ", end="")

    def ended(self, result: Result) -> None:
        """Write the end of it."""
        self.add(report.line(result))


def _checked(ground: Ground, text: _Text, options: argparse.Namespace, begun_s: float) -> int:
    status = ground.status(_ANSWER_WITHIN_S)
    devices = status["devices"]
    if not devices:
        raise BrokerUnavailable(_nothing_found(ground, status["warnings"]))
    for line in report.heading(ground, devices):
        text.add(line)
    until_s = begun_s + suite.BUDGET_S
    results, facts = suite.run(
        ground, options.only, until_s=until_s, begins=text.begins, ended=text.ended
    )
    warnings = _warnings(ground)
    for line in report.details(facts, warnings):
        text.add(line)
    took_s = time.monotonic() - begun_s
    text.add(report.verdict_line(results, took_s))
    if options.json:
        found = report.as_object(ground, devices, results, facts, warnings, took_s)
        print(json.dumps(text.scrub.all_of(found)))
    if options.report is not None:
        _write(options.report, text.whole)
    return _STATUS[report.verdict(results)]


def _warnings(ground: Ground) -> list[str]:
    try:
        warnings: list[str] = ground.status(_LAST_ANSWER_WITHIN_S)["warnings"]
    except BrokerUnavailable as error:
        return [error.message]
    return warnings


def _nothing_found(ground: Ground, warnings: Sequence[str]) -> str:
    found = "; ".join(warnings) or f"the broker manages none ({ground.spec})"
    return f"no device to test: {found}\ngrn selftest: `grn doctor` tells what to do about it"


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise PathError(f"cannot write the report to {path}: {error.strerror}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grn selftest",
        description="Check on this machine's devices that GRN does what it promises, in at most"
        f" {suite.BUDGET_S / 60:g} minutes. It takes up to 3 GiB of a device and runs through a broker of"
        " its own, which has the devices meanwhile; where a broker runs that has them already,"
        " through that one, with job types that are forgotten at the end.",
        epilog="status: 0 all that could be checked is well, 1 a check failed, 2 usage,"
        " 125 nothing could be checked (no device, no CUDA driver, no broker)",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--devices", metavar="SPEC", help="as of `grn broker`; sim:2x8GiB to try it"
    )
    parser.add_argument("--socket", metavar="PATH", help="test the broker that listens there")
    parser.add_argument(
        "--only",
        metavar="CHECK",
        choices=suite.NAMES,
        action="append",
        default=[],
        help=f"make this check alone (repeatable): {', '.join(suite.NAMES)}",
    )
    parser.add_argument("--json", action="store_true", help="a JSON object on stdout (schema 1)")
    parser.add_argument("--report", metavar="FILE", help="write the text to a file as well")
    return parser
