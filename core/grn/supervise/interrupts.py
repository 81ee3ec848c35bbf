"""What a signal to this process means for the run.

    INT, TERM, HUP   stop the run: nothing new starts, what waits is withdrawn, jobs are stopped
    a second one     kills at once what is still being stopped
    QUIT             ends what waits; the jobs get it too, and do with it what they do
    USR1, USR2       are the jobs' own business

A signal that the terminal sent has reached the jobs already, since they are in our process group;
one that came from `kill` is passed on. While the terminal is in non-canonical mode its Ctrl-C is a
key of the program that runs (a REPL at its prompt), not a wish to end it; that is asked again before
the program would be terminated, since it may have been computing when the key was pressed.
"""

from __future__ import annotations

import signal

from grn.supervise.job import RUNNING
from grn.supervise.terminal import takes_keys_itself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.supervise.loop import Loop
    from grn.supervise.requests import Requests
    from grn.supervise.running import Running
    from grn.supervise.signals import Arrival

__all__ = ["Interrupts"]

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_AFTER_INTERRUPT_S = 2.0
_SAME_S = 0.25  # who signals a process and its group reaches us twice, and means it once


class Interrupts:
    """Turns arrived signals into steps of the run. `by` is the signal that is ending it."""

    def __init__(self, loop: Loop, requests: Requests, running: Running, *, single: bool) -> None:
        self.by: int | None = None
        self._stopping_since: float | None = None
        self._loop = loop
        self._requests = requests
        self._running = running
        self._single = single

    def arrived(self, arrival: Arrival) -> None:
        """Act on one signal."""
        if arrival.number in _STOPPING:
            self._stopping(arrival)
            return
        if not arrival.from_terminal:
            self._running.forward(arrival.number)
        if arrival.number == signal.SIGQUIT and (not self._single or not self._running.jobs):
            self.by = self.by or arrival.number
            self._requests.withdraw_all()

    def stop_all(self, number: int, *, ask_s: float) -> None:
        """Start nothing any more, and stop all that runs."""
        self.by = number
        self._stopping_since = self._loop.now()
        self._requests.withdraw_all()
        self._running.sweep()
        reconsider = self._calls_off if self._single and ask_s else _never
        for job in self._running.jobs:
            self._running.stop(job, ask_s=ask_s, reconsider=reconsider)

    def _stopping(self, arrival: Arrival) -> None:
        if self._stopping_since is not None:
            if self._loop.now() - self._stopping_since > _SAME_S:
                self._running.hurry()
            return
        is_key = arrival.number == signal.SIGINT and arrival.from_terminal
        if is_key and self._single and self._running.jobs and takes_keys_itself():
            return
        # TERM goes to every process of the job in a moment.
        if not arrival.from_terminal and arrival.number != signal.SIGTERM:
            self._running.forward(arrival.number)
        by_key = _AFTER_INTERRUPT_S if arrival.number == signal.SIGINT else 0.0
        self.stop_all(arrival.number, ask_s=by_key)

    def _calls_off(self) -> bool:
        """Tell whether the interrupted program turns out to live on at its prompt."""
        if not takes_keys_itself():
            return False
        for job in self._running.jobs:
            if job.state != RUNNING:
                return False
            job.stopped = False
        self.by = self._stopping_since = None
        return True


def _never() -> bool:
    return False
