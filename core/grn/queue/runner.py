"""The process of one queued job: it claims the job, supervises it, and writes down how it ended.

It is forked by the owner and then stands alone: a session of its own, no descriptor of the owner's,
the submitter's environment and folder. It is what `grn run` would be for the same command, with the
job's log for its outputs.

Promises: the command is not started before the claim is on disk; the end is written whatever it is,
and, while the disk is full, as soon as there is room again.
Must not: return. `become` ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from grn import procs
from grn import settings as settings_module
from grn.cli.runargs import parse
from grn.cli.runjobs import build_jobs
from grn.connection import connect_or_start
from grn.errors import GrnError, JournalError
from grn.queue.changes import touch
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.supervise.batch import Batch
from grn.supervise.job import Conduct
from grn.supervise.loop import Loop
from grn.supervise.outputs import WATCH_ERRORS, Outputs
from grn.supervise.report import Reporter
from grn.supervise.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.queue.entry import Entry
    from grn.queue.places import Places
    from grn.supervise.job import Job

__all__ = ["become", "identity"]

_MOST_DESCRIPTORS = 1 << 16
_LOG_MODE = 0o600
_TRY_AGAIN_S = 1.0
_GRN_FAILED = 125
_LAST_WORDS = 200


def identity(pid: int) -> tuple[int, str] | None:
    """Return what names a process for good: its pid, with boot and start time; `None` if it is gone."""
    start = procs.start_time(pid)
    return None if start is None else (pid, f"{_boot()}:{start}")


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


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
        status = _Runner(entry, places, turn).run()
    except BaseException:  # noqa: BLE001 - the last place where it can be told
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _stand_alone(entry: Entry, turn: int) -> None:
    os.setsid()
    os.closerange(3, turn)
    os.closerange(turn + 1, _MOST_DESCRIPTORS)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    log = os.open(entry.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _LOG_MODE)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(entry.spec.environ)


class _Runner(Reporter):
    """Supervises the job, and tells the list what becomes of it."""

    def __init__(self, entry: Entry, places: Places, turn: int) -> None:
        self._entry = entry
        self._places = places
        self._turn = turn
        self._notes: list[str] = []

    def run(self) -> int:
        """Run the job to its end; return the exit status that the list shows."""
        me = identity(os.getpid())
        assert me is not None  # noqa: S101 - we are here
        with Store(self._places) as store:
            if not store.claim(self._entry.id, self._entry.attempt, me):
                return 0  # it was cancelled, or another owner thought that we were dead
        try:
            job, interrupted = self._supervised()
        except (GrnError, OSError) as error:
            return self._never_ran(error)
        return self._written(job, interrupted)

    # -- running --------------------------------------------------------------------------------

    def _supervised(self) -> tuple[Job, int | None]:
        spec = self._entry.spec
        self._enter(spec.cwd)
        options = parse(spec.arguments)
        settings = settings_module.load({"grace": options.grace})
        job = build_jobs(options, os.environ)[0]
        job.request["label"] = job.label
        signals = Signals()
        loop = Loop()
        batch = Batch(
            [job],
            Conduct(
                environ=dict(os.environ),
                explicit=options.env,
                grace_s=settings.grace_s,
                leftovers=options.leftovers if "leftovers" in options.given else "kill",
                retries_on_oom=options.retries_on_oom,
                run_without_broker=options.if_unavailable == "run",
                time_limit_s=options.time_limit,
                wait_s=options.wait,
            ),
            settings,
            loop=loop,
            signals=signals,
            outputs=Outputs(loop, WATCH_ERRORS, colour_when_terminal=False),
            reporter=self,
            single=True,
        )
        connection = connect_or_start(settings)
        loop.later(0.0, self._asked)  # in the first round, after the request was sent
        batch.run(connection)
        return job, batch.interrupted

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
        with Store(self._places) as store:
            store.waits(self._entry.id, reason)

    def started(self, job: Job) -> None:
        """Note that it runs, and where."""
        with Store(self._places) as store:
            store.runs(self._entry.id, _known(job))

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

    def _never_ran(self, error: GrnError | OSError) -> int:
        text = error.message if isinstance(error, GrnError) else str(error)
        status = error.exit_status if isinstance(error, GrnError) else _GRN_FAILED
        self._until_written(
            lambda store: store.over(
                self._entry.id, q.FAILED, exit_code=status, result={"text": text}, reason=text
            )
        )
        return status

    def _written(self, job: Job, interrupted: int | None) -> int:
        ended = job.outcome if not self._was_stopped(job, interrupted) else "cancelled"
        state = q.end_state(ended, timed_out=job.timed_out)

        def write(store: Store) -> None:
            if job.never_started_by_choice and store.back(self._entry.id):
                return
            store.over(
                self._entry.id,
                state,
                exit_code=job.status,
                result={**_known(job), "notes": self._all_notes(job)},
                reason=job.result if state != q.OK else "",
            )

        self._until_written(write)
        return job.status

    def _all_notes(self, job: Job) -> list[str]:
        return [*self._notes, *([job.note] if job.note and job.note not in self._notes else [])]

    @staticmethod
    def _was_stopped(job: Job, interrupted: int | None) -> bool:
        return interrupted is not None and (job.never_started_by_choice or job.failed())

    def _until_written(self, write: Callable[[Store], None]) -> None:
        """Write the end down; a full disk delays that, it does not lose it."""
        while True:
            try:
                with Store(self._places) as store:
                    write(store)
                touch(self._places.changes)
            except JournalError:  # the owner says so, and meets the same
                time.sleep(_TRY_AGAIN_S)
            else:
                return


def _known(job: Job) -> dict[str, Any]:
    return {
        "type": job.type,
        "lease": job.lease,
        "devices": [device["uuid"] for device in job.devices],
        "indexes": [device["index"] for device in job.devices],
        "booked_mib": job.grant.get("memory_mib"),
        "probe": bool(job.grant.get("probe")),
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
