"""A run: its jobs, their requests, processes and ends, on one event loop.

Design note. Everything that happens is one of four: a message from the broker, a signal (the end of
a child is one), bytes from a job, a timer. Each moves one job along the states of `job.py`; the
parts of a run (`Requests`, `Running`, `Releases`) each own a stretch of that way and hand the job
on. All requests are sent at the start, since a broker that knows them all can divide the CPUs; each
grant starts its job at once.

When the connection to the broker ends, running jobs go on. On a new one we say which leases live,
send the releases that nobody confirmed and ask again for what waits, in one write.

Promises: nothing is started after a signal told us to stop; a lease is released only after its job
has ended; the run does not wait for a background process that merely holds a pipe.
Must not decide what the whole run's exit status is, nor how anything looks.
"""

from __future__ import annotations

import signal

from grn.supervise.interrupts import Interrupts
from grn.supervise.job import OVER
from grn.supervise.kernel import become_subreaper
from grn.supervise.link import Link
from grn.supervise.loop import READABLE
from grn.supervise.releases import Releases
from grn.supervise.requests import Requests
from grn.supervise.running import Running, started
from grn.supervise.spawn import Spawner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from grn.connection import Connection
    from grn.settings import Settings
    from grn.supervise.job import Conduct, Job
    from grn.supervise.loop import Loop
    from grn.supervise.outputs import Outputs
    from grn.supervise.report import Reporter
    from grn.supervise.signals import Signals

__all__ = ["Batch"]

_NOTICE_AFTER_S = 2.0
_LINGER_S = 0.1


class Batch:
    """One job (`single`), or several, under supervision.

    After `run()` the jobs tell how they ended, and `interrupted` which signal stopped the run.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        conduct: Conduct,
        settings: Settings,
        *,
        loop: Loop,
        signals: Signals,
        outputs: Outputs,
        reporter: Reporter,
        single: bool,
    ) -> None:
        self._jobs = jobs
        self._loop = loop
        self._signals = signals
        self._outputs = outputs
        outputs.on_broken = self._output_broke
        self._reporter = reporter
        self._left = len(jobs)
        self.lost_output = False
        """Something that a job wrote could not be written, for want of room say."""
        self._abandoned = False
        self._closing = False
        self._link = Link(
            loop,
            settings,
            heard=self._heard,
            lost=self._lost,
            back=self._back,
            wants_broker=lambda: self._requests.need_a_broker,
        )
        spawner = Spawner(signals)
        if not single:
            spawner.raise_file_limit()
        self._requests = Requests(
            loop,
            self._link,
            conduct,
            room=spawner.room(),
            granted=self._granted,
            over=self._over,
        )
        self._running = Running(
            loop, self._link, spawner, outputs, conduct, reporter, single=single, ended=self._ended
        )
        self._releases = Releases(
            loop,
            self._link,
            conduct,
            reporter,
            next_id=self._requests.next_id,
            over=self._over,
            again=self._again,
        )
        self._interrupts = Interrupts(loop, self._requests, self._running, single=single)

    @property
    def interrupted(self) -> int | None:
        """The signal that stopped the run, if one did."""
        return self._interrupts.by

    def run(self, connection: Connection | None) -> None:
        """Run all jobs to their ends; without a connection they run without leases."""
        become_subreaper()
        self._loop.watch(self._signals.fd, READABLE, self._on_signals)
        self._loop.later(_NOTICE_AFTER_S, self._notice)
        if connection is None:
            self._requests.alone = True
        else:
            self._link.use(connection)
        self._requests.add(self._jobs)
        self._requests.ask()
        self._loop.run(self._is_done)
        self._link.close()
        if not self._abandoned:
            self._outputs.leave_behind()

    def watch_parent(self, fd: int) -> None:
        """End the run as SIGTERM would when the process behind this pidfd has ended."""

        def gone() -> None:
            self._loop.unwatch(fd)
            self._interrupts.stop_all(signal.SIGTERM, ask_s=0.0)

        self._loop.watch(fd, READABLE, gone)

    def _output_broke(self, error: OSError) -> None:
        """Nobody reads our output any more (stop, as other tools do), or it cannot be written."""
        if isinstance(error, BrokenPipeError):
            if self.interrupted is None:
                self._interrupts.stop_all(signal.SIGPIPE, ask_s=0.0)
            return
        self.lost_output = True
        self._outputs.say(f"grn run: output is lost: {error.strerror}")

    # -- events ---------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        for arrival in self._signals.read():
            if arrival.number == signal.SIGCHLD:
                self._running.reap()
                continue
            if arrival.number == signal.SIGWINCH:
                # What the terminal sent came before the new size could be seen.
                if self._outputs.resize():
                    self._running.forward(arrival.number)
                continue
            if not self._left:  # only output is left, which may be stuck behind a stopped pager
                self._abandoned = True
            self._interrupts.arrived(arrival)

    def _heard(self, message: dict[str, Any]) -> None:
        if not self._requests.hear(message):
            self._releases.hear(message)

    def _lost(self) -> None:
        self._requests.lost()
        self._loop.later(_NOTICE_AFTER_S, self._notice_absence)

    def _back(self) -> None:
        held = [job for job in self._running.jobs if job.lease is not None]
        # What is not claimed ends at once, so what is to be released is claimed, too.
        leases = [job.lease for job in (*held, *self._releases.jobs)]
        nested = [job.nested for job in self._running.jobs if job.nested is not None]
        adopt = {"op": "adopt", "id": self._requests.next_id(), "leases": leases}
        messages: list[dict[str, Any]] = [{**adopt, "nested": nested}]
        messages += [started(job) for job in held]
        messages += self._releases.repeat()
        messages += self._requests.repeat()
        self._link.send(messages)

    def _notice(self) -> None:
        waiting = self._requests.waiting
        if waiting and not self._running.jobs:
            self._reporter.waits(len(waiting), waiting[0].reason or "the broker has not answered")

    def _notice_absence(self) -> None:
        waiting = self._requests.waiting
        if waiting and not self._link.up:
            why = f" ({self._link.problem})" if self._link.problem else ""
            text = f"the broker has gone, and another is looked for{why}"
            self._reporter.waits(len(waiting), text)

    # -- the way of a job -----------------------------------------------------------------------

    def _granted(self, job: Job, grant: dict[str, Any]) -> None:
        # In a burst of grants: a Ctrl-C that has come meanwhile would not reach this child.
        if self._signals.steering_pending():
            self._on_signals()
        if self.interrupted is None and self._reporter.may_start(job, grant):
            self._running.start(job, grant)
        else:
            self._requests.hand_back(job, grant)

    def _ended(self, job: Job) -> None:
        if not job.grant:
            self._requests.slot_is_free()
        self._releases.release(job)

    def _again(self, job: Job) -> None:
        if self.interrupted is not None:
            job.move(OVER)
            self._over(job)
            return
        self._requests.add([job])
        self._requests.ask()

    def _over(self, job: Job) -> None:
        self._left -= 1
        self._reporter.ended(job)
        self._requests.one_less()
        if not self._left:
            self._close_outputs()

    def _close_outputs(self) -> None:
        """Let background processes finish a line; then pass on what there is, and stop reading."""
        if self._outputs.all_closed:
            self._closing = True
            return

        def close() -> None:
            self._closing = True
            self._outputs.close_streams()

        self._loop.later(_LINGER_S, close)

    def _is_done(self) -> bool:
        if self._abandoned:
            return not self._left
        return not self._left and self._closing and self._outputs.flushed
