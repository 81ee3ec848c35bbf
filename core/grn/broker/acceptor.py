"""Takes connections in, and survives running out of descriptors.

Why not asyncio's own server: when `accept` fails for want of descriptors, asyncio (3.11, 3.12) goes
on for the length of the backlog and logs a traceback each time, hundreds of them a second, until
some descriptor is free. Here it is one line and a pause; who waits in the kernel's queue is served
afterwards. A few descriptors are kept back, so that a crowd of connections does not keep the broker
from looking at processes for the clients that it has.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

__all__ = ["Acceptor"]

_AT_ONCE = 64
"""Connections taken in before those that are there get their turn."""

_KEPT_BACK = 16
"""Descriptors for pidfds, /proc and the journal."""

_PAUSE_S = 0.5
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
log = logging.getLogger("grn.broker")


class Acceptor:
    """Makes a protocol for each connection to a listening socket, until it is closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._loop = loop
        self.listener = listener
        """The socket whose clients are served."""
        self._factory = factory
        self._pause: asyncio.TimerHandle | None = None
        self._beginning: set[asyncio.Task[Any]] = set()
        listener.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self.listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                self._keep_some_back()
                sock, _ = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._wait_for_descriptors(error)
                return
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        beginning = self._loop.connect_accepted_socket(self._factory, sock)
        task = self._loop.create_task(beginning)
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _keep_some_back(self) -> None:
        lowest_free = os.dup(self.listener.fileno())
        os.close(lowest_free)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and lowest_free + _KEPT_BACK >= limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def _wait_for_descriptors(self, error: OSError) -> None:
        log.error("cannot-accept reason=%r: trying again in %g s", error.strerror, _PAUSE_S)
        self._loop.remove_reader(self.listener.fileno())
        self._pause = self._loop.call_later(_PAUSE_S, self._resume)

    def move_to(self, listener: socket.socket) -> None:
        """Serve another listening socket instead; connections that were made live on."""
        self._rest()
        old, self.listener = self.listener, listener
        listener.setblocking(False)
        self._resume()
        with old:
            self._take_in_all(old)

    def _take_in_all(self, old: socket.socket) -> None:
        """Begin with whoever waits in the queue of a socket that is about to close."""
        while True:
            try:
                sock, _ = old.accept()
            except OSError as error:  # none waits; or no descriptors: then they connect again
                log.debug("queue-taken-in reason=%r", error.strerror)
                return
            self._begin(sock)

    def close(self) -> None:
        """Take no more connections, and close the listening socket."""
        self._rest()
        self.listener.close()

    def _rest(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._loop.remove_reader(self.listener.fileno())
