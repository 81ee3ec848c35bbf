"""`grn top` on a terminal: waits for the broker and for keys, and draws when either says something.

The broker pushes what has changed; nobody asks it. Once a second what a clock moves is drawn anew,
and a broker that has gone is looked for. Signals come as bytes on a socket, so that they are handled
between two frames and not within one; only Ctrl-C ends at once, whatever is waited for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from dataclasses import replace

from grn.cli.top.frame import Seen, draw
from grn.cli.top.keys import Keyboard
from grn.cli.top.view import press
from grn.errors import BrokerUnavailable, GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from grn.cli.top.look import Glyphs
    from grn.cli.top.screen import Screen
    from grn.cli.top.view import View
    from grn.watching import Watch

__all__ = ["Ended", "live"]

_TICK_S = 1.0
_HANDLED = (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT)


class Ended(Exception):  # noqa: N818 - it is what happened, no error
    """A signal asked us to leave."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number


def live(
    watch: Watch, view: View, screen: Screen, glyphs: Glyphs, *, again: Callable[[], Watch]
) -> None:
    """Show what a broker does until the person has had enough; `again` connects to the next broker.

    Raises:
        Ended: SIGTERM or SIGHUP; the terminal is as it was.
    """
    with _signals() as heard, screen.taken():
        _Live(watch, view, screen, glyphs, again).run(heard)


class _Live:
    def __init__(
        self,
        watch: Watch,
        view: View,
        screen: Screen,
        glyphs: Glyphs,
        again: Callable[[], Watch],
    ) -> None:
        self._watch: Watch | None = watch
        self._again = again
        self._view = view
        self._screen = screen
        self._glyphs = glyphs
        self._keyboard = Keyboard()
        self._seen: Seen | None = None
        self._most: Mapping[str, int] = {}
        self._names = _Names()

    def run(self, heard: socket.socket) -> None:
        poll = select.poll()
        poll.register(heard, select.POLLIN)
        poll.register(self._screen.fileno(), select.POLLIN)
        try:
            self._listen()
            while not self._view.over:
                self._draw()
                self._wait(poll, heard)
        finally:
            if self._watch is not None:
                self._watch.close()

    def _wait(self, poll: select.poll, heard: socket.socket) -> None:
        """Sleep until something is told, typed, signalled, or a second is over; take it in."""
        watch = self._watch
        if watch is not None:
            poll.register(watch.fileno(), select.POLLIN)
        ready = {fd for fd, _ in poll.poll(1000 * (_TICK_S - time.time() % _TICK_S) + 1)}
        if watch is not None:
            poll.unregister(watch.fileno())
        if heard.fileno() in ready:
            self._signalled(heard.recv(64))
        if self._screen.fileno() in ready:
            self._typed(self._screen.read())
        if watch is None:
            self._look_for_a_broker()
        elif watch.fileno() in ready:
            self._listen()

    def _draw(self) -> None:
        if self._seen is not None:
            width, height = self._screen.size
            frame = draw(self._seen, self._view, width, height, time.time(), self._glyphs)
            self._most = frame.most
            self._screen.show(frame.lines)

    # -- what comes in ------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take in all that the broker has told; only the last state counts.

        Also right after a connection was made: the first state may have come with the greeting, and
        then nothing more is to be read.
        """
        try:
            while self._watch is not None and (told := self._watch.next(0)) is not None:
                kind, status = told
                if kind == "status":
                    self._seen = Seen(status, time.time(), "", self._names.of(status))
        except BrokerUnavailable:
            self._lost()

    def _lost(self) -> None:
        """Go on showing the last state, and say since when there is no other one."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        said = time.strftime("the broker has left at %H:%M:%S; waiting for the next one")
        if self._seen is not None:
            self._seen = replace(self._seen, gone=said)

    def _look_for_a_broker(self) -> None:
        try:
            self._watch = self._again()
            self._listen()
        except BrokerUnavailable:
            return
        except GrnError as error:  # one that is older than this one
            if self._seen is not None:
                self._seen = replace(self._seen, gone=error.message)

    def _typed(self, data: bytes) -> None:
        if not data:
            raise Ended(signal.SIGHUP)  # the terminal is gone
        for key in self._keyboard.feed(data):
            self._view = press(self._view, key, self._most)

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGHUP):
                raise Ended(signal.Signals(number))
            if number == signal.SIGTSTP:
                self._stop()

    def _stop(self) -> None:
        """Give the terminal back, stop as the shell wants, and go on with the terminal."""
        self._screen.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._screen.take()


class _Names:
    """Users' names, looked up once each: that may mean to ask another machine."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, status: Mapping[str, Any]) -> Mapping[int, str]:
        return names_of(status, self._known)


def names_of(status: Mapping[str, Any], known: dict[int, str] | None = None) -> dict[int, str]:
    """Return the names of all users that a state of the books has, by their numbers."""
    import pwd  # noqa: PLC0415 - not for who does not look

    known = {} if known is None else known
    for entries in (status["leases"], status["waiters"]):
        for entry in entries:
            uid = entry.get("uid")
            if uid is not None and uid not in known:
                try:
                    known[uid] = pwd.getpwuid(uid).pw_name
                except KeyError:
                    known[uid] = str(uid)
    return known


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Have signals come as bytes on a socket, and in the end what they did before."""
    ours, kernels = socket.socketpair()
    ours.setblocking(False)
    kernels.setblocking(False)
    wakeup = signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, _nothing) for number in _HANDLED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupted)
    try:
        yield ours
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        ours.close()
        kernels.close()


def _nothing(*_: object) -> None:
    """Take part in the signal, so that it is told on the socket."""


def _interrupted(*_: object) -> None:
    """End, but only once: a second Ctrl-C must not keep the terminal from being given back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
