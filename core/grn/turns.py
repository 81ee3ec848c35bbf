"""One request of a workflow engine, from the question to the grant.

The engines' threads wait here: told once why they wait, woken by the answer or by whoever withdraws
them, never by a clock. Promises: a turn that was withdrawn holds nothing afterwards, also where the
grant crossed the withdrawal on its way; a thread that is interrupted leaves nothing behind either.

Must not: decide anything about who gets what.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from grn.errors import Cancelled
from grn.hub import CANCEL_WITHIN_S, shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grn.grants import Grant, Pending

__all__ = ["Turn"]

_UNHEARD = "no broker has answered yet"


class Turn:
    """Waits for one grant. `grant` is called by one thread, everything else by any.

    Args:
        message: what is asked for, an `acquire` in the words of the wire: see `grn.wishes.Wish.request`.
        wait_s: give up after so long.
        waits: called once with the broker's reason, by the waiting thread, if it still waits after
            `waits_after_s`.
        waits_after_s: a short wait is not worth a word.
    """

    def __init__(
        self,
        message: Mapping[str, Any],
        *,
        wait_s: float | None = None,
        waits: Callable[[str], None] | None = None,
        waits_after_s: float = 2.0,
    ) -> None:
        self._message = dict(message)
        self._wait_s = wait_s
        self._waits = waits
        self._waits_after_s = waits_after_s
        self._woken = threading.Event()
        self._withdrawn = ""
        self._pending: Pending | None = None
        self._hub = shared()

    @property
    def reason(self) -> str:
        """Why it is not granted yet, as the broker said last."""
        return self._pending.reason if self._pending is not None else ""

    def withdraw(self, why: str = "its caller was asked to stop") -> None:
        """Have `grant` raise `Cancelled` at once; nothing if it has returned already."""
        self._withdrawn = self._withdrawn or why
        self._woken.set()

    def grant(self) -> Grant:
        """Ask, and wait for the grant.

        Raises:
            Impossible: if this machine can never meet it.
            WaitExpired: if it was not granted within `wait_s`.
            Cancelled: if it was withdrawn.
            BrokerUnavailable: if there is no broker, and none can be started.
        """
        if self._pending is None:
            self._refuse_withdrawn()
        pending = self.ask()
        try:
            pending.when_done(self._woken.set)
            answered = self._answered(pending)
            self._refuse_withdrawn()
            if not answered:
                self._hub.withdraw(pending)
                pending.wait(CANCEL_WITHIN_S)  # a grant that is on its way is taken
            return self._hub.grant_of(pending, self._wait_s)
        except BaseException:  # also Ctrl-C: a grant must not be left to nobody
            self._hub.abandon(pending)
            raise

    def ask(self) -> Pending:
        """Ask without waiting, for who must ask in a certain order; `grant` is to be called next."""
        if self._pending is None:
            self._pending = self._hub.ask(self._message)
        return self._pending

    def _answered(self, pending: Pending) -> bool:
        """Wait until it is answered, withdrawn or expired; whether it is answered."""
        begun = time.monotonic()
        if self._waits is not None and not self._woken.wait(self._first_wait_s()):
            left = self._left_s(begun)
            if left is None or left > 0:
                self._waits(pending.reason or _UNHEARD)
        self._woken.wait(self._left_s(begun))
        return pending.done

    def _first_wait_s(self) -> float:
        return (
            self._waits_after_s if self._wait_s is None else min(self._waits_after_s, self._wait_s)
        )

    def _left_s(self, begun: float) -> float | None:
        return None if self._wait_s is None else max(0.0, begun + self._wait_s - time.monotonic())

    def _refuse_withdrawn(self) -> None:
        if self._withdrawn:
            raise Cancelled(f"the request was withdrawn: {self._withdrawn}")
