"""The body's side: what happens in its process between being forked and calling the task's function.

Promises: loggers, prints, `prefect.runtime`, nested tasks, events and assets work as they do in a
thread of the flow; what they have to say is on its way before the result is.
Must not: talk to the API, unless a nested task has to.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from prefect.context import hydrated_context
from prefect.logging.loggers import patch_print

from grn.isolate import given_fds
from grn_plugins.prefect import forwarding
from grn_plugins.prefect.channel import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn_plugins.prefect.luggage import Luggage

__all__ = ["run"]


def run(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    luggage: Luggage | None,
) -> Any:
    """Call the function, in its run's context if it has one."""
    from grn_plugins.prefect import warmth  # noqa: PLC0415 - only in a process that was warmed

    if luggage is None:
        return _called(function, args, kwargs)
    outbox = Outbox(socket.socket(fileno=given_fds()[0]))
    run_id = luggage["run"]["task_run"].id
    with ExitStack() as stack:
        stack.enter_context(warmth.settings_for(luggage["settings"]).model_copy())
        client = warmth.client_for(os.environ.get("PREFECT_API_URL"))
        context = _context(function, luggage)
        stack.enter_context(hydrated_context(context, client=client))
        stack.enter_context(forwarding.forwarded(outbox, run_id))
        if luggage["log_prints"]:
            stack.enter_context(patch_print())
        return _called(function, args, kwargs)


def _context(function: Callable[..., Any], luggage: Luggage) -> dict[str, Any]:
    of_task = pickle.loads(luggage["of_task"])  # noqa: S301 - from our own flow
    of_task["task"].fn = function
    of_task["task"].__wrapped__ = function
    of_flow = pickle.loads(luggage["of_flow"]) if luggage["of_flow"] else {}  # noqa: S301 - the same
    run = {"log_prints": luggage["log_prints"], **of_task, **luggage["run"]}
    return {
        "flow_run_context": of_flow,
        "task_run_context": run,
        "tags_context": {"current_tags": luggage["tags"]},
        "asset_context": luggage["asset"],
    }


def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    value = function(*args, **kwargs)
    if inspect.isasyncgen(value):
        return asyncio.run(_collected(value))
    if inspect.iscoroutine(value):
        return asyncio.run(value)
    return list(value) if inspect.isgenerator(value) else value


async def _collected(values: Any) -> list[Any]:
    return [value async for value in values]
