"""Giving leases back, and what the broker makes of the end of a job.

Promises: a release that was not answered before the connection ended is sent again on the next one;
a finished job waits a bounded time for the answer; without one the outcome is judged here.
"""

from __future__ import annotations

from grn.rules import outcome
from grn.supervise.job import OVER, RELEASING
from grn.supervise.retrying import following, note_attempt, tried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from grn.supervise.job import Conduct, Job
    from grn.supervise.link import Link
    from grn.supervise.loop import Loop
    from grn.supervise.report import Reporter

    Message = dict[str, Any]

__all__ = ["Releases"]

_ANSWER_WITHIN_S = 5.0  # a broker that hangs must not hold a finished job's caller
_BROKER_BACK_WITHIN_S = 1.0


class Releases:
    """Releases that are under way. `over(job)` and `again(job)` say how a job goes on."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        conduct: Conduct,
        reporter: Reporter,
        *,
        next_id: Callable[[], int],
        over: Callable[[Job], None],
        again: Callable[[Job], None],
    ) -> None:
        self._loop = loop
        self._link = link
        self._conduct = conduct
        self._reporter = reporter
        self._next_id = next_id
        self._over = over
        self._again = again
        self._pending: dict[int, Job] = {}
        self._said: set[str] = set()

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs whose release was not answered yet."""
        return list(self._pending.values())

    def release(self, job: Job) -> None:
        """Give a job's lease back: it has ended, and nothing of it will be started any more."""
        job.move(RELEASING)
        if job.tail is not None:
            job.said = outcome.stderr_says(job.tail.get())
        if job.said == outcome.BUSY and job.failed() and not job.stopped:
            job.note = "a device was busy or unavailable: no matter of memory, another may work"
        if job.lease is None:
            if job.nested is not None:
                self._link.send([{"op": "leave", "id": job.nested["id"]}])
            self._judge(job)
            return
        request_id = self._next_id()
        self._pending[request_id] = job
        sent = self._link.send([self._message(request_id, job)])
        patience_s = _ANSWER_WITHIN_S if sent else _BROKER_BACK_WITHIN_S
        self._loop.later(patience_s, lambda: self._unanswered(request_id))

    def repeat(self) -> list[Message]:
        """Return the messages that tell a new broker of the ends that nobody confirmed."""
        return [self._message(request_id, job) for request_id, job in self._pending.items()]

    def hear(self, message: Message) -> bool:
        """Take an answer in; False if it is none to a release of ours."""
        request_id = message.get("id")
        job = self._pending.pop(request_id, None) if isinstance(request_id, int) else None
        if job is None:
            return False
        if message["op"] != "released":  # a new broker does not know the lease
            self._judge(job)
            return True
        job.outcome = str(message["outcome"])
        job.peak_mib = message["peak_mib"]
        for note in message["notes"]:
            self._note(str(note))
        self._go_on(job, remedy=str(message["remedy"]), next_mib=message["next_mib"])
        return True

    def _message(self, request_id: int, job: Job) -> Message:
        return {
            "op": "release",
            "id": request_id,
            "lease": job.lease,
            "exit_code": job.exit_code,
            "signal": job.signal,
            "said_oom": job.said == outcome.MEMORY,
            "said": job.said,
            "stopped": job.stopped,
            "cpu_s": job.cpu_s,
            "rss_mib": job.rss_mib,
        }

    def _unanswered(self, request_id: int) -> None:
        job = self._pending.pop(request_id, None)
        if job is not None:
            why = "does not answer" if self._link.up else "is gone"
            self._note(f"the broker {why}: nothing was learnt of jobs that ended meanwhile")
            self._judge(job)

    def _note(self, note: str) -> None:
        """Say it to the user, once."""
        if note not in self._said:
            self._said.add(note)
            self._reporter.note(note)

    def _judge(self, job: Job) -> None:
        """Find the outcome without a broker."""
        job.outcome = outcome.classify(
            exit_code=job.exit_code,
            signal=job.signal,
            said_oom=job.said == outcome.MEMORY,
            said=job.said,
            stopped_by_us=job.stopped,
            peak_mib=None,
            booked_mib=None,
            device_nearly_full=False,
        )
        remedy = outcome.MORE if job.outcome == outcome.OOM else outcome.NOTHING
        self._go_on(job, remedy=remedy, next_mib=None)

    def _go_on(self, job: Job, *, remedy: str, next_mib: int | None) -> None:
        note_attempt(job)
        wish = None
        if not job.stopped:
            retries = self._conduct.retries_on_oom
            wish = following(job, retries=retries, remedy=remedy, next_mib=next_mib)
        if wish is not None:
            job.request.update(wish)
            job.remedy = remedy
            self._reporter.again(job)
            self._again(job)
            return
        if len(job.attempts) > 1 and job.failed():
            self._reporter.tried(job, tried(job))
        job.move(OVER)
        self._over(job)
