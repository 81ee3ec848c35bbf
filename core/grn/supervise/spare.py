"""Descriptors kept back for the moment when there are no others left.

Looking at processes and signalling them takes descriptors, and a run that has none left must still
be able to stop its jobs.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Spare"]

_KEPT = 3  # a pidfd, and what reading of a process in /proc opens at once


class Spare:
    """A context within which some descriptors are free, as far as the limit of this process goes."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._depth = 0
        self._keep()

    def __enter__(self) -> None:
        """Give them up."""
        self._depth += 1
        while self._fds:
            os.close(self._fds.pop())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take them back: nothing that was opened in between is open any more."""
        self._depth -= 1
        if not self._depth:
            self._keep()

    def _keep(self) -> None:
        try:
            while len(self._fds) < _KEPT:
                self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # the machine has none left; we do with what we have
            return
