"""The process's connection to the broker, for tasks of an event loop.

Promises: cancelling a task that waits withdraws its request, and a grant that crossed it on the way is
given back; a release is on its way before anything is awaited, so it is sent also where the task is
cancelled again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from grn.hub import CANCEL_WITHIN_S, RELEASE_WITHIN_S, shared

if TYPE_CHECKING:
    from grn.grants import Ending, Grant, Pending

__all__ = ["acquire", "release"]


async def acquire(wish: dict[str, Any], *, wait_s: float | None = None) -> Grant:
    """Wait for what `wish` asks for; arguments and errors are those of `grn.hub.acquire`."""
    hub = shared()
    pending = hub.ask(wish)
    try:
        if not await _answered(pending, wait_s):
            hub.withdraw(pending)
            await _answered(pending, CANCEL_WITHIN_S)
        return hub.grant_of(pending, wait_s)
    except BaseException:  # also a cancelled task: a grant must not be left to nobody
        hub.abandon(pending)
        raise


async def release(grant: Grant, ending: Ending) -> dict[str, Any] | None:
    """Give a grant back, see `grn.hub.release`."""
    pending = grant.hub.begin_release(grant, **ending)
    if pending is None:
        return None
    await _answered(pending, RELEASE_WITHIN_S)
    return grant.hub.end_release(grant, pending)


async def _answered(pending: Pending, within_s: float | None) -> bool:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_set, answered)

    pending.when_done(tell)
    await asyncio.wait({answered}, timeout=within_s)
    return pending.done


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
