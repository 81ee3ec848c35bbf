"""Getting the fork server warm: import what calls will need, and see that forking stays safe.

Promises: a server beside which threads run is never forked; what went wrong is said with its
traceback, to whoever calls.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING

from grn.isolate import parcel, threadcaps

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["warm_up"]

_MESSAGE = 1 << 12
_THREADS_END_WITHIN_S = 2.0
_TASKS = "/proc/self/task"


def warm_up(control: socket.socket) -> str:
    """Import and run what the caller wants to be ready; return what is wrong, '' if nothing is."""
    _, fds, _, _ = socket.recv_fds(control, _MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
    if not fds:
        return "the caller left before it said what to preload"
    try:
        sent = parcel.read(fds[0])
        if sent is None:
            return "what is to be preloaded did not arrive"
        names = sent.head.decode().split()
        for name in names:
            importlib.import_module(name)
        initializer = sent.load(mapped=False)
        if initializer is not None:
            initializer()
    except BaseException as error:  # noqa: BLE001 - modules run code of their own
        return "preloading failed:\n" + "".join(traceback.format_exception(error)).rstrip()
    finally:
        os.close(fds[0])
    threadcaps.look()
    return _threads_left([*names, *([] if initializer is None else ["the initializer"])])


def _threads_left(preloaded: Sequence[str]) -> str:
    """Say what is wrong if a fork would leave threads behind, as locks held by nobody."""
    # Some libraries (OpenBLAS) end their threads at a fork and start them again when needed.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _THREADS_END_WITHIN_S
    while len(os.listdir(_TASKS)) > 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    count = max(len(os.listdir(_TASKS)), threading.active_count())
    if count == 1:
        return ""
    names = ", ".join(thread.name for thread in threading.enumerate()[1:])
    return (
        f"{count - 1} thread(s) run after preloading {', '.join(preloaded)}"
        f"{f' (named {names})' if names else ''}; a process that is forked beside threads can hang. "
        "Preload less: what starts threads is imported by the function itself"
    )
