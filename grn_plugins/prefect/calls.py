"""One attempt of a task: ask for a lease, run the body in a process under it, give it back.

    request -> (waits) -> grant -> process -> value, exception, or how it died -> release

Everything here happens in the thread of Prefect's engine that runs the task. That thread waits for
three things at once: news from the process, its end, and whoever wants it stopped.

Promises: a lease is given back only when its process is gone; a limit on time begins with the process,
not with the wait; what is stopped leaves no process behind.
Must not: know Prefect. What of this is shown there, and how, is the `Witness`'s.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

from grn import hub
from grn.affinity import cores_of
from grn.endings import ending_of
from grn.errors import UNREACHABLE, Cancelled, GrnError
from grn.rules.environment import job_environment
from grn.supervise.retrying import following
from grn.turns import Turn
from grn_plugins.prefect.channel import Inbox
from grn_plugins.prefect.inside import unmasked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn.grants import Ending, Grant
    from grn.isolate import Child, ForkServer
    from grn.supervise.job import Job
    from grn_plugins.prefect.needs import Need
    from grn_plugins.prefect.order import Line

__all__ = ["Attempts", "Running", "Stopped", "TaskTimedOut", "Witness"]

_WAITS_AFTER_S = 0.5
_FAILED = 1


class TaskTimedOut(GrnError, TimeoutError):  # noqa: N818 - named by what happened
    """The task's `timeout_seconds` were over, and its process was ended."""

    code = "task-timed-out"


class Stopped(GrnError, RuntimeError):  # noqa: N818 - the same
    """The attempt was stopped by its flow: it is neither a success nor a failure."""

    code = "task-stopped"


class Witness(Protocol):
    """Is told what happens to an attempt, in the thread that runs it."""

    def waits(self, reason: str) -> None:
        """It was not granted at once."""

    def granted(self, grant: Grant | None) -> None:
        """It has its lease, or goes on without."""

    def news(self, kind: str, value: Any) -> None:
        """Its process has something for Prefect."""

    def failed(self, value: Any) -> bool:
        """Whether what came back says that the attempt has failed."""
        raise NotImplementedError

    def ended(self, grant: Grant, report: Mapping[str, Any] | None) -> None:
        """Its lease was given back."""

    def warn(self, text: str) -> None:
        """Something that a person should read."""


class Running:
    """All attempts that run now, so that they can be stopped. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: set[_Attempt] = set()
        self._closed = ""

    def enter(self, attempt: _Attempt) -> None:
        """Take one in; one that comes after the end is stopped at once."""
        with self._lock:
            self._attempts.add(attempt)
            why = self._closed
        if why:
            attempt.stop(why)

    def leave(self, attempt: _Attempt) -> None:
        """Forget one."""
        with self._lock:
            self._attempts.discard(attempt)

    def stop(self, why: str) -> None:
        """Stop all, and what comes later."""
        with self._lock:
            self._closed = self._closed or why
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.stop(why)

    def withdraw(self, why: str) -> None:
        """Take back the requests of those that wait; what runs goes on."""
        with self._lock:
            attempts = list(self._attempts)
        for attempt in attempts:
            attempt.withdraw(why)


class Attempts:
    """A task and all its attempts: each has a lease and a process of its own.

    Args:
        need: what it asks for.
        server: where its processes come from.
        running: where it can be stopped.
        timeout_s: how long a process may run.
        grace_s: how long one that is stopped has to leave by itself.
        retries: how often Prefect may try again.
    """

    def __init__(
        self,
        need: Need,
        *,
        server: Callable[[], ForkServer],
        running: Running,
        timeout_s: float | None,
        grace_s: float,
        retries: int,
    ) -> None:
        self.need = need
        self.server = server
        self.running = running
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self._retries = retries
        self._now: _Attempt | None = None
        self._change: dict[str, Any] = {}
        # In the words of `following`:
        self.tries = 0
        self.request: dict[str, Any] = {}

    def run(
        self,
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        witness: Witness,
        place: Place | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Any:
        """Run the body once more; return what it returns.

        Args:
            body: what the process calls.
            args: its arguments.
            kwargs: its arguments by name.
            witness: is told what happens.
            place: its place among the tasks that were submitted.
            environ: variables that the process has beside this one's.

        Raises:
            TaskTimedOut: if it ran for too long.
            Stopped: if it was stopped.
            GrnError: if it got no lease, or its process died.
            BaseException: what the body raised.
        """
        attempt = self._now = _Attempt(self, witness, {**os.environ, **(environ or {})})
        self.running.enter(attempt)
        try:
            return attempt.run(body, args, kwargs, place or Place())
        finally:
            self._now = None
            self.running.leave(attempt)

    def stop(self, why: str) -> None:
        """Stop the attempt that runs or waits now. Any thread may call."""
        attempt = self._now
        if attempt is not None:
            attempt.stop(why)

    def asked(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Make the next request: after an out-of-memory it is for more."""
        message, explicit = self.need.request(args, kwargs)
        message = unmasked(message)
        self.tries += 1
        self.request = {**message, **self._change}
        return self.request, explicit

    def note(self, report: Mapping[str, Any] | None) -> None:
        """Learn from how an attempt ended what the next one should ask for."""
        self._change = {}
        if report is not None:
            change = following(
                cast("Job", self),
                retries=self._retries,
                remedy=str(report["remedy"]),
                next_mib=report["next_mib"],
            )
            self._change = change or {}


class Place:
    """A task's place in the order of submits; this one has none."""

    def __init__(self, line: Line | None = None) -> None:
        self._line = line
        self._number = line.join() if line is not None else 0

    def wait(self) -> None:
        """Wait until those that were submitted before have asked."""
        if self._line is not None:
            self._line.wait(self._number)

    def leave(self) -> None:
        """Have asked, or never ask."""
        if self._line is not None:
            self._line.leave(self._number)


class _Attempt:
    """One attempt."""

    def __init__(self, of: Attempts, witness: Witness, environ: Mapping[str, str]) -> None:
        self._of = of
        self._witness = witness
        self._environ = environ
        self._lock = threading.Lock()
        self._stopped = ""
        self._timed_out = False
        self._turn: Turn | None = None
        self._child: Child | None = None
        self._stopper: threading.Thread | None = None

    # -- for other threads ----------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """End it, whatever it does. Returns at once."""
        with self._lock:
            self._stopped = self._stopped or why
            turn, child = self._turn, self._child
            if child is not None:
                self._end(child)
        if turn is not None:
            turn.withdraw(why)

    def withdraw(self, why: str) -> None:
        """Have it stop if it waits."""
        with self._lock:
            turn = self._turn
            if turn is not None:
                self._stopped = self._stopped or why
        if turn is not None:
            turn.withdraw(why)

    def _end(self, child: Child) -> None:
        """Begin to end the process, with the lock held: our thread goes on hearing it meanwhile."""
        if self._stopper is None:
            self._stopper = threading.Thread(
                target=child.stop, args=(self._of.grace_s,), name="grn-stop", daemon=True
            )
            self._stopper.start()

    # -- the lease ------------------------------------------------------------------------------

    def run(
        self,
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        place: Place,
    ) -> Any:
        try:
            grant, explicit = self._granted(args, kwargs, place)
        finally:
            place.leave()
        ending = ending_of(None)
        try:
            self._witness.granted(grant)
            self._refuse_stopped()  # the stop may have crossed the grant
            value = self._in_process(body, args, kwargs, grant, explicit)
        except BaseException as error:
            ending = self._ending(error)
            raise
        else:
            if self._witness.failed(value):
                ending["exit_code"] = _FAILED
            return value
        finally:
            if grant is not None:
                self._give_back(grant, ending)

    def _granted(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], place: Place
    ) -> tuple[Grant | None, dict[str, str]]:
        message, explicit = self._of.asked(args, kwargs)
        if not self._of.need.asks:
            return None, {"CUDA_VISIBLE_DEVICES": "", **explicit}
        turn = Turn(
            message,
            wait_s=self._of.need.wish.wait_s,
            waits=self._witness.waits,
            waits_after_s=_WAITS_AFTER_S,
        )
        place.wait()
        with self._lock:
            self._refuse_stopped()
            self._turn = turn
        turn.ask()
        place.leave()
        try:
            return turn.grant(), explicit
        except Cancelled as error:
            raise Stopped(self._stopped or str(error)) from error
        except UNREACHABLE as error:
            if not self._of.need.wish.run_without:
                raise
            self._witness.warn(f"{self._of.need.name} runs without a lease: {error}")
            return None, explicit
        finally:
            with self._lock:
                self._turn = None

    def _refuse_stopped(self) -> None:
        if self._stopped:
            raise Stopped(self._stopped)

    def _ending(self, error: BaseException) -> Ending:
        ending = ending_of(error)
        ours = self._stopped or self._timed_out or self._child is None
        return {**ending, "stopped": True} if ours else ending

    def _give_back(self, grant: Grant, ending: Ending) -> None:
        if self._child is not None:
            ending = {**ending, **self._child.used}
        report = hub.release(grant, **ending)
        self._of.note(report)
        self._witness.ended(grant, report)

    # -- the process ----------------------------------------------------------------------------

    def _in_process(
        self,
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grant: Grant | None,
        explicit: Mapping[str, str],
    ) -> Any:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                child = self._started(body, args, kwargs, grant, explicit, theirs.fileno())
            with child:
                self._hear(child, Inbox(ours), self._deadline())
                return self._result(child)

    def _started(
        self,
        body: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grant: Grant | None,
        explicit: Mapping[str, str],
        channel: int,
    ) -> Child:
        name = self._of.need.name
        env, cores = {**self._environ, **explicit}, list[int]()
        if grant is not None:
            cores = cores_of(grant, name)
            env, told = job_environment(grant.message, self._environ, explicit)
            for text in told:
                self._witness.warn(text)
        child = self._of.server().run(
            body,
            args,
            kwargs,
            env=env,
            affinity=cores or None,
            fds=[channel],
            name=name,
            tail=False,
        )
        with self._lock:
            self._child = child
            if self._stopped:
                self._end(child)
        if grant is not None and not grant.nested:
            grant.hub.started(grant.lease, child.pid)
        return child

    def _deadline(self) -> float | None:
        limit = self._of.timeout_s
        return None if limit is None else time.monotonic() + limit

    def _hear(self, child: Child, inbox: Inbox, deadline: float | None) -> None:
        """Pass on what the process has for Prefect, until it is gone."""
        poll = select.poll()
        poll.register(child.fileno(), select.POLLIN)
        poll.register(inbox.fileno(), select.POLLIN)
        gone = False
        while not gone:
            left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = {fd for fd, _ in poll.poll(left_ms)}
            gone = child.fileno() in ready
            if inbox.fileno() in ready or gone:
                for kind, value in inbox.receive():
                    self._witness.news(kind, value)
            if inbox.over and inbox.fileno() in ready:
                poll.unregister(inbox.fileno())
            if deadline is not None and not gone and time.monotonic() >= deadline:
                deadline = None
                with self._lock:
                    self._timed_out = True
                    self._end(child)

    def _result(self, child: Child) -> Any:
        stopper = self._stopper
        if stopper is not None:
            stopper.join()  # also what it has started is gone
        outcome = child.outcome()
        if self._timed_out:
            raise TaskTimedOut(
                f"{self._of.need.name} ran for more than its limit of {self._of.timeout_s:g} s, and"
                f" its process {child.pid} was ended"
            ) from outcome.error
        if self._stopped and outcome.error is not None:
            raise Stopped(self._stopped) from outcome.error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value
