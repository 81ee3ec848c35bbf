"""One process beside a run that ends the run's GPU jobs when the run is ended, however that happens.

Design note. A job's process stays the child that Snakemake made: same pid, same exit status, nothing in
between that a benchmark would measure, and no time lost at its start. What a supervising parent would give
is given by one process for all jobs: it hears of each job through a pipe, and when that ends, by SIGKILL
of Snakemake too, it ends those that are left. A job's processes are those below its first one, those seen
there before, and all that carry its lease.

It has a session of its own, so that what kills Snakemake's group leaves it; it holds none of Snakemake's
descriptors, so that nobody who reads them waits for it.

    lease LEASE              a job is about to start under this lease
    began PID START LEASE    its process; LEASE is "-" if it has none to itself
    ended PID LEASE          it needs no watching any more; what it left in the background goes on
    stop PID                 it has been interrupted: a second later SIGTERM, after the grace SIGKILL
    kill PID                 SIGKILL

Promises: nothing is signalled that is not provably the job's; a broker is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from grn import procs
from grn.supervise.tree import send

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Warden", "main"]

NO_LEASE = "-"
_ASK_S = 1.0
_TICK_S = 0.05
_SCAN_ALL_EVERY = 5  # ticks: a look at every process of the machine is the dear part
_GIVE_UP_S = 10.0
_LEAVES_WITHIN_S = 5.0
_CHUNK = 1 << 16


# -- Snakemake's side -----------------------------------------------------------------------------


class Warden:
    """Starts the process when there is a first job to watch. Methods may be called by any thread."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lost = False

    def lease(self, lease: str | None) -> None:
        """Announce a job that has a lease to itself, before it is started."""
        if lease is not None:
            self._tell(f"lease {lease}")

    def began(self, pid: int, lease: str | None) -> None:
        """Watch a process."""
        start = procs.start_time(pid)
        if start is not None:
            self._tell(f"began {pid} {start} {lease or NO_LEASE}")

    def ended(self, pid: int, lease: str | None) -> None:
        """Watch it no more."""
        self._tell(f"ended {pid} {lease or NO_LEASE}")

    def stop(self, pid: int) -> None:
        """See to it that what was interrupted ends."""
        self._tell(f"stop {pid}")

    def kill(self, pid: int) -> None:
        """Kill it, with all that it has started."""
        self._tell(f"kill {pid}")

    def close(self) -> None:
        """Let it go, at the end of the run."""
        with self._lock:
            process, self._process = self._process, None
            if process is None or process.stdin is None:
                return
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVES_WITHIN_S)

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None and not self._lost:
                self._process = _started(self._grace_s)
            if self._process is None or self._process.stdin is None:
                return
            try:
                os.write(self._process.stdin.fileno(), f"{line}\n".encode())
            except BrokenPipeError:  # somebody has killed it: jobs end with Snakemake's group still
                self._process, self._lost = None, True


def _started(grace_s: float) -> subprocess.Popen[bytes] | None:
    # -P: a module of the user's in the workflow's folder must not be taken for the library's.
    argv = [sys.executable, "-P", "-m", "grn_plugins.snakemake.warden", str(grace_s)]
    try:
        return subprocess.Popen(  # noqa: S603 - our own module
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
    except OSError:  # no processes or descriptors are left: jobs run without it
        return None


# -- its own side ---------------------------------------------------------------------------------

_WATCHED, _ASKED, _TERMINATED, _KILLED = range(4)


class _Job:
    """One job that is watched; `main` is 0 if only its lease is known."""

    def __init__(self, main: int, start: int, lease: str | None) -> None:
        self.main = main
        self.lease = lease
        self.phase = _WATCHED
        self.deadline = 0.0
        self._seen = {main: start} if main else {}
        self._terminated: set[tuple[int, int]] = set()

    def enter(self, phase: int, within_s: float) -> None:
        """Go on to a phase, never back."""
        if phase > self.phase:
            self.phase = phase
            self.deadline = time.monotonic() + within_s

    def find(self, marked: dict[str, list[int]] | None) -> dict[int, int]:
        """Return its living processes, with start times; `marked` is a look at all of the machine."""
        found: dict[int, int] = {}
        for pid, start in self._seen.items():
            if procs.is_alive(pid, start):
                found |= _alive([pid, *procs.descendants(pid)])
        if marked is not None and self.lease is not None:
            found |= _alive(marked.get(self.lease, ()))
        self._seen = found
        return found

    def signal(self, found: dict[int, int]) -> None:
        """Send what the phase is about."""
        if self.phase == _KILLED:
            _send(found, signal.SIGKILL)
        elif self.phase == _TERMINATED:
            fresh = dict(found.items() - self._terminated)
            _send(fresh, signal.SIGTERM)
            _send(fresh, signal.SIGCONT)  # a stopped process would not see it
            self._terminated |= fresh.items()


def _alive(pids: Iterable[int]) -> dict[int, int]:
    found = {}
    for pid in pids:
        start = procs.start_time(pid)
        if start is not None and pid != os.getpid() and not procs.is_broker(pid):
            found[pid] = start
    return found


def _send(processes: dict[int, int], number: int) -> None:
    for pid, start in processes.items():
        with contextlib.suppress(OSError):  # another user's by now, or no descriptors are left
            send(pid, start, number)


class _Watch:
    """All jobs of a run."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._jobs: dict[int, _Job] = {}
        self._announced: set[str] = set()
        self._open = True
        self._ticks = 0

    def run(self, fd: int) -> None:
        """Go on until the pipe has ended and no job is left."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        rest = b""
        while self._open or self._jobs:
            stopping = any(job.phase for job in self._jobs.values())
            if not self._open:
                time.sleep(_TICK_S)
            elif poll.poll(_TICK_S * 1000 if stopping else None):
                data = os.read(fd, _CHUNK)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._hear(line.decode().split())
                if not data:
                    self._left_alone()
            self._attend()

    def _hear(self, words: list[str]) -> None:
        kind, first, *more = words
        if kind == "lease":
            self._announced.add(first)
        elif kind == "began":
            lease = None if more[1] == NO_LEASE else more[1]
            self._jobs[int(first)] = _Job(int(first), int(more[0]), lease)
        elif kind == "ended":
            self._jobs.pop(int(first), None)
            self._announced.discard(more[0])
        elif int(first) in self._jobs and kind == "stop":
            self._jobs[int(first)].enter(_ASKED, _ASK_S)
        elif int(first) in self._jobs:
            self._jobs[int(first)].enter(_KILLED, _GIVE_UP_S)

    def _left_alone(self) -> None:
        """Snakemake is gone: end what it had started, and what it was about to start."""
        self._open = False
        known = {job.lease for job in self._jobs.values()}
        for number, lease in enumerate(self._announced - known, start=1):
            self._jobs[-number] = _Job(0, 0, lease)
        for job in self._jobs.values():
            job.enter(_TERMINATED, self._grace_s)

    def _attend(self) -> None:
        stopping = {key: job for key, job in self._jobs.items() if job.phase}
        if not stopping:
            return
        everywhere = self._ticks % _SCAN_ALL_EVERY == 0
        self._ticks += 1
        marked = procs.with_marker() if everywhere else None
        for key, job in stopping.items():
            found = job.find(marked)
            if not found and marked is None:
                marked = procs.with_marker()
                found = job.find(marked)
            over = time.monotonic() >= job.deadline
            if not found or (over and job.phase == _KILLED):
                del self._jobs[key]
                continue
            if over:
                following = _TERMINATED if job.phase == _ASKED else _KILLED
                job.enter(following, self._grace_s if following == _TERMINATED else _GIVE_UP_S)
            job.signal(found)


def main() -> None:
    """Watch until Snakemake closes our standard input."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when there is nothing to watch any more
    _Watch(float(sys.argv[1])).run(0)


if __name__ == "__main__":
    main()
