"""A body in a fresh process of the fork server, and what it has left behind.

Must not: wait for a left-over process unless that is wanted.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grn.grants import Used
    from grn.isolate import Child, Outcome
    from grn_plugins.doit.streams import Streams

__all__ = ["Served"]

_LOOK_EVERY_S = 0.05
"""What is left over is not our child: its end wakes nobody."""


class Served:
    """One child of the fork server."""

    def __init__(self, child: Child, leftovers: str, grace_s: float) -> None:
        self.pid = child.pid
        self._child = child
        self._leftovers = leftovers
        self._grace_s = grace_s

    def fileno(self) -> int:
        """Return what is readable when it is over."""
        return self._child.fileno()

    def outcome(self) -> Outcome:
        """Tell how it ended."""
        return self._child.outcome()

    @property
    def used(self) -> Used:
        """What it took, once its outcome is known."""
        return self._child.used

    def interrupt(self) -> None:
        """Do what Ctrl-C would do; the terminal does not reach it, it has a session of its own."""
        self._child.kill(signal.SIGINT)

    def stop(self, grace_s: float) -> None:
        """End it and what it has started."""
        self._child.stop(grace_s)

    def see_off(self, streams: Streams) -> None:
        """Kill what it has left behind, wait for it, or keep it."""
        if self._leftovers == "keep" or not self._child.left():
            return
        if self._leftovers == "kill":
            self._child.stop(self._grace_s)
        while self._leftovers == "wait" and self._child.left():
            time.sleep(_LOOK_EVERY_S)
            streams.drain()

    def close(self) -> None:
        """Let go of it; what lives still is killed."""
        self._child.close()
