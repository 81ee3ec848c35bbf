"""The process of one queued job: it claims the job, supervises it, and writes down how it ended.

It is forked by the owner and then stands alone: a session of its own, no descriptor of the owner's,
the submitter's environment and folder. It is what `grn run` would be for the same command, with the
job's log for its outputs.

Promises: the command is not started before it is on disk that it runs; the end is written whatever it
is, and, while the disk is full, as soon as there is room again; a job whose broker cannot be had has not
failed, it goes back into the list.
Must not: return. `become` ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from grn import settings as settings_module
from grn.cli.runargs import parse
from grn.cli.runjobs import build_jobs
from grn.connection import connect_or_start
from grn.errors import UNREACHABLE, BrokerUnavailable, GrnError, JournalError, PathError
from grn.queue.running import identity
from grn.queue.worklist import Worklist
from grn.rules import queueing as q
from grn.supervise.batch import Batch
from grn.supervise.job import Conduct
from grn.supervise.loop import Loop
from grn.supervise.outputs import WATCH_ERRORS, Outputs
from grn.supervise.report import Reporter
from grn.supervise.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from grn.cli.runargs import RunOptions
    from grn.connection import Connection
    from grn.queue.entry import Entry
    from grn.queue.places import Places
    from grn.settings import Settings
    from grn.supervise.job import Job

__all__ = ["NO_BROKER", "become"]

NO_BROKER = 75
"""The status of a runner that could not ask: its job is to be tried again in a while."""
_MOST_DESCRIPTORS = 1 << 16
_LOG_MODE = 0o600
_TRY_AGAIN_S = 1.0
_TELL_PID_AFTER_S = 0.2
_GRN_FAILED = 125
_LAST_WORDS = 200
_NOT_THE_JOBS_FAULT = frozenset({BrokerUnavailable.code, JournalError.code})
_UNWRITABLE = (JournalError, PathError)
_AS_FROM_A_SHELL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


def become(entry: Entry, places: Places, turn: int, restore: Callable[[], None]) -> NoReturn:
    """Go on, in a forked child of the owner, as the runner of a job.

    Args:
        entry: the job, which the owner has marked as starting.
        places: of the queue.
        turn: a pipe's end; when it is closed, the owner may start the next job.
        restore: gives signals back the treatment that they had before the owner's.
    """
    status = _GRN_FAILED
    try:
        restore()
        _stand_alone(entry, turn)
        # Before the claim: from then on others may signal us, and must not end us unheard.
        status = _Runner(entry, places, turn, Signals()).run()
    except (GrnError, OSError) as error:  # nothing was claimed: the owner queues it again
        sys.stderr.write(f"grn queue: job {entry.id} did not start: {error}\n")
    except BaseException:  # noqa: BLE001 - the last place where it can be told
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _stand_alone(entry: Entry, turn: int) -> None:
    os.setsid()
    os.closerange(3, turn)
    os.closerange(turn + 1, _MOST_DESCRIPTORS)
    for number in _AS_FROM_A_SHELL:
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # Emptied: it can only be there from a list that was removed, and its numbers with it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
    log = os.open(entry.log, flags, _LOG_MODE)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(entry.spec.environ)
    if entry.spec.umask is not None:
        os.umask(entry.spec.umask)


class _Runner(Reporter):
    """Supervises the job, and tells the list what becomes of it."""

    def __init__(self, entry: Entry, places: Places, turn: int, signals: Signals) -> None:
        self._entry = entry
        self._job, self._attempt = entry.id, entry.attempt
        self._places = places
        self._turn = turn
        self._signals = signals
        self._loop = Loop()
        self._notes: list[str] = []
        self._runs = False
        """It is on disk that the job runs."""

    def run(self) -> int:
        """Run the job to its end; return the exit status that the list shows."""
        me = identity(os.getpid())
        assert me is not None  # noqa: S101 - we are here
        with Worklist(self._places) as store:
            if not store.claim(self._job, self._attempt, me):
                return 0  # it was cancelled, held or called back, or another owner has taken it
        try:
            job, batch = self._supervised()
        except BrokerUnavailable as error:
            return self._put_off(error.message)
        except (GrnError, OSError) as error:
            return self._never_ran(error)
        if not job.tries and job.code in _NOT_THE_JOBS_FAULT:
            return self._put_off(job.problem)
        return self._written(job, batch)

    # -- running --------------------------------------------------------------------------------

    def _supervised(self) -> tuple[Job, Batch]:
        spec = self._entry.spec
        self._enter(spec.cwd)
        options = parse(spec.arguments)
        settings = settings_module.load({"socket": options.socket, "grace": options.grace})
        job = build_jobs(options, os.environ)[0]
        job.request["engine"] = "queue" if spec.notebook is None else "notebook"
        if self._entry.priority != options.priority:  # it was moved
            job.request["priority"] = self._entry.priority
        batch = Batch(
            [job],
            _conduct(options, settings),
            settings,
            loop=self._loop,
            signals=self._signals,
            outputs=Outputs(self._loop, WATCH_ERRORS, colour_when_terminal=False),
            reporter=self,
            single=True,
        )
        connection = self._connected(options, settings)
        self._loop.later(0.0, self._asked)  # in the first round, after the request was sent
        batch.run(connection)
        return job, batch

    def _connected(self, options: RunOptions, settings: Settings) -> Connection | None:
        try:
            return connect_or_start(settings)
        except UNREACHABLE as error:
            if options.if_unavailable != "run":
                raise
            self.note(f"ran without a share: {error.message}")
            return None

    @staticmethod
    def _enter(folder: str) -> None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise GrnError(f"the folder of the job, {folder}: {error.strerror}") from error
        os.environ["PWD"] = folder

    def _asked(self) -> None:
        """Let the owner start the next one: it asks after us."""
        os.close(self._turn)

    # -- what the list is told ------------------------------------------------------------------

    def waits(self, jobs: int, reason: str) -> None:
        """Note why it waits."""
        del jobs
        try:
            with Worklist(self._places) as store:
                store.waits(self._job, self._attempt, reason)
        except _UNWRITABLE:  # only a text; `ls` asks the broker itself
            return

    def may_start(self, job: Job, grant: Mapping[str, Any]) -> bool:
        """Write down that it runs, before it does; a job that was called back meanwhile does not."""
        try:
            with Worklist(self._places) as store:
                found = {**_known(job), **_granted(grant)}
                self._runs = store.starts(self._job, self._attempt, found)
        except _UNWRITABLE:  # no room on the disk: what cannot be written down is not started
            return self._runs
        return self._runs

    def started(self, job: Job) -> None:
        """Note its process, if it lives long enough for somebody to look."""
        self._loop.later(_TELL_PID_AFTER_S, lambda: self._tell_pid(job))

    def _tell_pid(self, job: Job) -> None:
        if job.child is None or job.exit_code is not None or job.signal is not None:
            return
        try:
            with Worklist(self._places) as store:
                store.runs(self._job, self._attempt, _known(job))
        except _UNWRITABLE:  # the end says it again
            return

    def note(self, text: str) -> None:
        """Keep what the supervisor has to say; the log is the command's alone."""
        self._notes.append(text)

    def again(self, job: Job) -> None:
        """Note that it is run once more."""
        del job
        self.note("out of device memory; run again with more")

    def tried(self, job: Job, text: str) -> None:
        """Note what was tried in vain."""
        del job
        self.note(text)

    # -- the end --------------------------------------------------------------------------------

    def _put_off(self, why: str) -> int:
        """Leave the job to the owner, who tries it again in a while: it is not its fault."""
        self._until_written(lambda store: store.waits(self._job, self._attempt, why))
        return NO_BROKER

    def _never_ran(self, error: GrnError | OSError) -> int:
        text = error.message if isinstance(error, GrnError) else str(error)
        status = error.exit_status if isinstance(error, GrnError) else _GRN_FAILED
        self._until_written(
            lambda store: store.over(
                self._job,
                self._attempt,
                q.FAILED,
                exit_code=status,
                result={"text": text},
                reason=text,
            )
        )
        return status

    def _written(self, job: Job, batch: Batch) -> int:
        stopped = batch.interrupted is not None and (job.never_started_by_choice or job.failed())

        def write(store: Worklist) -> None:
            # Not started: called back, or the machine shuts down, or the disk is full.
            if job.never_started_by_choice and not self._runs and self._is_back(store):
                return
            cancelled = stopped and store.get(self._job).cancelled
            state = q.end_state("cancelled" if cancelled else job.outcome, timed_out=job.timed_out)
            store.over(
                self._job,
                self._attempt,
                state if cancelled or state != q.CANCELLED else q.FAILED,
                exit_code=job.status,
                result={
                    **_known(job),
                    "notes": self._all_notes(job),
                    "log_incomplete": batch.lost_output,
                },
                reason=job.result if state != q.OK else "",
            )

        self._until_written(write)
        return job.status

    def _is_back(self, store: Worklist) -> bool:
        return store.back(self._job, self._attempt, asked=False)

    def _all_notes(self, job: Job) -> list[str]:
        return [*self._notes, *([job.note] if job.note and job.note not in self._notes else [])]

    def _until_written(self, write: Callable[[Worklist], None]) -> None:
        """Write the end down; a full disk delays that, it does not lose it."""
        while True:
            try:
                with Worklist(self._places) as store:
                    write(store)
            except _UNWRITABLE:  # the owner says so, and meets the same
                _let_go_of_log()
                time.sleep(_TRY_AGAIN_S)
            else:
                return


def _let_go_of_log() -> None:
    """Have nothing open that somebody may remove to make room: it may be our log that fills the disk."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _conduct(options: RunOptions, settings: Settings) -> Conduct:
    environ = dict(os.environ)
    if options.socket is not None and settings.socket is not None:
        environ["GRN_SOCKET"] = settings.socket  # so that GRN inside the command finds this broker
    return Conduct(
        environ=environ,
        explicit=options.env,
        grace_s=settings.grace_s,
        leftovers=options.leftovers if "leftovers" in options.given else "kill",
        retries_on_oom=options.retries_on_oom,
        run_without_broker=options.if_unavailable == "run",
        time_limit_s=options.time_limit,
        wait_s=options.wait,
    )


def _granted(grant: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the list shows of a share, before the job knows it."""
    devices = grant.get("devices") or []
    return {
        "lease": None if grant.get("nested") else grant.get("lease"),
        "devices": [device["uuid"] for device in devices],
        "indexes": [device["index"] for device in devices],
        "booked_mib": grant.get("memory_mib"),
        "probe": bool(grant.get("probe")),
    }


def _known(job: Job) -> dict[str, Any]:
    return {
        "type": job.type,
        **_granted(job.grant),
        "pid": job.child.pid if job.child is not None else None,
        "outcome": job.outcome,
        "text": job.result if job.outcome or job.problem else "",
        "signal": job.signal,
        "peak_mib": job.peak_mib,
        "waited_s": round(job.waited_s, 3),
        "ran_s": round(job.ran_s, 3),
        "last_words": _last_words(job),
        "tries": job.tries,
        "attempts": job.attempts,
    }


def _last_words(job: Job) -> str:
    """Return the last line that the command wrote to standard error: most say there what went wrong."""
    if job.tail is None or not job.status:
        return ""
    lines = job.tail.get().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:_LAST_WORDS]
