"""Somebody who watches an example with `grn top`, and keeps the screen on which there was most."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any

from grn.client import Client
from grn.errors import BrokerUnavailable
from tests.env import PATIENCE_S
from tests.top.terminal import Terminal, grn_top

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Onlooker"]

_COLUMNS, _LINES = 100, 30
_FRAME = re.compile(rb"\x1b\[\?2026h(.*?)\x1b\[\?2026l", re.DOTALL)
_COUNTS = re.compile(rb"(\d+) leases?\b.{1,20}?(\d+) waiting")
_MEASURED, _ENDED = "█".encode(), "── ended".encode()
_LOOK_S = 0.05


class Onlooker:
    """Watches from when there is a broker until the `with` block is left.

    Attributes:
        text, svg: the fullest screen; '' if there was none.
    """

    def __init__(self, environ: Mapping[str, str], settings: Any) -> None:
        self.text = self.svg = ""
        self._most = (-1, -1, -1, -1)
        self._environ = {**environ, "LC_ALL": "C.UTF-8"}
        self._settings = settings
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._problem: BaseException | None = None

    def __enter__(self) -> Onlooker:  # noqa: PYI034 - typing.Self is not worth an import
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(3 * PATIENCE_S)
        assert not self._thread.is_alive(), "grn top has not ended"
        if self._problem is not None:
            raise self._problem

    def _watch(self) -> None:
        try:
            while not self._there_is_a_broker():
                if self._over.wait(_LOOK_S):
                    return
            self._look_on()
        except BaseException as problem:  # noqa: BLE001 - raised where the thread is joined
            self._problem = problem

    def _there_is_a_broker(self) -> bool:
        try:
            with Client(self._settings):
                return True
        except BrokerUnavailable:
            return False

    def _look_on(self) -> None:
        command = grn_top()
        terminal = Terminal(command, self._environ, columns=_COLUMNS, lines=_LINES)
        data = b""
        try:
            while not self._over.is_set() and terminal.process.poll() is None:
                data += terminal.read_blindly(_LOOK_S)
                for frame in _FRAME.finditer(data):
                    self._judge(terminal, frame[1])
                    data = data[frame.end() :]
            terminal.press("q")
            status = terminal.end()
            assert status == 0, f"grn top ended with {status}:\n{terminal.text}"
            assert terminal.given_back
        finally:
            terminal.close()

    def _judge(self, terminal: Terminal, frame: bytes) -> None:
        """Draw a frame, which is a whole screen, if there is more on it than on any before.

        What is of most kinds comes first: a crowd that has only just begun shows nothing measured.
        """
        counts = _COUNTS.search(frame)
        if counts is None:
            return
        leases, waiting, measured = int(counts[1]), int(counts[2]), frame.count(_MEASURED)
        kinds = sum((leases > 1, waiting > 0, measured > 0, _ENDED in frame))
        found = (kinds, leases, waiting, measured)
        if found > self._most:
            self._most = found
            terminal.draw(frame)
            self.text, self.svg = terminal.text, terminal.svg("grn top")

    def keep(self, name: str, folder: str) -> None:
        """Write the fullest screen there, as text and as a picture."""
        os.makedirs(folder, exist_ok=True)
        for kind, data in (("txt", self.text + "\n"), ("svg", self.svg)):
            with open(os.path.join(folder, f"{name}.{kind}"), "w", encoding="utf-8") as file:
                file.write(data)
