"""What Prefect shows of a task's lease: that it waits and why, and what it got.

Design note. To Prefect's engine a task runs as soon as its function is called. While it waits for a
device, its state is set back to Pending ("WaitingForGPU") and then to Running again, as the engine
itself would do it; so its run time does not count the wait. Only tasks that do wait are told of:
each state is an event.

Must not: fail a task because something could not be shown.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.logging.loggers import get_logger, task_run_logger
from prefect.states import Pending, Running, is_state_iterable

from grn.rules.units import format_mib
from grn_plugins.prefect import forwarding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prefect.client.schemas import TaskRun

    from grn.grants import Grant

try:
    from prefect.utilities.engine import emit_task_run_state_change_event
except ImportError:  # a private name: without it a waiting task looks as if it ran
    emit_task_run_state_change_event = None  # type: ignore[assignment]

__all__ = ["Board", "Shown"]

_WAITING = "WaitingForGPU"
_SAY_EVERY_S = 10.0


class Board:
    """What is remembered of all the tasks of one runner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._said_s = 0.0
        self.rows: list[dict[str, Any]] = []
        """One for each lease that was given back."""

    def begins_to_wait(self) -> int:
        """Count one more; return how many wait, 0 if that was said a moment ago."""
        with self._lock:
            self._waiting += 1
            now = time.monotonic()
            if self._said_s and now - self._said_s < _SAY_EVERY_S:
                return 0
            self._said_s = now
            return self._waiting

    def waits_no_more(self) -> None:
        """Count one less."""
        with self._lock:
            self._waiting -= 1

    def note(self, row: dict[str, Any]) -> None:
        """Remember a lease that was given back."""
        with self._lock:
            self.rows.append(row)


class Shown:
    """The witness of one attempt; all of it happens in its task's run context."""

    def __init__(self, board: Board) -> None:
        self._board = board
        context = TaskRunContext.get()
        self._run: TaskRun | None = context.task_run if context is not None else None
        self._logger: Any = (
            task_run_logger(self._run, context.task)
            if context is not None and self._run is not None
            else get_logger("task_runner.grn")
        )
        self._waits = False
        self._begun_s = time.monotonic()
        self._granted_s = self._begun_s

    def waits(self, reason: str) -> None:
        """It was not granted at once."""
        self._waits = True
        count = self._board.begins_to_wait()
        if count:
            others = f" ({count} tasks wait)" if count > 1 else ""
            self._logger.info("Waiting for a GPU%s: %s", others, reason)
        self._set(Pending(name=_WAITING, message=f"Waiting for a GPU: {reason}"))

    def granted(self, grant: Grant | None) -> None:
        """It has its lease, or goes on without."""
        self._granted_s = time.monotonic()
        if self._waits:
            self._over()
            self._set(Running(message=_held(grant) if grant is not None else None))

    def gave_up(self) -> None:
        """It waits no more, and has no lease."""
        if self._waits:
            self._over()

    def _over(self) -> None:
        self._waits = False
        self._board.waits_no_more()

    def news(self, kind: str, value: Any) -> None:
        """Its process has something for Prefect."""
        try:
            forwarding.take(kind, value)
        except Exception:
            self._logger.debug("What the task's process sent is dropped", exc_info=True)

    def failed(self, value: Any) -> bool:
        """Whether the task returned a state, or several, not all of which are good ones."""
        states = [value] if isinstance(value, State) else value if is_state_iterable(value) else ()
        return not all(state.is_completed() for state in states)

    def ended(self, grant: Grant, report: Mapping[str, Any] | None) -> None:
        """Its lease was given back."""
        ran_s = time.monotonic() - self._granted_s
        peak = report["peak_mib"] if report is not None else None
        self._logger.info(
            "Held %s for %.1f s%s",
            _held(grant),
            ran_s,
            f", peak {format_mib(peak)}" if peak else "",
        )
        for note in report["notes"] if report is not None else ():
            self._logger.warning("%s", note)
        self._board.note(
            {
                "task run": self._run.name if self._run is not None else "",
                "lease": grant.lease,
                "devices": ", ".join(f"{d['index']}: {d['model']}" for d in grant.devices),
                "booked": _size(grant.message["memory_mib"]),
                "peak": _size(peak),
                "waited": f"{self._granted_s - self._begun_s:.1f} s",
                "ran": f"{ran_s:.1f} s",
                "outcome": report["outcome"] if report is not None else "",
            }
        )

    def warn(self, text: str) -> None:
        """Something that a person should read."""
        self._logger.warning("%s", text)

    def _set(self, state: State[Any]) -> None:
        """Set a state as Prefect's engine does."""
        run = self._run
        if run is None or run.state is None or emit_task_run_state_change_event is None:
            return
        before = run.state
        if state.timestamp <= before.timestamp:
            state.timestamp = before.timestamp + timedelta(microseconds=1)
        state.state_details.task_run_id = run.id
        state.state_details.flow_run_id = run.flow_run_id
        if before.is_running():
            run.total_run_time += state.timestamp - before.timestamp
        run.state = state
        run.state_id, run.state_type, run.state_name = state.id, state.type, state.name
        emit_task_run_state_change_event(run, before, state)


def _size(mib: int | None) -> str:
    return "" if mib is None else format_mib(mib)


def _held(grant: Grant) -> str:
    devices = grant.devices
    if not devices:
        return f"lease {grant.lease} without a device"
    word = "GPU" if len(devices) == 1 else "GPUs"
    numbers = ", ".join(str(device["index"]) for device in devices)
    size = format_mib(grant.message["memory_mib"]) if grant.message["memory_mib"] else ""
    share = f" ({size} booked{' on each' if len(devices) > 1 else ''})" if size else ""
    return f"{word} {numbers}{share}"
