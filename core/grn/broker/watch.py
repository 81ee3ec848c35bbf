"""Watches processes by pidfd plus start time, never by a bare number.

A pidfd becomes readable when its process ends, so a death is an event. Between opening it and
reading the start time nothing can be confused: the pidfd names one process for good, and if the
start time under that number is another one, the process we meant had ended before.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from grn import procs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from grn.rules.model import Owner

__all__ = ["Watcher"]

_LOOK_AGAIN_S = 1.0


class Watcher:
    """Calls back once when a process has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fds: dict[tuple[int, int], int] = {}
        self._callbacks: dict[tuple[int, int], list[Callable[[], None]]] = {}

    def watch(self, process: Owner, gone: Callable[[], None]) -> None:
        """Call `gone` once when the process has ended; soon, if it already has."""
        key = (process.pid, process.start)
        self._callbacks.setdefault(key, []).append(gone)
        if key not in self._fds:
            self._open(key)

    def _open(self, key: tuple[int, int]) -> None:
        if key in self._fds or key not in self._callbacks:
            return  # somebody else asked for it meanwhile, or nobody wants it any more
        pid, start = key
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno == errno.ESRCH or not procs.is_alive(pid, start):
                self._loop.call_soon(self._fire, key)
            else:  # no file descriptors left, or no pidfds here: look again, never guess
                self._loop.call_later(_LOOK_AGAIN_S, self._open, key)
            return
        if not procs.is_alive(pid, start):
            os.close(fd)
            self._loop.call_soon(self._fire, key)
            return
        self._fds[key] = fd
        self._loop.add_reader(fd, self._fire, key)

    def _fire(self, key: tuple[int, int]) -> None:
        fd = self._fds.pop(key, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
        for gone in self._callbacks.pop(key, []):
            gone()

    def close(self) -> None:
        """Stop watching."""
        for fd in self._fds.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        self._callbacks.clear()
