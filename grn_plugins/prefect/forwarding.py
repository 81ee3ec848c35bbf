"""Logs, events and assets of a body, sent to the flow's process instead of to the API.

Design note. The flow's process has workers for both, and stands in the same run context: an event
that it sends on is given the related resources that the body would have found by asking the API. Only
what a nested task emits has another context; that goes the way of Prefect's own process pool, where
the body asks the API itself.

Older versions of Prefect cannot be told where to send logs: there the body sends them, and waits
until they are sent.
"""

from __future__ import annotations

import contextlib
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from prefect.context import TaskRunContext
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.logging import handlers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from grn_plugins.prefect.channel import Outbox

__all__ = ["forwarded", "take"]

_LOG, _EVENT, _COMPLETE_EVENT, _ASSETS = "log", "event", "complete-event", "assets"
_SENT_WITHIN_S = 10.0


class _Events:
    """In place of Prefect's worker in a body."""

    client_type = PrefectEventsClient

    def __init__(self, outbox: Outbox, run_id: UUID, real: Any) -> None:
        self._outbox = outbox
        self._run_id = run_id
        self._real = real

    def send(self, event: Any) -> None:
        """Send an event: by way of the flow, or of the API for a nested run."""
        context = TaskRunContext.get()
        if context is not None and context.task_run.id == self._run_id:
            self._outbox.put(_EVENT, event)
        else:
            self._real().send(event)


class _Queue:
    """What Prefect's forwarding client puts events into."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def put(self, item: tuple[str, Any]) -> None:
        """Take an event that has its related resources."""
        self._outbox.put(_COMPLETE_EVENT, item[1])


@contextlib.contextmanager
def forwarded(outbox: Outbox, run_id: UUID) -> Iterator[None]:
    """Have what this process emits sent to the flow's; it is on its way when the block ends."""
    real = EventsWorker.instance
    if hasattr(EventsWorker, "set_client_override"):
        from prefect.events.worker import ProcessPoolForwardingEventsClient  # noqa: PLC0415

        EventsWorker.set_client_override(
            ProcessPoolForwardingEventsClient, event_queue=_Queue(outbox), item_type=_EVENT
        )
    events = _Events(outbox, run_id, real)
    EventsWorker.instance = lambda *_: events  # type: ignore[assignment,method-assign]
    if hasattr(handlers, "set_api_log_sink"):
        handlers.set_api_log_sink(partial(outbox.put, _LOG))
    try:
        yield
    finally:
        _send_assets(outbox)
        _drain()


def _drain() -> None:
    for worker in (EventsWorker, handlers.APILogWorker):
        if getattr(worker, "_instances", None):
            worker.drain_all(timeout=_SENT_WITHIN_S)


def _send_assets(outbox: Outbox) -> None:
    with contextlib.suppress(ImportError):
        from prefect.context import AssetContext  # noqa: PLC0415 - not in all versions

        context = AssetContext.get()
        if context is not None and context.materialization_metadata:
            outbox.put(_ASSETS, context.materialization_metadata)


def take(kind: str, value: Any) -> None:
    """Pass on what a body has sent, in the flow's process and the body's run context."""
    if kind == _LOG:
        handlers.APILogWorker.instance().send(value)
    elif kind == _EVENT:
        EventsWorker.instance().send(value)
    elif kind == _COMPLETE_EVENT:
        Context().run(EventsWorker.instance().send, value)
    elif kind == _ASSETS:
        from prefect.context import AssetContext  # noqa: PLC0415 - not in all versions

        context = AssetContext.get()
        if context is not None:
            context.materialization_metadata.update(value)
