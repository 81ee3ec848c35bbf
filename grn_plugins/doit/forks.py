"""A body in a copy of doit's process, under a supervising copy of its own.

    doit ---- supervisor (the shim, without its exec) ---- body

Nothing is pickled on the way there, so closures over locks, open files and the like work; what doit's
process has imported is there already, and has read doit's environment, not the lease's.

Promises: the body dies with doit, by whatever signal, and what it has started with it; it stays in doit's
process group, at doit's terminal.
Must not: be used beside threads that may hold a lock: the copy would wait for it for ever.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.isolate import BodyDied, CannotStart, Outcome, Unpicklable, body, surroundings
from grn.isolate.pickling import Returning
from grn.shim.kernel import die_with_parent
from grn.shim.run import Options, Shim
from grn.shim.stop import Stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from grn.grants import Used
    from grn_plugins.doit.streams import Streams

__all__ = ["fork"]

_LINE_BYTES = 4096
_KIB_IN_MIB = 1024
_BROUGHT, _NOT_BROUGHT = b"V", b"N"


def fork(
    call: Callable[[], Any],
    *,
    env: Mapping[str, str],
    ends: Sequence[int],
    cores: Sequence[int],
    lease: str | None,
    leftovers: str,
    grace_s: float,
) -> Forked:
    """Start a copy of this process that makes the call; `ends` are its standard output and error.

    Raises:
        CannotStart: if there is no room for one.
    """
    ours, theirs = socket.socketpair()
    result = os.memfd_create("grn-result", os.MFD_CLOEXEC)
    words = [f"--control={theirs.fileno()}", f"--status={theirs.fileno()}", f"--grace={grace_s:g}"]
    words += [
        f"--caller={os.getpid()}:{procs.start_time(os.getpid()) or 0}",
        f"--leftovers={leftovers}",
    ]
    if lease is not None:
        words.append(f"--lease={lease}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the hub's thread is ready for it
            pid = os.fork()
    except OSError as error:
        ours.close()
        theirs.close()
        os.close(result)
        raise CannotStart(f"no process can be started: {error}") from error
    if not pid:
        _supervise(_Supervisor(Options(words), _Live(call, env, ends, cores, result)), ours)
    theirs.close()
    return Forked(pid, ours, result)


# -- in the copies ----------------------------------------------------------------------------------


class _Live:
    """What the body's process does."""

    def __init__(
        self,
        call: Callable[[], Any],
        env: Mapping[str, str],
        ends: Sequence[int],
        cores: Sequence[int],
        result: int,
    ) -> None:
        self._call = call
        self._env = dict(env)
        self._ends = ends
        self._cores = cores
        self._result = result

    def __call__(self) -> None:
        for number, fd in enumerate(self._ends, 1):
            os.dup2(fd, number)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        surroundings.set_environment(self._env)
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        came = self._call()
        try:
            told = _BROUGHT + Returning().dumps(came)
        except Exception as error:  # noqa: BLE001 - the value's own code ran
            kind = type(came).__name__
            told = _NOT_BROUGHT + f"{kind}: {type(error).__name__}: {error}".encode(
                errors="replace"
            )
        with open(self._result, "wb", closefd=False) as file:
            file.write(told)
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing's own children do


class _Supervisor(Shim):
    """The shim, whose command is a copy of its own process."""

    def __init__(self, options: Options, live: _Live) -> None:
        super().__init__(options, ["the action"])
        self._live = live
        self.strangers = []  # what doit had for children is not ours

    def attend_to_the_end(self) -> NoReturn:
        """Do what the shim does."""
        if not self.prepare():  # doit is gone already
            os._exit(1)
        told = self.start()
        self.attend()
        if self.raw is None or (self.options.leftovers != "keep" and self.reap()):
            Stopping(self, told).run()
        else:
            self.tell_end(told)
        self.end()

    def start(self) -> int:
        """Start the body; return a descriptor that says that nothing was wrong with its start."""
        told, tell = os.pipe2(os.O_CLOEXEC)
        self.main = os.fork()
        if not self.main:
            self._be_body()
        os.close(tell)
        self.tell(f"pid {self.me} {self.main}")
        return told

    def _be_body(self) -> NoReturn:
        status = 1
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() == self.me:
                body.reset_signals()
                for fd in (self.options.control, self.signal_fd, self.caller_fd):
                    os.close(fd)
                self._live()
                status = 0
        except BaseException:  # noqa: BLE001 - a copy of doit must not run on
            traceback.print_exc()
        finally:
            _flush()
            os._exit(status)


def _supervise(supervisor: _Supervisor, ours: socket.socket) -> NoReturn:
    try:
        ours.close()
        supervisor.attend_to_the_end()
    except BaseException:  # noqa: BLE001 - a copy of doit must not run on
        traceback.print_exc()
    finally:
        os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            continue


# -- in doit's process ------------------------------------------------------------------------------


class Forked:
    """A body's process, by the socket to its supervisor."""

    def __init__(self, supervisor: int, line: socket.socket, result: int) -> None:
        self._supervisor = supervisor
        self._line = line
        self._result = result
        self._pidfd = os.pidfd_open(supervisor)
        self._words = ""
        self._raw: int | None = None
        self.used: Used = {}
        """What it took, once its outcome is known."""
        self.pid = self._hear_pid()

    def _hear_pid(self) -> int:
        while "\n" not in self._words:
            data = self._line.recv(_LINE_BYTES)
            if not data:
                return self._supervisor
            self._words += data.decode()
        first = self._words.partition("\n")[0].split()
        return int(first[2]) if first[0] == "pid" else self._supervisor

    def fileno(self) -> int:
        """Return what is readable when it is over."""
        return self._pidfd

    def outcome(self) -> Outcome:
        """Tell how it ended."""
        self._reap()
        with open(self._result, "rb", closefd=False) as file:
            file.seek(0)  # the place in it is shared with the body, which has written
            kind, told = file.read(1), file.read()
        if kind == _BROUGHT:
            return Outcome("returned", pickle.loads(told))  # noqa: S301 - from our own process
        if kind == _NOT_BROUGHT:
            text = f"process {self.pid} returned what cannot leave it: {told.decode()}"
            return Outcome("unpicklable", error=Unpicklable(text, what="result"))
        code = None if self._raw is None else os.waitstatus_to_exitcode(self._raw)
        return Outcome(
            "died", error=BodyDied.of(f"process {self.pid}", code, stopped=False, tail="")
        )

    def _reap(self) -> None:
        if self._raw is None:
            _, self._raw, used = os.wait4(self._supervisor, 0)
            # Its own, and that of the body, for which it has waited.
            cpu_s, rss_mib = used.ru_utime + used.ru_stime, -(-used.ru_maxrss // _KIB_IN_MIB)
            self.used = {"cpu_s": cpu_s, "rss_mib": rss_mib}

    def interrupt(self) -> None:
        """Do what Ctrl-C does; the terminal's own reaches it as well."""
        self._order(b"I")

    def stop(self, grace_s: float) -> None:
        """End it and what it has started; its supervisor knows how long that may take."""
        del grace_s
        self._order(b"T")
        self._reap()

    def _order(self, order: bytes) -> None:
        try:
            self._line.send(order)
        except OSError:  # it is gone
            return

    def see_off(self, streams: Streams) -> None:
        """Nothing is left: its supervisor has seen to that."""
        del streams

    def close(self) -> None:
        """Let go of it; what lives still is ended by its supervisor, which sees our end of the line close."""
        self._line.close()
        self._reap()
        os.close(self._pidfd)
        os.close(self._result)
