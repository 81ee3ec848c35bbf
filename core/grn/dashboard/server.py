"""Serves the dashboard: the page, what feeds it, `/healthz` and `/metrics`. Read-only.

Promises: GET and HEAD only; a `Host` that somebody else could make mean us is refused; nothing of
anybody's environment is shown; nothing here waits for a browser, so the broker's own work goes on.
Must not: be imported unless somebody asked for it, or change anything in the books.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING

from aiohttp import web

from grn.dashboard.feed import Feed, FullError, message
from grn.dashboard.snapshot import empty, snapshot
from grn.errors import GrnError
from grn.report.data import Maker
from grn.report.page import render
from grn.rules.address import is_loopback, may_be_called, url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from grn.broker.core import BrokerCore
    from grn.dashboard.figures import Figures
    from grn.settings import Settings

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

__all__ = ["Dashboard"]

_BEAT_S = 15.0
_SHUTDOWN_S = 1.0
_HEADERS = {
    "Server": "grn",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}
log = logging.getLogger("grn.broker")


class Dashboard:
    """The dashboard of one broker, in its event loop."""

    def __init__(self, core: BrokerCore, settings: Settings, names: frozenset[str]) -> None:
        self._core = core
        self._settings = settings
        self._names = names
        self._host = socket.gethostname()
        self.feed = Feed(core.observers)
        self._figures = _figures(core)
        self.url = ""
        app = web.Application(middlewares=[self._guarded], client_max_size=1)
        app.router.add_get("/", self._page)
        app.router.add_get("/stream", self._stream, allow_head=False)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_S
        )

    @classmethod
    async def open(cls, core: BrokerCore, settings: Settings, host: str, port: int) -> Dashboard:
        """Listen there.

        Raises:
            GrnError: the address is taken, or not one of this machine.
        """
        # Open to others, it may be called by the machine's name; that is no name of a stranger's.
        names = frozenset() if is_loopback(host) else frozenset({socket.gethostname().lower()})
        dashboard = cls(core, settings, names)
        await dashboard._runner.setup()
        site = web.TCPSite(dashboard._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await dashboard._runner.cleanup()
            raise GrnError(
                f"cannot serve the dashboard at {host}:{port}: {error.strerror or error}; choose another"
                " address with --http"
            ) from error
        dashboard.url = url(host, dashboard._runner.addresses[0][1])
        log.info("dashboard url=%s", dashboard.url)
        return dashboard

    async def close(self) -> None:
        """End all connections and listen no more."""
        self.feed.close()
        await self._runner.cleanup()

    def _maker(self) -> Maker:
        return Maker(self._host, self._core.release, time.time())

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what is not for us, whatever it asks for."""
        if not may_be_called(request.headers.get("Host"), names=self._names):
            text = "refused: this name is not of this machine; use localhost or its address\n"
            return web.Response(status=403, text=text, headers=_HEADERS)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={**_HEADERS, "Allow": "GET, HEAD"})
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=_HEADERS)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _page(self, _: web.Request) -> web.Response:
        page = render(empty(self._maker()), title=f"GRN on {self._host}", live=True)
        return web.Response(body=page, content_type="text/html", charset="utf-8")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            queue = self.feed.join()
        except FullError:
            return web.Response(status=503, text="too many pages are open\n")
        try:
            response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            # Joined before the history is read: what happens meanwhile is in the queue.
            maker, devices = self._maker(), self._core.devices
            data = await asyncio.to_thread(
                lambda: message("data", snapshot(self._settings, devices, maker))
            )
            with contextlib.suppress(ConnectionResetError):  # the page was closed
                await response.write(b"retry: 2000\n\n" + data)
                await self._pass_on(queue, response)
        finally:
            self.feed.leave(queue)
        return response

    @staticmethod
    async def _pass_on(queue: asyncio.Queue[bytes | None], response: web.StreamResponse) -> None:
        """Write what comes until the end; a beat now and then shows whether anybody is there."""
        while True:
            try:
                async with asyncio.timeout(_BEAT_S):
                    body = await queue.get()
            except TimeoutError:
                body = b": beat\n\n"
            if body is None:
                return
            await response.write(body)

    async def _health(self, _: web.Request) -> web.Response:
        machine = self._core.machine
        problem = machine.disk_problem or ("the broker is leaving" if machine.closing else "")
        told = {
            "status": "failing" if problem else "ok",
            "reason": problem or None,
            "pid": self._core.pid,
            "version": self._core.release,
            "devices": len(self._core.devices),
            "leases": len(machine.leases),
            "waiters": len(machine.line),
        }
        return web.json_response(told, status=503 if problem else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        figures = self._figures
        if figures is None:
            said = "metrics need another package: pip install 'grn-plugins[metrics]'\n"
            return web.Response(status=501, text=said)
        return web.Response(body=figures.text(), headers={"Content-Type": figures.content_type})


def _figures(core: BrokerCore) -> Figures | None:
    """Begin to count, if there is what it takes."""
    try:
        from grn.dashboard.figures import Figures  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        log.info("no-metrics missing=%s", error.name)
        return None
    return Figures(core)
