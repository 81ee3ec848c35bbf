"""Signals as events: blocked, then read from a descriptor together with where they came from.

Design note. A handler cannot tell a Ctrl-C (which the terminal sent to our child as well) from a
`kill` (which only we got); `siginfo` can. So the signals that end or steer a job are blocked and
come through a signalfd. What was ignored or blocked when we started is left alone: `nohup` and
shell scripts rely on it. SIGTSTP, SIGCONT and the rest of job control keep their default action.

What Python changes at its own start (it ignores SIGPIPE and SIGXFSZ, and handles SIGINT) is set
back to the default and blocked instead: for us a failed write is still an error, and a child has
nothing to undo between fork and exec but the mask.
"""

from __future__ import annotations

import os
import resource
import signal
import struct

from grn.supervise.kernel import open_signalfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["Arrival", "Signals", "die_by"]

_STEERING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_INFO = struct.Struct("@Iii")  # ssi_signo, ssi_errno, ssi_code, and more up to 128 bytes
_INFO_BYTES = 128
_SI_KERNEL = 0x80


class Arrival:
    """One signal that came in; `from_terminal`: the kernel sent it, to our children as well."""

    __slots__ = ("from_terminal", "number")

    def __init__(self, number: int, code: int) -> None:
        self.number = number
        self.from_terminal = code == _SI_KERNEL


class Signals:
    """Takes the steering signals and SIGCHLD over, for the rest of this process's life.

    `window`: also the one that tells of another size of the terminal.
    """

    def __init__(self, *, window: bool = False) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        ignored = {number for number in _STEERING if signal.getsignal(number) == signal.SIG_IGN}
        self.taken = {signal.SIGCHLD, *_STEERING} - ignored - (blocked - {signal.SIGCHLD})
        if window:
            self.taken.add(signal.SIGWINCH)
        self._mask_before = blocked
        signal.pthread_sigmask(signal.SIG_BLOCK, {*self.taken, *_CHANGED_BY_PYTHON})
        for number in {*self.taken, *_CHANGED_BY_PYTHON} - {signal.SIGCHLD}:
            signal.signal(number, signal.SIG_DFL)
        # An ignored SIGCHLD would let the kernel drop the exit statuses that we live on.
        self._child_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.fd = open_signalfd(self.taken)

    def read(self) -> list[Arrival]:
        """Return what has arrived since the last call."""
        arrivals: list[Arrival] = []
        while True:
            try:
                data = os.read(self.fd, _INFO_BYTES * 16)
            except BlockingIOError:
                return arrivals
            for offset in range(0, len(data), _INFO_BYTES):
                number, _, code = _INFO.unpack_from(data, offset)
                arrivals.append(Arrival(number, code))

    def steering_pending(self) -> bool:
        """Tell whether a signal that steers the run has arrived and was not read yet."""
        return bool(signal.sigpending() & (self.taken - {signal.SIGCHLD}))

    def restore_in_child(self) -> None:
        """Undo, between fork and exec, what is not undone by exec."""
        if self._child_before == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)


def die_by(number: int) -> NoReturn:
    """End this process by a signal, without a core file of ours; a shell then shows 128 + n."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    # Process 1 of a container is not killed by signals that it has no handler for.
    os._exit(128 + number)
