"""To watch a broker: what happens, as it happens, and the state of the books when it changes.

    with Watch(status_every_s=1.0) as watch:
        for kind, told in watch:  # ("event", {…}) or ("status", {…})
            …

Events are those that `grn events` prints, see docs/events.md; a status is that of `grn status --json`.
Nobody is asked again and again: the broker pushes.
"""

from __future__ import annotations

import time

from grn.connection import connect
from grn.errors import BrokerSilent, from_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, Literal

    Kind = Literal["event", "status"]
    Told = tuple[Kind, dict[str, Any]]

__all__ = ["Watch"]

_ANSWER_WITHIN_S = 30.0
_PAGED = ("leases", "waiters", "recent")


class Watch:
    """A connection on which a broker tells what happens. A context manager, and an iterator.

    Args:
        socket: the broker's socket; `None`: as the settings say.
        events: tell of all that happens.
        status_every_s: tell the state of the books, at most so often, when it has changed; the
            first time at once. `None`: never.
        since: begin with what came after the event of this number, as far as it is still known.

    Attributes:
        seq: the number of the last event before those that are told from now on.
        missed: how many events after `since` are not known any more; `None`: nobody knows, since
            the number is another broker's. An event `gap` says it, too.
        broker: the pid of the broker, and `since` when it runs (seconds since 1970).

    Raises:
        BrokerUnavailable: no broker runs.
        BrokerSilent: it does not answer.
        UsageError: nothing is asked for.
        ProtocolError: it is of an older version and cannot be watched.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        events: bool = True,
        status_every_s: float | None = None,
        since: int | None = None,
    ) -> None:
        from grn.settings import load  # noqa: PLC0415 - as all clients do

        settings = load()
        settings.socket = socket or settings.socket
        self._connection = connect(settings)
        self._status: dict[str, Any] | None = None
        wish = {"events": events, "status_every_s": status_every_s, "since": since}
        try:
            answer = self._begin(wish)
        except BaseException:
            self._connection.close()
            raise
        self.seq: int = answer["seq"]
        self.missed: int | None = answer["missed"]
        self.broker: dict[str, Any] = answer["broker"]

    def _begin(self, wish: dict[str, Any]) -> dict[str, Any]:
        connection = self._connection
        connection.send({"op": "watch", "id": connection.next_id(), **wish})
        answer = connection.recv(_ANSWER_WITHIN_S)
        if answer is None:
            raise BrokerSilent(
                f"the broker at {connection.path} has not answered for {_ANSWER_WITHIN_S:g} s: is it"
                " stopped or very busy?"
            )
        if answer["op"] != "watched":
            raise from_code(str(answer.get("code")), str(answer.get("message")))
        return answer

    def fileno(self) -> int:
        """Return the descriptor to wait on; when it is readable, call `next(0)` until `None`."""
        return self._connection.fileno()

    def next(self, timeout_s: float | None = None) -> Told | None:
        """Return what is told next; `None`: nothing was within the time.

        Raises:
            BrokerGone: the broker has left.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            message = self._connection.recv(left)
            if message is None:
                return None
            if message["op"] == "event":
                return "event", message["event"]
            if message["op"] == "status":
                status = self._paged(message)
                if status is not None:
                    return "status", status

    def _paged(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Put the pages of a status together; `None` while there are more."""
        page: dict[str, Any] = message["status"]
        if self._status is None:
            self._status = page
        else:
            for key in _PAGED:
                self._status[key] += page[key]
        if message["more"]:
            return None
        whole, self._status = self._status, None
        return whole

    def __iter__(self) -> Iterator[Told]:
        """Go on until the broker has left, which raises `BrokerGone`."""
        while True:
            told = self.next()
            if told is not None:
                yield told

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self is too heavy here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
