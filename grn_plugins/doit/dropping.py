"""Who waits in this run of doit, and how all of them are told to wait no longer.

    threads      share doit's runner: it carries the note, and the turns that wait here are withdrawn
    processes    share a pipe of doit's own process, opened through /proc: a byte in it, which nobody
                 takes out, wakes a thread in each worker, also in one that looks later

Promises: only requests of the same run are withdrawn; whoever asks after that is refused at once, and a
grant that was on its way is given back unused; a run with `--continue` drops nobody.
Must not: end what runs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from grn import hub, procs
from grn.errors import Cancelled

if TYPE_CHECKING:
    from types import FrameType

    from grn.grants import Grant
    from grn.turns import Turn

__all__ = ["Run", "drop_waiting", "grant_of", "this_run"]

WHY = "another task of this doit run has failed"
_NOTE = "_grn_dropped"


class Run(NamedTuple):
    """The pipe of one run: doit's process, when it began, the pipe's two ends there, and its number."""

    pid: int
    start: int
    reader: int
    writer: int
    inode: int

    def open(self, end: int, flags: int) -> int | None:
        """Open an end in another process; `None` if doit is gone, or has another file there now."""
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{end}", flags | os.O_CLOEXEC)
        except OSError:
            return None
        if procs.start_time(self.pid) == self.start and os.fstat(fd).st_ino == self.inode:
            return fd
        os.close(fd)
        return None


_lock = threading.Lock()
_turns: dict[Turn, Any] = {}
"""Who waits in this process, and for which runner."""
_run: Run | None = None
_listening: dict[Run, int | None] = {}
"""Of a worker: where it hears of its run."""


def this_run() -> Run | None:
    """Return the pipe for the tasks that are being loaded; in doit's own process."""
    global _run  # noqa: PLW0603 - one at a time in a process
    with _lock:
        if _run is not None and _run.pid == os.getpid() and not _is_over(_run):
            return _run
        start = procs.start_time(os.getpid())
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:  # out of descriptors: then only threads are told
            return None
        _run = Run(os.getpid(), start or 0, reader, writer, os.fstat(reader).st_ino)
        return _run


def _is_over(run: Run) -> bool:
    """Whether tasks were dropped in it and its workers are gone: another one has begun."""
    if not _is_told(run.reader) or multiprocessing.active_children():
        return False
    os.close(run.reader)
    os.close(run.writer)
    return True


def grant_of(turn: Turn, run: Run | None) -> Grant:
    """Wait for a turn's grant, but no longer than this run of doit is to go on.

    Raises:
        GrnError: see `Turn.grant`; `Cancelled` if what waits in this run was dropped.
    """
    runner = _runner()
    told = _listen(run, runner) if run is not None and run.pid != os.getpid() else None
    with _lock:
        if _is_dropped(runner, told):
            raise Cancelled(f"not asked for: {WHY}")
        _turns[turn] = runner
    try:
        grant = turn.grant()
    finally:
        with _lock:
            _turns.pop(turn, None)
    if _is_dropped(runner, told):  # it is what the failed one has given back
        hub.release(grant, stopped=True)
        raise Cancelled(f"the request was withdrawn: {WHY}")
    return grant


def _is_dropped(runner: Any, told: int | None) -> bool:
    return getattr(runner, _NOTE, False) or (told is not None and _is_told(told))


def drop_waiting(run: Run | None) -> None:
    """Withdraw all that waits in this run of doit, unless it goes on after failures."""
    runner = _runner()
    if runner is None or runner.continue_:
        return
    _withdraw(runner)
    if run is None or run.pid == os.getpid():
        return
    fd = run.open(run.writer, os.O_WRONLY | os.O_NONBLOCK)
    if fd is not None:
        with contextlib.suppress(BlockingIOError):  # it has been told often enough
            os.write(fd, b"!")
        os.close(fd)


def _withdraw(runner: Any) -> None:
    with _lock:
        setattr(runner, _NOTE, True)
        turns = [turn for turn, its in _turns.items() if its is runner]
    for turn in turns:
        turn.withdraw(WHY)


def _listen(run: Run, runner: Any) -> int | None:
    """Have a thread of this worker wait for the note, once; return where that arrives."""
    with _lock:
        if run in _listening:
            return _listening[run]
        fd = _listening[run] = run.open(run.reader, os.O_RDONLY | os.O_NONBLOCK)
    if fd is not None and runner is not None:
        threading.Thread(target=_hear, args=(fd, runner), name="grn-doit", daemon=True).start()
    return fd


def _hear(fd: int, runner: Any) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()
    if _is_told(fd):  # else doit is gone, and so are we
        _withdraw(runner)


def _is_told(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def _runner() -> Any:
    """Find the runner of doit that has called us; an action is not told of it. `None`: there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - see above
    while frame is not None:
        this = frame.f_locals.get("self") if frame.f_code.co_name == "execute_task" else None
        if this is not None and hasattr(this, "continue_"):
            return this
        frame = frame.f_back
    return None


def _forked() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock may be held for ever in a child
    _lock = threading.Lock()
    _turns.clear()
    _listening.clear()


os.register_at_fork(after_in_child=_forked)
