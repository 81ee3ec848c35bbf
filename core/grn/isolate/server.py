"""The caller's side of the fork server: started when it is first needed, shared, and replaced.

Promises: any number of threads may call at once; a server that died is replaced at the next call; a
process that was forked from this one never uses its parent's server; at this process's end, however
it comes, the server and all its processes end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self

from grn.isolate import parcel, pickling, surroundings
from grn.isolate.child import Child, Tail
from grn.isolate.errors import CannotStart, Unpicklable
from grn.isolate.family import Family
from grn.isolate.process import ServerProcess
from grn.isolate.zygote import BORN, PROBLEM

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

__all__ = ["ForkServer"]

_MESSAGE = 1 << 12
_ERROR_AT = 4  # standard error's place among a call's descriptors
_EXIT_WITHIN_S = 1.0
_LEASE = "GRN_LEASE"


class ForkServer:
    """One warmed process from which calls get theirs.

    `preload`: modules that are imported there once. `initializer`: a function that is called there
    once, after that. Neither may start threads, open a device, or read an environment that calls
    are to be given.
    """

    _shared: dict[tuple[tuple[str, ...], Callable[[], object] | None], ForkServer] = {}  # noqa: RUF012
    _shared_lock = threading.Lock()

    def __init__(
        self,
        preload: Sequence[str] = (),
        initializer: Callable[[], object] | None = None,
    ) -> None:
        self._preload = tuple(preload)
        self._initializer = initializer
        self._lock = threading.Lock()
        self._server: ServerProcess | None = None
        self._families: weakref.WeakSet[Family] = weakref.WeakSet()
        self._families_lock = threading.Lock()
        _servers.add(self)

    @classmethod
    def shared(
        cls,
        preload: Sequence[str] = (),
        initializer: Callable[[], object] | None = None,
    ) -> ForkServer:
        """Return this process's server for these modules and this very initializer."""
        key = (tuple(preload), initializer)
        with cls._shared_lock:
            server = cls._shared.get(key)
            if server is None:
                server = cls._shared[key] = cls(*key)
        return server

    @property
    def pid(self) -> int:
        """The server's process, 0 if there is none."""
        return self._server.identity[0] if self._server is not None else 0

    def warm_up(self) -> None:
        """Have it started, without waiting: calls wait until it is ready.

        Raises:
            CannotStart: no process can be started.
            Unpicklable: the initializer cannot travel.
        """
        with self._lock:
            if self._server is None:
                self._start()

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        fds: Sequence[int] = (),
        affinity: Collection[int] | None = None,
        collect: bool = False,
        name: str = "",
        tail: bool = True,
    ) -> Child:
        """Start a process that calls `fn`; return as soon as it exists.

        `env` is its complete environment. Without descriptors its output goes where this process's
        goes, and its input is empty; `fds` are more, which it finds by `given_fds()`. `affinity`: the CPUs that it may use. `collect`: a generator
        that is returned is made a list there. `name` is shown by `ps`. `tail`: if it dies, its last
        words are read from its standard error, where that is a file; not where others write to it.

        Raises:
            Unpicklable: the call cannot travel.
            CannotStart: there is no room for a process, or preloading failed.
            UsageError: `env` is none.
        """
        _refuse_half_imported()
        head = surroundings.capture(env, cwd=cwd, affinity=affinity, name=name, collect=collect)
        opened = [_sealed_call(head, fn, args, kwargs or {})]
        try:
            opened.append(parcel.create("grn-result"))
            for number, fd in enumerate((stdin, stdout, stderr)):
                opened.append(_standard(fd, number))
            words = Tail(opened[_ERROR_AT] if tail else -1)
            child = self._born([*opened, *fds], name, env.get(_LEASE), words)
            del opened[1]  # it is the child's now
        except OSError as error:
            raise CannotStart(f"no process can be started: {error}") from error
        finally:
            for fd in opened:
                os.close(fd)
        return child

    def _born(self, fds: Sequence[int], name: str, lease: str | None, tail: Tail) -> Child:
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, self._lock:
                server = self._send([theirs.fileno(), *fds])
                theirs.close()  # or the end of the server would not show
                pid, start, pidfd = self._answer(line)
                family = Family(
                    *(pid, start), server=server.identity, lease=lease, alone=self._is_alone
                )
        except BaseException:
            tail.close()
            line.close()
            raise
        with self._families_lock:
            self._families.add(family)
        return Child(
            *(pid, start, name), pidfd=pidfd, line=line, result=fds[1], tail=tail, family=family
        )

    def _is_alone(self, lease: str) -> bool:
        with self._families_lock:
            return sum(family.lease == lease for family in self._families) == 1

    # -- the server's process -------------------------------------------------------------------

    def _send(self, fds: Sequence[int]) -> ServerProcess:
        server = self._server or self._start()
        try:
            server.send(fds)
        except (BrokenPipeError, ConnectionResetError):  # it was killed while it was idle
            server = self._start()
            try:
                server.send(fds)
            except OSError as error:
                raise CannotStart(f"the fork server dies as soon as it starts: {error}") from error
        return server

    def _answer(self, line: socket.socket) -> tuple[int, int, int]:
        try:
            data, fds, _, _ = socket.recv_fds(line, _MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self._end()
            raise CannotStart(
                "the fork server died while it started a process; "
                f"what it had preloaded: {', '.join(self._preload) or 'nothing'}"
            )
        if data.startswith(PROBLEM):
            raise CannotStart(data[len(PROBLEM) :].decode(errors="replace"))
        if not fds:
            raise CannotStart("no descriptors are left to watch a new process with")
        _, pid, start = BORN.unpack(data)
        return pid, start, fds[0]

    def _start(self) -> ServerProcess:
        self._end()
        self._server = ServerProcess(self._preload, self._initializer)
        return self._server

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end()

    def close(self, timeout_s: float = -1) -> None:
        """End the server and all its processes; a later call starts another.

        `timeout_s` bounds the wait for calls of other threads that are being started.
        """
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._end()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self) -> None:
        """Let go of a parent's server, in a process that was forked from it."""
        self._lock = threading.Lock()  # a thread that is not here may have held them
        self._families_lock = threading.Lock()
        self._families = weakref.WeakSet()
        server, self._server = self._server, None
        if server is not None:
            server.forget()


def _sealed_call(
    head: bytes, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int:
    def dump(file: Any, keep: pickling.Keep) -> None:
        pickling.dump_call(fn, args, kwargs, file, keep)

    fd = parcel.create("grn-call")
    try:
        parcel.write(fd, 0, head, dump)
    except OSError:
        os.close(fd)
        raise
    except Exception as error:
        os.close(fd)
        raise Unpicklable(
            f"{pickling.culprit(fn, args, kwargs)} cannot be sent to another process: "
            f"{type(error).__name__}: {error}",
            what="arguments",
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def _standard(fd: int | None, number: int) -> int:
    """Return a copy of what a standard stream is to be."""
    if fd is not None:
        return os.dup(fd)
    if number != 0:
        with contextlib.suppress(OSError):  # ours is closed
            return os.dup(number)
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _refuse_half_imported() -> None:
    """Refuse to serve a script that multiprocessing imports again, as it would for ever."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and getattr(processes.current_process(), "_inheriting", False):
        raise CannotStart(
            "a call was made while multiprocessing imports this script in a new process; "
            'put what the script does under `if __name__ == "__main__":`'
        )


_servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()


def _forget_all() -> None:
    ForkServer._shared_lock = threading.Lock()  # noqa: SLF001 - our own class
    ForkServer._shared.clear()  # noqa: SLF001 - the same
    for server in list(_servers):
        server.forget()


def _close_all() -> None:
    for server in list(_servers):
        server.close(_EXIT_WITHIN_S)  # else the end of this process closes the socket


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
