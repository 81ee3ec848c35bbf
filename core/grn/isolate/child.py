"""The caller's hold on one process that runs a call.

Promises: nothing is handed out before the process is gone; waiting costs no thread and no polling
(`fileno()` is readable when the process is gone, so any event loop can wait for it). Whoever drops
a child that still runs, has it killed: nobody could have its result. A child keeps one descriptor
until it is closed or dropped; use it as a context manager.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from grn.errors import UsageError
from grn.isolate import body, failure, parcel
from grn.isolate.errors import BodyDied, CannotStart, StillRunning, Unpicklable
from grn.isolate.zygote import ENDED

if TYPE_CHECKING:
    import socket
    from types import TracebackType

    from grn.grants import Used
    from grn.isolate.family import Family

__all__ = ["Child", "Outcome", "Tail"]

_TAIL_BYTES = 4096
_KIB_IN_MIB = 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: a value, or the error that `Child.result` raises.

    "raised" is the body's own exception, SystemExit and KeyboardInterrupt included; the errors of
    the other kinds are `BodyDied`, `Unpicklable` and `CannotStart`.
    """

    kind: Literal["returned", "raised", "died", "unpicklable", "not-started"]
    value: Any = None
    error: BaseException | None = None


class Tail:
    """The end of what is written to a file from now on; nothing for a pipe or a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = -1
        try:
            if os.path.isfile(f"/proc/self/fd/{fd}"):
                self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
                self._from = os.fstat(self._fd).st_size
        except OSError:  # not ours to read
            self._fd = -1

    def read(self) -> str:
        """Return it."""
        if self._fd < 0:
            return ""
        size = os.fstat(self._fd).st_size
        at = max(self._from, size - _TAIL_BYTES)
        return os.pread(self._fd, _TAIL_BYTES, at).decode(errors="replace").strip()

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Child:
    """A process that runs a call. Made by `ForkServer.run`."""

    def __init__(
        self,
        pid: int,
        start: int,
        name: str,
        *,
        pidfd: int,
        line: socket.socket,
        result: int,
        tail: Tail,
        family: Family,
    ) -> None:
        self.pid = pid
        self.start = start
        """When it began, in clock ticks since boot: with the pid, its identity."""
        self.name = name
        self.stopped = False
        """Whether `stop` was called before it was gone."""
        self._pidfd = pidfd
        self._line = line
        self._result = result
        self._tail = tail
        self._family = family
        self._maker = os.getpid()
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._exit_code: int | None = None
        self.used: Used = {}
        """What the process took, in the words of a release, once `outcome` has returned: `cpu_s` and
        `rss_mib`, its own and that of its children that it waited for. Nothing if it is not known."""

    def __repr__(self) -> str:
        state = "running" if self._outcome is None else self._outcome.kind
        return f"<Child {self.pid} {self.name!r} {state}>"

    # -- waiting --------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process is gone.

        It stays open until `close`.

        Raises:
            ValueError: the child has been closed.
        """
        if self._pidfd < 0:
            raise ValueError(f"child {self.pid} has been closed")
        return self._pidfd

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the process is gone; False if it is not in time."""
        if self._outcome is not None:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        timeout_ms = None if timeout_s is None else math.ceil(max(timeout_s, 0) * 1000)
        return bool(poll.poll(timeout_ms))

    def outcome(self, timeout_s: float | None = None) -> Outcome:
        """Wait until the process is gone and return how the call ended.

        Raises:
            UsageError: it was started by the process that this one was forked from.
            ValueError: it has been closed before it was asked.
            StillRunning: it is not gone in time.
        """
        if self._maker != os.getpid():
            raise UsageError(f"{self._who()} belongs to process {self._maker}, not to its forks")
        if not self.wait(timeout_s):
            raise StillRunning(f"{self._who()} still runs after {timeout_s:g} s")
        with self._lock:
            if self._outcome is None:
                self._exit_code = self._hear_end()
                if self._exit_code is None:  # the server was killed, so nobody saw to the rest
                    self._family.stop(0, lambda _: True)
                self._outcome = self._take()
                self._let_go()
        return self._outcome

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait until the process is gone; return what the function returned.

        Raises:
            BaseException: what the function raised, with the text of its traceback as a note.
            BodyDied: the process ended before it returned a result.
            Unpicklable: the call, its result or its exception could not travel.
            CannotStart: it could not be given its folder or CPUs.
            StillRunning: it is not gone in time.
        """
        outcome = self.outcome(timeout_s)
        if outcome.error is None:
            return outcome.value
        try:
            raise outcome.error
        finally:
            del self, outcome  # or the traceback would keep us, and our descriptor, in a cycle

    @property
    def exit_code(self) -> int | None:
        """How the process ended, once `outcome` has returned: status, or minus the signal.

        None: it is not known, as its fork server was killed.
        """
        return self._exit_code

    def _who(self) -> str:
        return f"process {self.pid}" + (f" ({self.name})" if self.name else "")

    def _hear_end(self) -> int | None:
        try:
            message = self._line.recv(ENDED.size)
        except ConnectionResetError:
            return None
        if not message:
            return None
        _, status, cpu_s, rss_kib = ENDED.unpack(message)
        self.used = {"cpu_s": cpu_s, "rss_mib": -(-rss_kib // _KIB_IN_MIB)}
        return os.waitstatus_to_exitcode(status)

    def _take(self) -> Outcome:
        back = parcel.read(self._result)
        if back is None:
            tail = self._tail.read()
            died = BodyDied.of(self._who(), self._exit_code, stopped=self.stopped, tail=tail)
            return Outcome("died", error=died)
        try:
            value = back.load(mapped=parcel.MAPPING_IS_FREE)
        except Exception as error:  # noqa: BLE001 - the value's own code ran
            return _unpicklable(
                "result", f"the result of {self._who()} cannot be rebuilt here: {_text(error)}"
            )
        return self._understood(back.kind, value)

    def _understood(self, kind: int, value: Any) -> Outcome:
        who = self._who()
        if kind == body.RETURNED:
            return Outcome("returned", value)
        if kind == body.RAISED:
            error = failure.restore(value, who)
            if isinstance(error, Unpicklable) and error.what == "exception":
                return Outcome("unpicklable", error=error)
            return Outcome("raised", error=error)
        if kind == body.UNPICKLABLE:
            return _unpicklable("result", f"{who} returned what cannot leave it: {value}")
        if kind == body.NOT_REBUILT:
            text = f"{who} cannot rebuild the function or its arguments: {value}"
            return _unpicklable("arguments", text)
        return Outcome("not-started", error=CannotStart(f"{who} cannot be set up: {value}"))

    # -- ending ---------------------------------------------------------------------------------

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Send the process a signal; nothing if it is gone. What it has started gets none."""
        with self._lock:
            if self._pidfd < 0 or self._outcome is not None:
                return
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return

    def stop(self, grace_s: float = 10.0) -> list[int]:
        """End it and all that it has started: SIGTERM, and SIGKILL after the grace.

        Also what a process that is gone has left behind. Returns the pids of those that survived:
        another user's, or stuck in a driver.
        """
        self.stopped = self.stopped or not self._wait_a_little(0)
        return self._family.stop(grace_s, self._wait_a_little)

    def left(self) -> list[int]:
        """Return the pids of what it has started that lives, and its own if it lives."""
        return sorted(self._family.find())

    def _wait_a_little(self, seconds: float) -> bool:
        return self._pidfd < 0 or self.wait(seconds)

    def close(self) -> None:
        """Let go of it; if it still runs, it and all that it has started is killed first."""
        if self._pidfd < 0:
            return
        if self._maker == os.getpid() and not self.wait(0):
            self.stop(0)
        self._let_go()
        with self._lock:
            pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)

    def _let_go(self) -> None:
        self._line.close()  # the server kills a process that has lost its line
        self._tail.close()
        fd, self._result = self._result, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Must not wait: closing the line has the server kill what still runs.
        if getattr(self, "_pidfd", -1) >= 0:
            self._let_go()
            os.close(self._pidfd)
            self._pidfd = -1


def _unpicklable(what: str, message: str) -> Outcome:
    return Outcome("unpicklable", error=Unpicklable(message, what=what))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
