"""The descriptors that jobs get for 0, 1 and 2, and what becomes of what they write.

A single job has ours, but its stderr is read along, to recognise an out-of-memory error: it gets a pipe,
or where ours is a terminal a stand-in that is one, too. If stdout is the same, it takes the same way: of
two ways the shorter one would win each time, and the order that the job wrote in would be lost. So where
both are one terminal, nothing is read along unless that is asked for: programs that set the terminal's
modes through their stdout must find the real one there. Of several jobs each gets an empty standard
input, and its lines come out labelled.

What a single job's background processes write after our end is passed on by a process that stays
behind. If our stderr can be written no more, the job's is closed, so that it meets the error itself.
"""

from __future__ import annotations

import errno
import os
import stat

from grn.supervise.output import Lines, Raw, Sink, Stream, Tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.supervise.job import Job
    from grn.supervise.loop import Loop
    from grn.supervise.terminal import Twin

__all__ = ["INHERIT", "LABEL", "TEE", "WATCH_ERRORS", "Outputs"]

INHERIT, WATCH_ERRORS, TEE, LABEL = "inherit", "watch-errors", "tee", "label"

_COLOURS = (36, 33, 32, 35, 34, 31)
_LOG_MODE = 0o666
_STDOUT, _STDERR = 1, 2


class _Log:
    """A file with the bytes of one job, as they came from its two pipes."""

    def __init__(self, path: str, say: Callable[[str], None], flags: int) -> None:
        self._path = path
        self._say = say
        self._users = 2
        self._failed = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, _LOG_MODE)

    def feed(self, data: bytes) -> None:
        """Append; a full disk is told once and does not end the job."""
        if self._failed:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self._failed = True
            self._say(f"{self._path} is incomplete: {error.strerror}")

    def release(self) -> None:
        """Close the file when both pipes are done."""
        self._users -= 1
        if not self._users:
            os.close(self._fd)


class Outputs:
    """Opens the outputs of jobs and owns the two destinations."""

    def __init__(
        self,
        loop: Loop,
        mode: str,
        *,
        log_dir: str | None = None,
        colour_when_terminal: bool = True,
        all_to_stderr: bool = False,
        watch_terminal: bool = False,
    ) -> None:
        self.mode = mode
        self.on_broken: Callable[[OSError], None] = _ignore
        """Called when a destination cannot be written any more; nobody reads it, or it is full."""
        self.stderr = Sink(loop, 2, self._broke)
        self.stdout = self.stderr
        if not all_to_stderr and not _same_file(_STDOUT, _STDERR):
            self.stdout = Sink(loop, 1, self._broke)
        self._loop = loop
        self._all_to_stderr = all_to_stderr
        self._watch_terminal = watch_terminal
        self._log_dir = log_dir
        self._colour = colour_when_terminal
        self._streams: set[Stream] = set()
        self._twins: dict[Stream, Twin] = {}
        self._null: int | None = None
        self._to_close: list[int] = []

    def say(self, line: str) -> None:
        """Write one line of ours to standard error."""
        self.stderr.write(f"{line}\n".encode("utf-8", "backslashreplace"))

    def open(self, job: Job) -> tuple[int | None, int | None, int | None]:
        """Make the descriptors for a job; after the fork call `forked()`."""
        stdout = 2 if self._all_to_stderr else None
        if self.mode == INHERIT:
            return None, stdout, None
        job.tail = Tail()
        if self.mode == WATCH_ERRORS:
            return None, *self._watched(job, stdout)
        log = self._open_log(job)
        keep = () if log is None else (log.feed,)
        out, err = (
            (Raw(self.stdout), Raw(self.stderr))
            if self.mode == TEE
            else (self._lines(job, self.stdout, 1), self._lines(job, self.stderr, 2))
        )
        return (
            None if self.mode == TEE else self._null_input(),
            self._pipe(job, out, keep, log),
            self._pipe(job, err, (job.tail.feed, *keep), log),
        )

    def _watched(self, job: Job, stdout: int | None) -> tuple[int | None, int | None]:
        """Make stdout and stderr for a job whose stderr is read along."""
        if not os.get_inheritable(_STDERR):  # it was closed when we began, and is for the job, too
            return stdout, None
        together = self._all_to_stderr or _same_file(_STDOUT, _STDERR)
        if os.isatty(_STDERR):
            if together and not self._watch_terminal:
                return stdout, None
            inner = self._twin(job)
        else:
            inner = self._pipe(job, Raw(self.stderr), _kept(job), None)
            # Of what goes to /dev/null nobody sees the order.
            null = stat.S_ISCHR(os.fstat(_STDERR).st_mode)
            together = self._all_to_stderr or (together and not null)
        return (inner if together and inner is not None else stdout), inner

    def _twin(self, job: Job) -> int | None:
        """Make a terminal that stands for ours; None where there is none to be had."""
        from grn.supervise.terminal import Twin  # noqa: PLC0415 - many runs have no terminal

        try:
            twin = Twin(_STDERR)
        except OSError:
            return None
        self._to_close.append(twin.inner)
        stream = self._stream(job, twin.outer, Raw(self.stderr), _kept(job), None)
        self._twins[stream] = twin
        return twin.inner

    def resize(self) -> bool:
        """Our terminal has another size, so have those that stand for it; tell if there are any."""
        for twin in self._twins.values():
            try:
                twin.resize()
            except OSError:  # ours was hung up; that is told by a signal of its own
                return False
        return bool(self._twins)

    def _broke(self, error: OSError) -> None:
        hung_up = error.errno == errno.EIO and bool(self._twins)
        if self.mode == WATCH_ERRORS and (hung_up or isinstance(error, BrokenPipeError)):
            for stream in list(self._streams):
                stream.close()
            return
        self.on_broken(error)

    def forked(self) -> None:
        """Close our copies of what the child has now; else a pipe would never end."""
        for fd in self._to_close:
            os.close(fd)
        self._to_close.clear()

    @property
    def all_closed(self) -> bool:
        """Whether every job's pipes have come to their end."""
        return not self._streams

    @property
    def flushed(self) -> bool:
        """Whether all that was read is written."""
        return not self.stdout.queued and not self.stderr.queued

    def close_streams(self) -> None:
        """Stop reading from what jobs left behind; what is in the pipes now is still passed on."""
        for stream in list(self._streams):
            stream.drain()
            if self.mode == WATCH_ERRORS:
                stream.hold()
            else:
                stream.close()

    def leave_behind(self) -> None:
        """See to it that what background processes write later is passed on."""
        fds = [stream.fd for stream in self._streams if stream.open]
        if fds and self.mode == WATCH_ERRORS:
            from grn.supervise.keeper import stay_behind  # noqa: PLC0415 - most leave nothing

            stay_behind(fds)

    def _pipe(
        self,
        job: Job,
        lines: Lines | Raw,
        also: tuple[Callable[[bytes], None], ...],
        log: _Log | None,
    ) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._to_close.append(writer)
        self._stream(job, reader, lines, also, log)
        return writer

    def _stream(
        self,
        job: Job,
        reader: int,
        lines: Lines | Raw,
        also: tuple[Callable[[bytes], None], ...],
        log: _Log | None,
    ) -> Stream:
        def closed(stream: Stream) -> None:
            self._streams.discard(stream)
            self._twins.pop(stream, None)
            if log is not None:
                log.release()

        stream = Stream(self._loop, reader, lines, also=also, on_close=closed)
        self._streams.add(stream)
        job.streams.append(stream)
        return stream

    def _lines(self, job: Job, sink: Sink, fd: int) -> Lines:
        name = f"{job.number} {job.label}"
        label, part = f"[{name}]", f"[{name} +]"
        if self._colour and os.isatty(2 if sink is self.stderr else fd):
            colour = _COLOURS[(job.number - 1) % len(_COLOURS)]
            label, part = (f"\x1b[{colour}m{text}\x1b[0m" for text in (label, part))
        return Lines(sink, _text(label), _text(part))

    def _open_log(self, job: Job) -> _Log | None:
        if self._log_dir is None:
            return None
        path = os.path.join(self._log_dir, f"{job.number}.log")
        flags = os.O_APPEND if job.tries > 1 else os.O_TRUNC
        try:
            return _Log(path, self.say, flags)
        except OSError as error:
            self.say(f"grn run: {path}: {error.strerror}")
            return None

    def _null_input(self) -> int:
        if self._null is None:
            self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._null


def _kept(job: Job) -> tuple[Callable[[bytes], None], ...]:
    return () if job.tail is None else (job.tail.feed,)


def _ignore(error: OSError) -> None:
    del error


def _text(label: str) -> bytes:
    return f"{label} ".encode("utf-8", "backslashreplace")


def _same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino, first.st_rdev) == (
        second.st_dev,
        second.st_ino,
        second.st_rdev,
    )
