"""Keeps the rules informed of whether an MPS daemon answers.

Looked for only while requests wait, so an idle broker sleeps on. A look is one `stat`, at most once a
second; a daemon that is new, or that last answered a while ago, is asked in a process of its own,
and grants go on meanwhile by what was known.

Must not: wait for a daemon while serving. Before that, at the start, it is waited for: the first job
may be the only one.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from grn import procs
from grn.mps import daemon as mps
from grn.rules import events as ev

if TYPE_CHECKING:
    import asyncio

    from grn.broker.core import BrokerCore

__all__ = ["MpsWatch"]

_LOOK_EVERY_S = 1.0
_ASK_AGAIN_S = 30.0
log = logging.getLogger("grn.broker")


class MpsWatch:
    """What is known of the daemon at one pipe directory."""

    def __init__(self, core: BrokerCore, folder: str) -> None:
        self.masked = True
        """Whether the daemon may number devices in a way of its own."""
        self._core = core
        self._folder = folder
        self._looked_s = self._asked_s = float("-inf")
        self._asked: mps.Daemon | None = None
        self._answers: mps.Daemon | None = None
        self._process: tuple[int, int] | None = None
        self._question: mps.Question | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def ask_at_once(self) -> None:
        """Look, and wait for the answer."""
        found = mps.find(self._folder)
        self._looked_s = time.monotonic()
        if found is not None:
            self._asked, self._asked_s = found, self._looked_s
            self._heard(found, answers=mps.ask(self._folder, os.environ))

    def look(self) -> None:
        """See whether what is known still holds; ask if it may not."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        found = mps.find(self._folder)
        if self._answers is not None and (found != self._answers or self._is_dead()):
            self._tell(None)
        if found is None or self._question is not None:
            return
        if found != self._asked or now - self._asked_s > _ASK_AGAIN_S:
            self._ask(found, now)

    def _is_dead(self) -> bool:
        """Whether its process was seen and has ended; what cannot be seen may live."""
        return self._process is not None and not procs.is_alive(*self._process)

    def _ask(self, found: mps.Daemon, now: float) -> None:
        self._asked, self._asked_s = found, now
        try:
            question = self._question = mps.Question(self._folder, os.environ)
        except OSError as error:
            log.info("mps-not-asked folder=%s reason=%r", self._folder, error.strerror)
            self._heard(found, answers=False)
            return
        loop = self._core.loop
        loop.add_reader(question.fileno(), self._over)
        self._deadline = loop.call_later(mps.DEADLINE_S, self._over)

    def _over(self) -> None:
        answers = self._end_question()
        if self._asked is not None:
            self._heard(self._asked, answers=answers)
            self._core.settle()

    def _end_question(self) -> bool:
        question, self._question = self._question, None
        if self._deadline is not None:
            self._deadline.cancel()
        if question is None:
            return False
        self._core.loop.remove_reader(question.fileno())
        return question.answered()

    def _heard(self, found: mps.Daemon, *, answers: bool) -> None:
        self._tell(found if answers and mps.find(self._folder) == found else None)

    def _tell(self, daemon: mps.Daemon | None) -> None:
        if daemon == self._answers:
            return
        self._answers = daemon
        if daemon is None:
            self._core.step(ev.MpsSeen(self._core.now(), ""))
            return
        self.masked = daemon.may_be_masked()
        self._process = daemon.process()
        self._core.step(ev.MpsSeen(self._core.now(), daemon.folder, daemon.uid))

    def close(self) -> None:
        """Ask no more."""
        self._end_question()
