"""Python callables in fresh processes: a warmed, single-threaded fork server and its children.

    server = ForkServer.shared(preload=("json",))
    with server.run(train, (3,), env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}) as child:
        loss = child.result()

A device library reads its environment once and cannot be moved to another device afterwards; so each
call gets a process of its own, with its environment in place before anything is imported for it.

What a body finds: working folder, `sys.argv`, `sys.path`, CPU affinity and the standard output and
error of its caller at the time of the call; an empty standard input; signals as in a plain program;
no threads; a session of its own. Logging and warnings are configured as the server's initializer
left them. What is rebuilt by name is imported afresh, from files as they are then, except preloaded
modules: these are as they were, so preload only what reads no environment when it is imported. (Caps
on threads are an exception: OpenBLAS, as in numpy, and OpenMP are told those of the body.)

An async function is not awaited: hand over `asyncio.run` and a function that makes the coroutine, or
whatever suits. A generator is returned as a list with `collect=True`.
"""

from __future__ import annotations

from grn.isolate.child import Child, Outcome
from grn.isolate.errors import BodyDied, CannotStart, StillRunning, Unpicklable
from grn.isolate.server import ForkServer
from grn.isolate.surroundings import given_fds

__all__ = [
    "BodyDied",
    "CannotStart",
    "Child",
    "ForkServer",
    "Outcome",
    "StillRunning",
    "Unpicklable",
    "given_fds",
]
