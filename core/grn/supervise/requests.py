"""What the run's jobs ask of the broker, from the wish to the answer.

Promises: at most 256 requests are outstanding, sent in as few writes as can be, and no more jobs than
there are descriptors for; a request is
withdrawn when its time is up or the run is stopped, and a grant that crosses the withdrawal on its
way is given back unused if the run is stopped. Without a broker (where that is allowed) jobs start
without an allocation, as many at once as there are CPUs.
"""

from __future__ import annotations

import os
from collections import deque

from grn.errors import BrokerUnavailable
from grn.rules import outcome
from grn.supervise.job import GRN_FAILED_STATUS, NOT_GRANTED_STATUS, OVER, USAGE_STATUS, WAITING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from grn.supervise.job import Conduct, Job
    from grn.supervise.link import Link
    from grn.supervise.loop import Loop, Timer

    Message = dict[str, Any]

__all__ = ["Requests"]

_MOST = 256
_BAD_INPUT = "usage"
_CANCEL_WITHIN_S = 2.0
_BROKER_BACK_WITHIN_S = 60.0


class Requests:
    """Requests that are to be made, and those that wait.

    `granted(job, grant)` starts a job, with an empty grant where there is no broker; `over(job)` is
    called for one that will never start.
    """

    def __init__(
        self,
        loop: Loop,
        link: Link,
        conduct: Conduct,
        *,
        room: int,
        granted: Callable[[Job, Message], None],
        over: Callable[[Job], None],
    ) -> None:
        self.alone = False
        """There is no broker, and the jobs run without one."""
        self._room = room
        self._dismissed = False
        self._loop = loop
        self._link = link
        self._conduct = conduct
        self._granted = granted
        self._over = over
        self._fresh: deque[Job] = deque()
        self._waiting: dict[int, Job] = {}
        self._withdrawn: set[int] = set()
        self._last_id = 0
        self._slots = len(os.sched_getaffinity(0))
        self._asked_for = 0
        self._late_s = conduct.late_s
        self._starting = False
        self._patience: Timer | None = None

    @property
    def waiting(self) -> Sequence[Job]:
        """The jobs that wait for an answer, in the order of their requests."""
        return list(self._waiting.values())

    @property
    def need_a_broker(self) -> bool:
        """Whether it is for us to start one: not if ours was told to leave while we waited."""
        return bool(self._waiting) and not self._dismissed

    def add(self, jobs: Sequence[Job]) -> None:
        """Line jobs up; `ask()` sends their requests."""
        self._fresh.extend(jobs)

    def next_id(self) -> int:
        """Return a number that no other request of this run has."""
        self._last_id += 1
        return self._last_id

    def ask(self) -> None:
        """Send as many requests as may be outstanding."""
        if self.alone:
            self._start_alone()
            return
        messages: list[Message] = []
        while self._fresh and len(self._waiting) < _MOST and self._asked_for < self._room:
            job = self._fresh.popleft()
            self._asked_for += 1
            request_id = self.next_id()
            job.move(WAITING)
            job.asked_s = self._loop.now()
            job.reason = ""
            self._waiting[request_id] = job
            messages.append(self._message(request_id, job))
            self._set_deadline(request_id, job)
        self._late_s = 0.0
        if messages and not self._link.send(messages) and self._patience is None:
            self.lost()

    def repeat(self) -> list[Message]:
        """Return the messages that ask a new broker for what still waits."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._withdrawn.clear()
        self._dismissed = False
        return [self._message(request_id, job) for request_id, job in self._waiting.items()]

    def lost(self) -> None:
        """The broker is away: wait for another, but not for ever."""
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.later(_BROKER_BACK_WITHIN_S, self._give_up)

    def hear(self, message: Message) -> bool:
        """Take an answer in; False if it is none to a request of ours."""
        request_id = message.get("id")
        if not isinstance(request_id, int):
            return False
        if request_id in self._withdrawn:
            self._hear_late(request_id, message)
            return True
        job = self._waiting.get(request_id)
        if job is None:
            return False
        if message["op"] == "waiting":
            job.reason = str(message["reason"])
            if job.overdue:
                self._link.send([{"op": "cancel", "id": request_id}])
            return True
        if message.get("code") == "shutting-down":
            # It waits for the next broker. One that was leaving when we came is ours to replace.
            self._dismissed = self._dismissed or bool(job.reason)
            return True
        del self._waiting[request_id]
        self._settle(job, message)
        return True

    def withdraw_all(self) -> None:
        """Take back all that waits or was to be asked for: the run is being stopped."""
        waiting, self._waiting = self._waiting, {}
        self._link.send([{"op": "cancel", "id": request_id} for request_id in waiting])
        self._withdrawn.update(waiting)
        dropped = [*waiting.values(), *self._fresh]
        self._fresh.clear()
        for job in dropped:
            self._drop(job, GRN_FAILED_STATUS, "not started", outcome.CANCELLED)

    def slot_is_free(self) -> None:
        """A job that ran without an allocation has ended."""
        self._slots += 1

    def one_less(self) -> None:
        """A job that was asked for is over, so there may be room for another."""
        self._asked_for -= 1
        if self._fresh:
            self.ask()

    def _message(self, request_id: int, job: Job) -> Message:
        asked_s = job.asked_s - job.waited_s
        waits = {"asked_s": asked_s, "waited_s": self._loop.now() - asked_s}
        return {"op": "acquire", "id": request_id, **job.request, **waits}

    def _settle(self, job: Job, message: Message) -> None:
        job.waited_s += self._loop.now() - job.asked_s
        if message["op"] == "granted":
            self._granted(job, message)
        elif job.overdue and message.get("code") == "cancelled":
            self._expire(job)
        else:
            job.code = str(message.get("code") or "")
            bad_input = job.code == _BAD_INPUT
            status = USAGE_STATUS if bad_input else GRN_FAILED_STATUS
            self._drop(job, status, str(message.get("message", "refused by the broker")))
        self.ask()

    def _hear_late(self, request_id: int, message: Message) -> None:
        """Give back what was granted while our withdrawal was on its way."""
        if message["op"] == "waiting":
            return
        self._withdrawn.discard(request_id)
        if message["op"] == "granted":
            self._give_back(message)

    def hand_back(self, job: Job, grant: Message) -> None:
        """Do not start a job that was granted: the run is being stopped."""
        if grant:
            self._give_back(grant)
        self._drop(job, GRN_FAILED_STATUS, "not started", outcome.CANCELLED)

    def _give_back(self, grant: Message) -> None:
        if grant.get("nested"):
            self._link.send([{"op": "leave", "id": grant["id"]}])
        else:
            release = {"op": "release", "id": self.next_id(), "lease": grant["lease"]}
            self._link.send([{**release, "exit_code": None, "signal": None, "stopped": True}])

    def _drop(self, job: Job, status: int, problem: str, result: str = outcome.FAILED) -> None:
        if job.tries and (job.overdue or result != outcome.CANCELLED):
            job.note = f"not run again: {problem}"  # how it ended says more than why it was not
        else:
            job.fail(status, problem, result)
        job.move(OVER)
        self._over(job)

    # -- the time that a request may wait -------------------------------------------------------

    def _set_deadline(self, request_id: int, job: Job) -> None:
        job.overdue = False
        if self._conduct.wait_s is not None:
            left_s = max(0.0, self._conduct.wait_s - self._late_s)
            self._loop.later(left_s, lambda: self._is_due(request_id, job))

    def _is_due(self, request_id: int, job: Job) -> None:
        """Withdraw a request whose time is up, once the broker has looked at it at all."""
        if self._waiting.get(request_id) is not job:
            return
        job.overdue = True
        if job.reason:
            self._link.send([{"op": "cancel", "id": request_id}])
        # A broker that is away or hangs does not answer.
        patience_s = _CANCEL_WITHIN_S if self._link.up else 0.0
        self._loop.later(patience_s, lambda: self._is_overdue(request_id, job))

    def _is_overdue(self, request_id: int, job: Job) -> None:
        if self._waiting.get(request_id) is job:
            del self._waiting[request_id]
            self._withdrawn.add(request_id)
            # If it hangs, it finds this behind our request when it listens again.
            self._link.send([{"op": "cancel", "id": request_id}])
            self._expire(job)
            self.ask()

    def _expire(self, job: Job) -> None:
        reason = f": {job.reason}" if job.reason else ""
        problem = f"not granted within {self._conduct.wait_s:g} s{reason}"
        self._drop(job, NOT_GRANTED_STATUS, problem, outcome.CANCELLED)

    # -- no broker ------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """No broker came back in time: what waits fails, or runs without one."""
        self._patience = None
        jobs = [*self._waiting.values()]
        self._waiting.clear()
        if self._conduct.run_without_broker:
            self.alone = True
            self._fresh.extendleft(reversed(jobs))
            self._start_alone()
            return
        jobs += self._fresh
        self._fresh.clear()
        problem = f"the broker went away, and none came back for {_BROKER_BACK_WITHIN_S:g} s"
        if self._link.problem:
            problem += f": {self._link.problem}"
        for job in jobs:
            job.code = BrokerUnavailable.code
            self._drop(job, GRN_FAILED_STATUS, problem)

    def _start_alone(self) -> None:
        if self._starting:  # a job that could not be started has ended, and we are called again
            return
        self._starting = True
        while self._fresh and self._slots > 0:
            self._slots -= 1
            job = self._fresh.popleft()
            if job.state != WAITING:
                job.move(WAITING)
            self._granted(job, {})
        self._starting = False
