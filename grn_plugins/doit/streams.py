"""The output of an action's process on its way to doit: kept for the task, shown as verbosity says.

Promises: what doit keeps of a Python action is kept, what it shows is shown as it comes; nobody's
`sys.stdout` is replaced; output that a left-over process goes on writing holds up nothing. Where doit does not
keep output (`io: {"capture": False}`), the process gets the descriptors themselves, or, where doit's own stream
has none (the JSON reporter), it is written there.

Must not: add a word to the output.
"""

from __future__ import annotations

import codecs
import math
import os
import select
import sys
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Streams"]

_CHUNK = 1 << 16


class _Stream:
    """One of two: where it goes, and the pipe that it comes from, if it needs one."""

    def __init__(self, *, keep: bool, shown: Any) -> None:
        self.kept = StringIO() if keep else None
        self._shown = shown
        self.ours = self.theirs = -1
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        direct = None if keep else _descriptor(shown)
        if direct is None:
            self.ours, self.theirs = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self.ours, False)
        else:
            self.theirs = os.dup(direct)

    def take(self) -> bool:
        """Take what is there; `False` at its end."""
        try:
            data = os.read(self.ours, _CHUNK)
        except BlockingIOError:
            return True
        self._write(self._decode(data, final=not data))
        return bool(data)

    def drain(self) -> None:
        """Take what is there now, all of it, and no more."""
        while self.ours >= 0 and select.select([self.ours], [], [], 0)[0]:
            if not self.take():
                return

    def _write(self, text: str) -> None:
        if self.kept is not None:
            self.kept.write(text)
        if self._shown is None or not text:
            return
        try:
            self._shown.write(text)
            self._shown.flush()
        except (OSError, ValueError):  # nobody looks any more: it is kept all the same
            self._shown = None

    def given(self) -> None:
        """Let go of the process's end: it has its own by now."""
        fd, self.theirs = self.theirs, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Let go of everything."""
        self.given()
        fd, self.ours = self.ours, -1
        if fd >= 0:
            self._write(self._decode(b"", final=True))
            os.close(fd)


class Streams:
    """Standard output and error of one process."""

    def __init__(self, out: Any, err: Any, *, keep: bool) -> None:
        shown = (out, err) if keep else (out or sys.stdout, err or sys.stderr)
        self.out = _Stream(keep=keep, shown=shown[0])
        self.err = _Stream(keep=keep, shown=shown[1])
        self._both = (self.out, self.err)

    def given(self) -> None:
        """Tell that the process has its ends."""
        for stream in self._both:
            stream.given()

    def attend(self, end: int, timeout_s: float | None = None) -> None:
        """Pass output on until the descriptor `end` is readable, or the time is up."""
        poll = select.poll()
        poll.register(end, select.POLLIN)
        by_fd = {stream.ours: stream for stream in self._both if stream.ours >= 0}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ready: set[int] = set()
        while end not in ready:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            ready = {
                fd for fd, _ in poll.poll(None if left_s is None else math.ceil(left_s * 1000))
            }
            for fd in ready & by_fd.keys():
                if not by_fd[fd].take():
                    poll.unregister(fd)
                    del by_fd[fd]
        self.drain()

    def drain(self) -> None:
        """Take what is there now."""
        for stream in self._both:
            stream.drain()

    def close(self) -> None:
        """Let go of everything."""
        for stream in self._both:
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _descriptor(stream: Any) -> int | None:
    try:
        stream.flush()
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):  # what stands in for a stream has none
        return None
