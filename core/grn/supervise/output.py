"""What jobs write: read from their pipes, labelled by whole lines, written to our own outputs.

Design note. One `Sink` per destination keeps a queue, so a reader that is slow or stopped (a pager)
never blocks the loop: signals are served, and the jobs' pipes are not read meanwhile, so the jobs
feel the back-pressure and memory stays bounded. Our outputs may share their open file with other
programs, so their flags are never touched; instead a write happens only when the output is
ready, in pieces that then do not block (a pipe that is ready takes `PIPE_BUF` bytes at once).
If standard output and error are one file they share one sink, or lines could cut each other.

Promises: bytes are passed on as they are; lines are never mixed; a job's order is kept; nothing is
lost while the destination lives.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque

from grn.supervise.loop import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.supervise.loop import Loop

__all__ = ["Lines", "Raw", "Sink", "Stream", "Tail"]

_PIECE = select.PIPE_BUF
_READ = 65536
_LONGEST_LINE = 65536
_TAIL_BYTES = 65536
_FULL = 262144  # stop reading the jobs' pipes
_ROOM = 65536  # and go on
_MOST_AT_END = 1 << 20  # a pipe's content at its writer's end; pipes can be made this large


class Sink:
    """One destination. `on_broken` is called once when nobody reads it any more."""

    def __init__(self, loop: Loop, fd: int, on_broken: Callable[[OSError], None]) -> None:
        self.fd = fd
        self.undo = b""
        """Written once before the next lines: takes a status line off the screen."""
        self.queued = 0
        self._loop = loop
        self._on_broken = on_broken
        self._queue: deque[bytes] = deque()
        self._paused: list[Stream] = []
        self._watching = False
        self._broken = False
        self._ready = select.poll()
        self._ready.register(fd, select.POLLOUT)

    @property
    def is_full(self) -> bool:
        """Whether so much is queued that nothing more should be read for this sink."""
        return self.queued > _FULL

    def write(self, data: bytes) -> None:
        """Queue whole lines and write what can be written now."""
        if self._broken or not data:
            return
        if self.undo:
            data, self.undo = self.undo + data, b""
        self._queue.append(data)
        self.queued += len(data)
        if not self._watching:
            self._flush()

    def pause(self, stream: Stream) -> None:
        """Have `stream.resume()` called when there is room again."""
        self._paused.append(stream)

    def _flush(self) -> None:
        try:
            while self._queue and self._ready.poll(0):
                self._write_piece()
        except BlockingIOError:  # somebody made the shared file non-blocking, and it is full
            pass
        except OSError as error:
            self._break(error)
        self._watch_if_needed()
        if self.queued <= _ROOM:
            paused, self._paused = self._paused, []
            for stream in paused:
                stream.resume()

    def _write_piece(self) -> None:
        """Write the first piece of the queue, up to the end of a line where one fits."""
        head = self._queue[0]
        piece = head[:_PIECE]
        if len(head) > _PIECE:
            piece = piece[: piece.rfind(b"\n") + 1] or piece
        written = os.write(self.fd, piece)
        self.queued -= written
        if written == len(head):
            self._queue.popleft()
        else:
            self._queue[0] = head[written:]

    def _watch_if_needed(self) -> None:
        if bool(self._queue) == self._watching:
            return
        if self._watching:
            self._loop.unwatch(self.fd)
        else:
            self._loop.watch(self.fd, WRITABLE, self._flush)
        self._watching = not self._watching

    def _break(self, error: OSError) -> None:
        self._broken = True
        self._queue.clear()
        self.queued = 0
        self._on_broken(error)


class Lines:
    """Puts a label before each line and passes whole lines on."""

    __slots__ = ("_label", "_part_label", "_parts", "_rest", "_sink")

    def __init__(self, sink: Sink, label: bytes, part_label: bytes) -> None:
        self._sink = sink
        self._label = label
        self._part_label = part_label  # for the second and later parts of an overlong line
        self._rest = b""
        self._parts = False

    @property
    def sink(self) -> Sink:
        """Where the lines go."""
        return self._sink

    def feed(self, data: bytes) -> None:
        """Take bytes in; write the lines that are complete now."""
        end = data.rfind(b"\n") + 1
        if end:
            self._write(self._rest + data[:end])
            self._rest = data[end:]
        else:
            self._rest += data
        while len(self._rest) > _LONGEST_LINE:
            part, self._rest = self._rest[:_LONGEST_LINE], self._rest[_LONGEST_LINE:]
            self._write(part + b"\n")
            self._parts = True

    def finish(self) -> None:
        """Write a last line that has no newline, with one."""
        if self._rest:
            self._write(self._rest + b"\n")
        self._rest = b""

    def _write(self, lines: bytes) -> None:
        first = self._part_label if self._parts else self._label
        self._parts = False
        following = b"\n" + self._label
        self._sink.write(first + lines[:-1].replace(b"\n", following) + b"\n")


class Raw:
    """Passes bytes on as they come: for a single job, whose output nobody else's can meet."""

    __slots__ = ("sink",)

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def feed(self, data: bytes) -> None:
        """Take bytes in and write them."""
        self.sink.write(data)

    def finish(self) -> None:
        """Nothing is held back."""


class Tail:
    """Keeps the last bytes of a stream."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes in."""
        self._bytes += data
        if len(self._bytes) > 2 * _TAIL_BYTES:
            del self._bytes[:-_TAIL_BYTES]

    def get(self) -> bytes:
        """Return the last 64 KiB."""
        return bytes(self._bytes[-_TAIL_BYTES:])


class Stream:
    """One pipe from a job, or the outer end of a pseudo-terminal."""

    def __init__(
        self,
        loop: Loop,
        fd: int,
        lines: Lines | Raw,
        *,
        also: tuple[Callable[[bytes], None], ...],
        on_close: Callable[[Stream], None],
    ) -> None:
        self.open = True
        self.fd = fd
        self._on_close = on_close
        self._loop = loop
        self._lines = lines
        self._also = also
        self._paused = False
        self._held = False
        os.set_blocking(fd, False)
        loop.watch(fd, READABLE, self._on_readable)

    def resume(self) -> None:
        """Read again: the sink has room."""
        if self._held:
            return
        self._paused = False
        if self.open:
            self._loop.watch(self.fd, READABLE, self._on_readable)

    def drain(self) -> None:
        """Take what is in the pipe now, whatever the sink's room: its writer has ended."""
        taken = 0
        while self.open and taken < _MOST_AT_END:
            size = self._read()
            if not size:
                return
            taken += size

    def hold(self) -> None:
        """Stop reading, and keep our end open."""
        if self.open and not self._paused:
            self._loop.unwatch(self.fd)
        self._paused = self._held = True

    def close(self) -> None:
        """Stop reading, though a process may still hold the other end."""
        if self.open:
            self.open = False
            if not self._paused:
                self._loop.unwatch(self.fd)
            os.close(self.fd)
            self._lines.finish()
            self._on_close(self)

    def _on_readable(self) -> None:
        if self._lines.sink.is_full:
            self._loop.unwatch(self.fd)
            self._paused = True
            self._lines.sink.pause(self)
            return
        self._read()

    def _read(self) -> int:
        """Read once and pass on; return how much came."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # so ends a pseudo-terminal whose inner end is closed everywhere
        if not data:
            self.close()
            return 0
        for take in self._also:
            take(data)
        self._lines.feed(data)
        return len(data)
