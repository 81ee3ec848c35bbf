"""Functions of tasks in processes of their own: what the runner and `@leased` share.

Promises: any thread of any process may call, with or without a Prefect run around it; all of a process
share one fork server and one connection to the broker.
Must not: make states; what a run that is stopped is to Prefect, its caller says.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from prefect.context import TaskRunContext

from grn.isolate import ForkServer
from grn_plugins.prefect import luggage
from grn_plugins.prefect.calls import Attempts, Running
from grn_plugins.prefect.shown import Board, Shown
from grn_plugins.prefect.warming import Warm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn_plugins.prefect.calls import Place
    from grn_plugins.prefect.needs import Need

__all__ = ["Bodies"]

_WARMTH = "grn_plugins.prefect.warmth"
_warm: dict[tuple[str, ...], Warm] = {}
_warm_lock = threading.Lock()


class Bodies:
    """Runs functions of tasks, each attempt under a lease in a process of its own.

    Args:
        preload: modules that are imported once, for all processes.
        initializer: a function that each process calls first, with its environment in place.
        grace_s: how long a process that is stopped has to leave by itself.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        initializer: Callable[[], object] | None = None,
        *,
        grace_s: float = 5.0,
    ) -> None:
        self._preload = tuple(preload)
        self._initializer = initializer
        self._grace_s = grace_s
        self._packer = luggage.Packer()
        self._url: str | None = None
        self.running = Running()
        """What runs and waits, so that it can be stopped."""
        self.board = Board()
        """What is shown of it."""

    def attempts(self, need: Need, *, timeout_s: float | None = None, retries: int = 0) -> Attempts:
        """Prepare the attempts of one task: several calls of `run` with the same are its retries."""
        return Attempts(
            need,
            server=self._server,
            running=self.running,
            timeout_s=timeout_s,
            grace_s=self._grace_s,
            retries=retries,
        )

    def warm_up(self) -> None:
        """Have the fork server get warm, without waiting for it."""
        self._server().warm_up()

    def _server(self) -> ForkServer:
        url = luggage.api_url()
        with _warm_lock:
            warm = _warm.get(self._preload)
            if warm is None:  # with the settings of the first flow that runs here
                warm = _warm[self._preload] = Warm(url, luggage.packed_settings(url))
        return ForkServer.shared((_WARMTH, *self._preload), warm)

    @property
    def url(self) -> str | None:
        """The address of the API that the last run here talked to."""
        return self._url

    def run(
        self,
        function: Callable[..., Any],
        attempts: Attempts,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        task: Any = None,
        place: Place | None = None,
    ) -> Any:
        """Run a function, in the run context of the calling thread if there is one.

        Args:
            function: what is run.
            attempts: made by `attempts`.
            args: its arguments.
            kwargs: its arguments by name.
            task: the task as its author knows it, if it is not that of the run context.
            place: its place among those that were submitted.

        Raises:
            Stopped: if it was stopped.
            BaseException: see `Attempts.run`.
        """
        environ = {"PREFECT_SERVER_EPHEMERAL_ENABLED": "false"}
        context = TaskRunContext.get()
        packed = None
        if context is not None:
            self._url = url = luggage.api_url()
            if url is not None:
                environ["PREFECT_API_URL"] = url
            packed = self._packer.pack(task if task is not None else context.task, url)
        shown = Shown(self.board)
        try:
            body = luggage.Body(function, packed, self._initializer)
            return attempts.run(body, args, kwargs, witness=shown, place=place, environ=environ)
        finally:
            shown.gave_up()

    async def run_async(
        self,
        function: Callable[..., Any],
        attempts: Attempts,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        **more: Any,
    ) -> Any:
        """Do the same beside an event loop; if its task is cancelled, the process is ended first."""
        call = asyncio.ensure_future(
            asyncio.to_thread(self.run, function, attempts, args, kwargs, **more)
        )
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            attempts.stop("its caller was cancelled")
            await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # looked at, or asyncio says that nobody did
            raise
