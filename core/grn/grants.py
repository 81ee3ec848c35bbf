"""What goes between a process's hub and who asks: questions under way, and what was granted.

Must not: know a connection, or wait for anything but an answer.
"""

from __future__ import annotations

import os
import threading
import time

from grn.errors import GrnError, from_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypedDict

    from grn.hub import Hub

    Message = dict[str, Any]

    class Ending(TypedDict, total=False):
        """How a job ended, in the words of a release."""

        exit_code: int | None
        signal: int | None
        said: str
        said_oom: bool
        stopped: bool
        cpu_s: float | None
        rss_mib: int | None

    class Used(TypedDict, total=False):
        """What a job's processes took: seconds of CPU, and the largest resident memory of one."""

        cpu_s: float
        rss_mib: int


__all__ = ["Grant", "Pending"]


class Grant:
    """What was granted: the broker's words, and in which process."""

    __slots__ = ("affinity", "hub", "message", "pid")

    def __init__(self, hub: Hub, message: Message, *, affinity: bool = False) -> None:
        self.hub = hub
        self.message = message
        self.affinity = affinity
        """Whether cores of one's own were asked for."""
        self.pid = os.getpid()

    @property
    def lease(self) -> str:
        """The lease's id; of a nested grant that of the outer job."""
        return str(self.message["lease"])

    @property
    def nested(self) -> bool:
        """Whether it is a part of the lease of an outer job."""
        return bool(self.message["nested"])

    @property
    def devices(self) -> list[dict[str, Any]]:
        """Index, UUID, model, total and booked MiB of each device."""
        devices: list[dict[str, Any]] = self.message["devices"]
        return devices

    @property
    def cores(self) -> list[int]:
        """The cores to bind to, if some were asked for; of a nested grant those of the outer job."""
        cores: list[int] = (self.message.get("cores") or []) if self.affinity else []
        return cores

    def __repr__(self) -> str:
        return f"Grant({self.lease!r}, devices={[d['index'] for d in self.devices]})"


class Pending:
    """A question that was asked. A thread waits for its answer, an event loop is called back."""

    def __init__(self, request_id: int, message: Message) -> None:
        self.id = request_id
        self.message = message
        self.asked_s = time.monotonic()
        self.reason = ""
        """Why it is not granted yet, as the broker said last."""
        self.unwanted = False
        """Nobody waits any more: a grant that comes all the same is given back."""
        self.answer: Message | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._then: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the answer; `False` if it is not there in time."""
        return self._done.wait(timeout_s)

    def when_done(self, then: Callable[[], None]) -> None:
        """Have `then` called once: by the reading thread, or at once if the answer is there.

        It must not use the hub: the thread that calls it holds the hub's lock.
        """
        self._then = then
        if self._done.is_set():
            self._call_back()

    def result(self) -> Message:
        """Return the answer.

        Raises:
            GrnError: what the broker's refusal or error says.
        """
        if isinstance(self._error, GrnError):  # one of its own for each who waits
            raise from_code(self._error.code, self._error.message) from self._error
        if self._error is not None:
            raise self._error
        answer = self.answer or {}
        if answer["op"] in ("refused", "error"):
            raise from_code(answer["code"], answer["message"])
        return answer

    def settle(self, answer: Message | None, error: BaseException | None = None) -> None:
        """Take the answer in, or why there will be none."""
        self.answer, self._error = answer, error
        self._done.set()
        self._call_back()

    def _call_back(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
