"""The shim's other path: something is to be stopped, waited for, or passed on.

    a signal            passed on to the command, unless the terminal has sent it there already
    INT, TERM, HUP      stop it as well: after an interrupt it may end by itself, for a while
    a second one        kills at once
    QUIT, USR1, USR2    are the command's own business
    the caller's death, or the end of the control descriptor: SIGTERM, grace, SIGKILL; but a command that
                        was interrupted keeps the time that it has to end by itself
    a `T` there         SIGTERM, whatever was before
    an `I` there        as an interrupt
    the main process has ended: its leftovers are stopped, waited for or kept

While the terminal is in non-canonical mode its Ctrl-C is a key of the program that runs.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from grn.supervise.loop import READABLE, Loop
from grn.supervise.stopping import Stopper
from grn.supervise.terminal import takes_keys_itself
from grn.supervise.tree import Census, Owner, send

if TYPE_CHECKING:
    from grn.shim.run import Shim

__all__ = ["Stopping"]

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_AFTER_INTERRUPT_S = 2.0
_SAME_S = 0.25  # who signals a process and its group reaches us twice, and means it once


class Stopping:
    """Attends a command to its end and beyond."""

    def __init__(self, shim: Shim, exec_fd: int) -> None:
        self._shim = shim
        self._exec_fd = exec_fd
        self._told = False
        self._loop = Loop()
        self._census = Census(shim.strangers)
        self._stopper = Stopper(self._loop, self._census, lambda: None)
        self._stopper.sweep = True
        self._owner = Owner(shim.main or -1, shim.options.lease)
        self._stopping_since: float | None = None
        self._reconsider = False
        """Whether it is a key that has interrupted, which the program may have wanted for itself."""
        self._over = False

    def run(self) -> None:
        """Return when the command and what it has started are gone, or kept on purpose."""
        shim = self._shim
        self._loop.watch(shim.signal_fd, READABLE, self._signalled)
        if shim.caller_fd >= 0:
            self._loop.watch(shim.caller_fd, READABLE, self._caller_died)
        if shim.options.control >= 0:
            self._loop.watch(shim.options.control, READABLE, self._ordered)
        self._arrived(shim.news)
        self._reaped()
        self._loop.run(lambda: self._over)

    # -- what comes up --------------------------------------------------------------------------

    def _signalled(self) -> None:
        self._arrived(self._shim.arrivals())

    def _arrived(self, signals: list[tuple[int, bool]]) -> None:
        for number, from_terminal in signals:
            if number == signal.SIGCHLD:
                self._reaped()
            elif number in _STOPPING:
                self._told_to_stop(number, from_terminal=from_terminal)
            elif not from_terminal:
                self._forward(number)

    def _told_to_stop(self, number: int, *, from_terminal: bool) -> None:
        is_key = number == signal.SIGINT and from_terminal
        if self._stopping_since is not None:
            if self._loop.now() - self._stopping_since > _SAME_S:
                self._stopper.hurry()
            return
        if is_key and self._shim.main and takes_keys_itself():
            return
        if not from_terminal and number != signal.SIGTERM:  # that goes to all of it in a moment
            self._forward(number)
        self._reconsider = is_key
        self._stop(_AFTER_INTERRUPT_S if number == signal.SIGINT else 0.0)

    def _caller_died(self) -> None:
        self._loop.unwatch(self._shim.caller_fd)
        self._abandoned()

    def _ordered(self) -> None:
        try:
            order = os.read(self._shim.options.control, 64)
        except BlockingIOError:
            return
        except OSError:
            order = b""
        if not order:
            self._loop.unwatch(self._shim.options.control)
            self._abandoned()
        elif order != b"I":
            self._terminate()
        elif self._stopping_since is None:
            self._interrupt()
            self._stop(_AFTER_INTERRUPT_S)

    def _forward(self, number: int) -> None:
        if self._shim.main:  # our child, and not reaped: its number cannot mean anything else
            os.kill(self._shim.main, number)

    def _interrupt(self) -> None:
        """Do as Ctrl-C does: a shell alone would wait for the program that it runs."""
        group = os.getpgrp()
        try:
            processes = self._processes()
        except OSError:  # nobody can say now; it is terminated in a while
            return
        for pid, start in processes.items():
            try:
                if os.getpgid(pid) == group:
                    send(pid, start, signal.SIGINT)
            except OSError:  # it has ended, or is another user's
                continue

    # -- stopping -------------------------------------------------------------------------------

    def _abandoned(self) -> None:
        """Nobody waits for the command any more."""
        self._reconsider = False
        if self._stopping_since is None:
            self._stop(0.0)

    def _terminate(self) -> None:
        """Stop now, whatever patience there was before."""
        if self._stopping_since is None:
            self._stop(0.0)
        else:
            self._stopper.press()

    def _stop(self, ask_s: float) -> None:
        self._stopping_since = self._loop.now()
        self._stopper.begin(
            self._owner,
            ask_s=ask_s,
            grace_s=self._shim.options.grace_s,
            on_gone=self._gone,
            reconsider=self._calls_off,
        )

    def _calls_off(self) -> bool:
        """Tell whether the interrupted program turns out to live on at its prompt."""
        if not self._reconsider or not self._shim.main or not takes_keys_itself():
            return False
        self._stopping_since = None
        return True

    def _reaped(self) -> None:
        some = self._shim.reap()
        if not self._shim.main:
            self._owner.main = None
        if self._shim.raw is not None and not self._told:
            self._told = True
            self._shim.tell_end(self._exec_fd)
        self._stopper.wake()
        if self._shim.raw is not None and not self._stopper.is_stopping(self._owner):
            self._leave(alone=not some)

    def _leave(self, *, alone: bool) -> None:
        """The main process has ended, and nothing is being stopped."""
        leftovers = self._shim.options.leftovers
        if leftovers == "keep" or alone:
            self._over = True
        elif leftovers == "kill":
            self._stop(0.0)
        else:  # each child's end brings us here again; who is left then may be nobody's
            self._over = not self._has_leftovers()

    def _processes(self) -> dict[int, int]:
        return self._census.take([self._owner], heir=self._owner, everywhere=False)[self._owner]

    def _has_leftovers(self) -> bool:
        try:
            return bool(self._processes())
        except OSError:  # nobody can say now
            return True

    def _gone(self, survivors: list[int]) -> None:
        self._shim.reap()
        if self._shim.raw is not None and not self._told:
            self._told = True
            self._shim.tell_end(self._exec_fd)
        if survivors:
            self._shim.tell("left " + " ".join(map(str, survivors)))
        self._over = True
